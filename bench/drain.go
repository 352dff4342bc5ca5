package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
)

// batch100 measures bulk push and a drain at batch 100, with all that Redis uses for it.
func (b *bench) batch100(ctx context.Context, _ *Server, note func(string, float64)) error {
	before, pushed, err := b.pushAll(ctx, note)
	if err != nil {
		return err
	}
	note("redis_us_per_job_push", b.usPerJob(pushed.CPU-before.CPU))
	note("redis_bytes_per_job", float64(pushed.Bytes-before.Bytes)/float64(len(b.jobs)))
	runtime.GC()
	allocs := mallocs()
	rate, err := b.drain(ctx, 100)
	if err != nil {
		return err
	}
	note("drain_batch100_per_s", rate)
	note("allocs_per_job", float64(mallocs()-allocs)/float64(len(b.jobs)))
	drained, err := b.on.Usage(ctx)
	note("redis_us_per_job_drain", b.usPerJob(drained.CPU-pushed.CPU))
	return err
}

// batch1 measures a drain at batch 1.
func (b *bench) batch1(ctx context.Context, _ *Server, note func(string, float64)) error {
	if _, _, err := b.pushAll(ctx, func(string, float64) {}); err != nil {
		return err
	}
	runtime.GC()
	rate, err := b.drain(ctx, 1)
	note("drain_batch1_per_s", rate)
	return err
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// drain lets a node handle everything and ends it. It returns jobs per second from the
// first handler call to the last.
func (b *bench) drain(ctx context.Context, batch int) (rate float64, err error) {
	var left atomic.Int64
	left.Store(int64(len(b.jobs)))
	var first sync.Once
	var begun time.Time
	done := make(chan struct{})
	w, err := b.work(ctx, node.QueueConfig{Shards: b.cfg.Shards, BatchSize: batch}, func(jobs int) {
		first.Do(func() { begun = time.Now() })
		if left.Add(-int64(jobs)) == 0 {
			close(done)
		}
	})
	if err != nil {
		return 0, err
	}
	patience := time.Minute + time.Duration(len(b.jobs))*100*time.Microsecond
	select {
	case <-done:
		rate = b.perSecond(begun)
	case <-w.ended:
		err = errors.New("the node ended early")
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(patience):
		err = fmt.Errorf("%d of %d jobs are not handled after %s", left.Load(), len(b.jobs), patience)
	}
	return rate, errors.Join(err, w.stop())
}

// worker is a node in this process.
type worker struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed after err is set
	err    error
}

// work runs a node that calls handle with the size of each batch.
func (b *bench) work(ctx context.Context, rules node.QueueConfig, handle func(jobs int)) (*worker, error) {
	n, err := node.New(node.Config{Name: "bench", Redis: b.on.URL})
	if err != nil {
		return nil, err
	}
	rules.Name = queueName
	err = n.Handle(rules, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		handle(len(batch.Jobs))
		return nil
	}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.err = n.Run(ctx)
	}()
	return w, nil
}

// stop ends the node. It may be called twice.
func (w *worker) stop() error {
	w.cancel()
	<-w.ended
	return w.err
}
