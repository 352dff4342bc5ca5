package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// batch100 measures a bulk push and a drain at batch 100, with the CPU and memory that Redis uses.
func (b *bench) batch100(ctx context.Context, _ *Server, note func(string, float64)) error {
	before, pushed, err := b.pushAll(ctx, note)
	if err != nil {
		return err
	}
	note("redis_us_per_job_push", b.usPerJob(pushed.CPU-before.CPU))
	note("redis_bytes_per_job", float64(pushed.Bytes-before.Bytes)/float64(b.cfg.Jobs))
	d, err := b.drainQueue(ctx, node.QueueConfig{Rules: rules.Rules{BatchSize: 100}})
	note("drain_batch100_per_s", d.rate)
	note("allocs_per_job", d.allocs)
	note("redis_us_per_job_drain", d.redis)
	return err
}

// batch1 measures a drain at batch 1.
func (b *bench) batch1(ctx context.Context, _ *Server, note func(string, float64)) error {
	if _, _, err := b.pushAll(ctx, func(string, float64) {}); err != nil {
		return err
	}
	d, err := b.drainQueue(ctx, node.QueueConfig{Rules: rules.Rules{BatchSize: 1}})
	note("drain_batch1_per_s", d.rate)
	return err
}

// measureJournal measures a drain at batch 100 with a line in the journal for each run.
func (b *bench) measureJournal(ctx context.Context, _ *Server, note func(string, float64)) error {
	if _, _, err := b.pushAll(ctx, func(string, float64) {}); err != nil {
		return err
	}
	d, err := b.drainQueue(ctx, node.QueueConfig{Rules: rules.Rules{BatchSize: 100,
		Journal: rules.Journal{Runs: rules.JournalAll, Keep: 2 * b.cfg.Jobs}}})
	if err != nil {
		return err
	}
	note("drain_journal_per_s", d.rate)
	note("redis_us_per_job_journal", d.redis)
	bytes, err := b.on.memoryOf(ctx, "lk:*:journal")
	note("journal_bytes_per_run", float64(bytes)/float64(b.cfg.Jobs))
	return err
}

func countMallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// drained is the result of a drain: jobs per second from the first handler call to the last, allocations per job, CPU time
// of Redis per job in us, and the whole usage of Redis.
type drained struct {
	rate, allocs, redis float64
	used                Usage
}

// drainQueue lets a node handle all jobs and ends the node. The queue is paused until the node has claimed all shards.
// Otherwise a short drain with many shards would measure the claims.
func (b *bench) drainQueue(ctx context.Context, rules node.QueueConfig) (d drained, err error) {
	client, err := protocol.Open(protocol.Config{Redis: b.on.URL})
	if err != nil {
		return d, err
	}
	defer client.Close()
	if err := client.Registry().Pause(ctx, queueName); err != nil {
		return d, err
	}
	var left atomic.Int64
	left.Store(int64(b.cfg.Jobs))
	var first sync.Once
	var begun time.Time
	done := make(chan struct{})
	rules.Shards, rules.ShardConcurrency = b.cfg.Shards, b.cfg.lanes
	w, err := b.startWorker(ctx, rules, func(batch *lowkiq.Batch) error {
		first.Do(func() { begun = time.Now() })
		if b.cfg.takes > 0 {
			time.Sleep(b.cfg.takes)
		}
		if left.Add(-int64(len(batch.Jobs))) == 0 {
			close(done)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.awaitReady(ctx); err != nil {
		return d, err
	}
	runtime.GC()
	before, err := b.on.Usage(ctx)
	if err != nil {
		return d, err
	}
	allocs := countMallocs()
	if err := client.Registry().Resume(ctx, queueName); err != nil {
		return d, err
	}
	patience := time.Minute + time.Duration(b.cfg.Jobs)*100*time.Microsecond
	if err := w.awaitDone(ctx, done, patience); err != nil {
		return d, fmt.Errorf("%d of %d jobs are not handled: %w", left.Load(), b.cfg.Jobs, err)
	}
	d.rate = b.perSecond(begun)
	d.allocs = float64(countMallocs()-allocs) / float64(b.cfg.Jobs)
	after, err := b.on.Usage(ctx)
	if err != nil {
		return d, err
	}
	d.used = after.since(before)
	d.redis = b.usPerJob(d.used.CPU)
	return d, nil
}

// worker is a node in this process.
type worker struct {
	*node.Node
	cancel context.CancelFunc
	ended  chan struct{} // closed after err is set
	err    error
}

// startWorker starts a node that calls handle with each batch.
func (b *bench) startWorker(ctx context.Context, rules node.QueueConfig, handle func(*lowkiq.Batch) error) (*worker, error) {
	n, err := node.New(node.Config{Name: "bench", Redis: b.on.URL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	rules.Name = queueName
	err = n.Handle(rules, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		return handle(batch)
	}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{Node: n, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.err = n.Run(ctx)
	}()
	return w, nil
}

// awaitReady returns when all shards are claimed.
func (w *worker) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for w.Ready() != nil {
		select {
		case <-w.ended:
			return errors.New("the node ended early")
		case <-ctx.Done():
			return fmt.Errorf("node is not ready: %w: %w", w.Ready(), ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// awaitDone returns when done is closed.
func (w *worker) awaitDone(ctx context.Context, done <-chan struct{}, patience time.Duration) error {
	select {
	case <-done:
		return nil
	case <-w.ended:
		return errors.New("the node ended early")
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
		return fmt.Errorf("after %s", patience)
	}
}

// stop ends the node. It may be called twice.
func (w *worker) stop() error {
	w.cancel()
	<-w.ended
	return w.err
}
