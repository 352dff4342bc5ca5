package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/node"
)

// Samples of the time from push to start are taken in turn, each on an idle node. The first samples warm up connections and
// subscriptions, and do not count.
const (
	warmUp = 20
	// The ack of a sample is sent within 10 ms. Until then the node is not idle.
	ackPause = 12 * time.Millisecond
)

// measureStart measures the time from before a push to the start of its handler.
func (b *bench) measureStart(ctx context.Context, _ *Server, note func(string, float64)) (err error) {
	client, q, err := b.openProducer(ctx, b.cfg.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	started := make(chan time.Time, 1)
	w, err := b.startWorker(ctx, node.QueueConfig{Shards: b.cfg.Shards}, func(*lowkiq.Batch) error {
		started <- time.Now()
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	jobs := makeJobs(0, min(b.cfg.Jobs, warmUp+b.cfg.samples))
	var took []float64
	for i := range warmUp + b.cfg.samples {
		begun := time.Now()
		if _, err := q.Push(ctx, jobs[i%len(jobs)]); err != nil {
			return err
		}
		select {
		case at := <-started:
			if i >= warmUp {
				took = append(took, toMilliseconds(at.Sub(begun)))
			}
		case <-w.ended:
			return errors.New("the node ended early")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Second):
			return errors.New("no handler started within 10 s of a push")
		}
		if err := sleep.For(ctx, ackPause); err != nil {
			return err
		}
	}
	noteStart(note, "", took)
	return nil
}

func noteStart(note func(string, float64), prefix string, took []float64) {
	slices.Sort(took)
	note(prefix+"start_p50_ms", took[len(took)/2])
	note(prefix+"start_p99_ms", took[len(took)*99/100])
}

func toMilliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// The idle node: its shards, and the names of its samples.
const (
	idleShards   = 1000
	idleCommands = "idle/redis_commands_per_s_per_100_shards"
	idleCPU      = "idle/node_cpu_percent"
)

// measureIdle measures the cost of a node with many idle shards, once its polls have become rare.
func (b *bench) measureIdle(ctx context.Context, _ *Server, note func(string, float64)) (err error) {
	w, err := b.startWorker(ctx, node.QueueConfig{Shards: idleShards}, func(*lowkiq.Batch) error { return nil })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := sleep.For(ctx, b.cfg.settle); err != nil {
		return err
	}
	before, err := b.on.Usage(ctx)
	if err != nil {
		return err
	}
	cpu, err := processCPU()
	if err != nil {
		return err
	}
	if err := sleep.For(ctx, b.cfg.watch); err != nil {
		return err
	}
	after, err := b.on.Usage(ctx)
	if err != nil {
		return err
	}
	cpuAfter, err := processCPU()
	note(idleCommands, float64(after.Commands-before.Commands)/b.cfg.watch.Seconds()/(idleShards/100))
	note(idleCPU, 100*(cpuAfter-cpu).Seconds()/b.cfg.watch.Seconds())
	return err
}
