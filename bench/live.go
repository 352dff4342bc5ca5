package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
)

// half is an open loop at half of what the closed loop reached just before.
const half = "half of saturation"

// besideSlow is an open loop in which some jobs hold up those behind them.
var besideSlow = Load{Name: "5000/s beside slow", PerSecond: 5000, Slow: 1000}

// stream is what one step measures: loads, one after the other, on one node.
type stream struct {
	StreamRow // without a load and figures
	loads     []Load
	length    time.Duration // of each load
}

// streams are the steps of a round.
func (cfg *Config) streams() (all []stream) {
	if cfg.Only == OnlyDrain {
		return nil
	}
	for _, shards := range cfg.StreamShards {
		all = append(all, stream{StreamRow{Shards: shards, ShardConcurrency: 1},
			[]Load{Saturation, PerSecond(1000), PerSecond(10_000), {Name: half}}, cfg.StreamFor})
	}
	for _, concurrency := range []int{1, 4} {
		all = append(all, stream{StreamRow{Shards: 50, ShardConcurrency: concurrency},
			[]Load{besideSlow}, 2 * cfg.StreamFor}) // there are few slow ones
	}
	return all
}

func (s *stream) row(load Load) StreamRow {
	row := s.StreamRow
	row.Load = load.Name
	return row
}

// streamRows are the rows of the report, without figures.
func (cfg *Config) streamRows() (rows []StreamRow) {
	for _, s := range cfg.streams() {
		for _, load := range s.loads {
			rows = append(rows, s.row(load))
		}
	}
	return rows
}

// streamSteps measure live streams.
func (b *bench) streamSteps() (steps []Step) {
	for _, s := range b.cfg.streams() {
		name := fmt.Sprintf("live stream, %d shards", s.Shards)
		if s.loads[0].Slow > 0 {
			name = fmt.Sprintf("live stream beside slow jobs, shard_concurrency %d", s.ShardConcurrency)
		}
		steps = append(steps, Step{name, func(ctx context.Context, _ *Server, note func(string, float64)) error {
			return b.stream(ctx, s, note)
		}})
	}
	return steps
}

func (b *bench) stream(ctx context.Context, s stream, note func(string, float64)) error {
	rules := node.QueueConfig{Shards: s.Shards, ShardConcurrency: s.ShardConcurrency}
	return b.live(ctx, rules, func(ctx context.Context, through *Stream) error {
		var reached float64
		for _, load := range s.loads {
			if load.Name == half {
				load.PerSecond = max(1, int(reached/2))
			}
			figures, err := through.Measure(ctx, load, s.length)
			if err != nil {
				return fmt.Errorf("%s: %w", load.Name, err)
			}
			if load == Saturation {
				reached = figures.PerSecond
			}
			row := s.row(load)
			figures.Note(func(name string, value float64) { note(row.figure(name), value) })
		}
		return nil
	})
}

// live calls measure with a stream through a node that owns all shards.
func (b *bench) live(ctx context.Context, rules node.QueueConfig, measure func(ctx context.Context, s *Stream) error) (err error) {
	client, q, err := b.producer(ctx, rules.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	s := NewStream(b.on, func(ctx context.Context, id string, payload []byte) error {
		_, err := q.Push(ctx, lowkiq.Push{ID: id, Payload: payload})
		return err
	})
	w, err := b.work(ctx, rules, func(batch *lowkiq.Batch) error {
		for i := range batch.Jobs {
			for _, p := range batch.Jobs[i].Payloads {
				if err := s.Handle(p.Data); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.ready(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	measured := make(chan error, 1)
	go func() { measured <- measure(ctx, s) }()
	select {
	case err := <-measured:
		return err
	case <-w.ended:
		cancel()
		<-measured
		return errors.New("the node ended early")
	}
}
