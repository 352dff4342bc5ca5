package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// half names an open loop at half the rate that the closed loop reached just before.
const half = "half of saturation"

// besideSlow is an open loop where some jobs delay the jobs behind them.
var besideSlow = Load{Name: "5000/s beside slow", PerSecond: 5000, Slow: 1000}

// stream is the measurement of a step: loads, in turn, on a node.
type stream struct {
	StreamRow // without a load and figures
	loads     []Load
	length    time.Duration // of each load
}

// listStreams returns the streams of a round, a step each.
func (cfg *Config) listStreams() (all []stream) {
	if cfg.Only == OnlyDrain {
		return nil
	}
	for _, shards := range cfg.StreamShards {
		all = append(all, stream{StreamRow{Shards: shards, ShardConcurrency: 1},
			[]Load{Saturation, PerSecond(1000), PerSecond(10_000), {Name: half}}, cfg.StreamFor})
	}
	for _, concurrency := range []int{1, 4} {
		all = append(all, stream{StreamRow{Shards: 50, ShardConcurrency: concurrency},
			[]Load{besideSlow}, 2 * cfg.StreamFor}) // slow jobs are rare
	}
	return all
}

func (s *stream) rowFor(load Load) StreamRow {
	row := s.StreamRow
	row.Load = load.Name
	return row
}

// streamRows returns the rows of the report, without figures.
func (cfg *Config) streamRows() (rows []StreamRow) {
	for _, s := range cfg.listStreams() {
		for _, load := range s.loads {
			rows = append(rows, s.rowFor(load))
		}
	}
	return rows
}

// streamSteps returns the steps that measure live streams.
func (b *bench) streamSteps() (steps []Step) {
	for _, s := range b.cfg.listStreams() {
		name := fmt.Sprintf("live stream, %d shards", s.Shards)
		if s.loads[0].Slow > 0 {
			name = fmt.Sprintf("live stream beside slow jobs, shard_concurrency %d", s.ShardConcurrency)
		}
		steps = append(steps, Step{name, func(ctx context.Context, _ *Server, note func(string, float64)) error {
			return b.measureStream(ctx, s, note)
		}})
	}
	return steps
}

// measureStream measures the loads of a stream in order, through a single node. The load half
// pushes half as fast as Saturation, which must come before it.
func (b *bench) measureStream(ctx context.Context, s stream, note func(string, float64)) error {
	rules := node.QueueConfig{Shards: s.Shards, Rules: rules.Rules{ShardConcurrency: s.ShardConcurrency}}
	return b.withNode(ctx, rules, func(ctx context.Context, through *Stream) error {
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
			row := s.rowFor(load)
			figures.Note(func(name string, value float64) { note(row.figureName(name), value) })
		}
		return nil
	})
}

// withNode calls measure with a stream through a node that owns all shards.
func (b *bench) withNode(ctx context.Context, rules node.QueueConfig, measure func(ctx context.Context, s *Stream) error) (err error) {
	client, q, err := b.openProducer(ctx, rules.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	s := NewStream(b.on, func(ctx context.Context, id string, payload []byte) error {
		_, err := q.Push(ctx, lowkiq.Push{ID: id, Payload: payload})
		return err
	})
	w, err := b.startWorker(ctx, rules, func(batch *lowkiq.Batch) error {
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
	if err := w.awaitReady(ctx); err != nil {
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
