package bench

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// pushBatch is the number of jobs in a bulk push, and pushers the number of bulk pushes at once.
const (
	// pushBatch is the number of jobs of a bulk push, and pushers the number of concurrent bulk pushes.
	pushBatch = 10_000
	pushers   = 2
)

// inBatches calls push for parts of the jobs from a few goroutines.
func (b *bench) inBatches(ctx context.Context, push func(ctx context.Context, jobs []lowkiq.Push) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pushers)
	for from := 0; from < b.cfg.Jobs; from += pushBatch {
		to := min(from+pushBatch, b.cfg.Jobs)
		group.Go(func() error { return push(ctx, makeJobs(from, to)) })
	}
	return group.Wait()
}

func (b *bench) perSecond(begun time.Time) float64 {
	return float64(b.cfg.Jobs) / time.Since(begun).Seconds()
}

func (b *bench) usPerJob(d time.Duration) float64 {
	return float64(d.Microseconds()) / float64(b.cfg.Jobs)
}

const queueName = "bench"

// openProducer opens the queue as a program that pushes does.
func (b *bench) openProducer(ctx context.Context, shards int) (*protocol.Client, *protocol.Queue, error) {
	client, err := protocol.Open(protocol.Config{Redis: b.on.URL})
	if err != nil {
		return nil, nil, err
	}
	if err = client.DB().Load(ctx); err == nil {
		var q *protocol.Queue
		if q, err = client.Register(ctx, lowkiq.Queue{Name: queueName, Shards: shards}); err == nil {
			return client, q, nil
		}
	}
	client.Close() //nolint:errcheck // the first error is returned
	return nil, nil, err
}

// pushAll pushes all jobs in bulk. It returns the usage of Redis before and after.
func (b *bench) pushAll(ctx context.Context, note func(string, float64)) (before, after Usage, err error) {
	client, q, err := b.openProducer(ctx, b.cfg.Shards)
	if err != nil {
		return before, after, err
	}
	defer client.Close()
	if before, err = b.on.Usage(ctx); err != nil {
		return before, after, err
	}
	begun := time.Now()
	err = b.inBatches(ctx, func(ctx context.Context, jobs []lowkiq.Push) error {
		_, err := q.Push(ctx, jobs...)
		return err
	})
	if err != nil {
		return before, after, err
	}
	note("push_bulk_per_s", b.perSecond(begun))
	after, err = b.on.Usage(ctx)
	return before, after, err
}

// singleJobs is the maximum number of jobs that are pushed individually.
const singleJobs = 100_000

// measureSingle pushes from 50 goroutines, a job per call.
func (b *bench) measureSingle(ctx context.Context, _ *Server, note func(string, float64)) error {
	client, q, err := b.openProducer(ctx, b.cfg.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	jobs := makeJobs(0, min(b.cfg.Jobs, singleJobs))
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	for range 50 {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(jobs)); i = next.Add(1) - 1 {
				if _, err := q.Push(ctx, jobs[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	note("push_single50_per_s", float64(len(jobs))/time.Since(begun).Seconds())
	return nil
}
