package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/lowkiq/lowkiq/lab/bench"
)

// rival measures asynq in the steps of a bench.
type rival struct {
	jobs    int
	samples int // samples of the time from push to start, per round
	pause   time.Duration
	// streamFor is the time of each load of a live stream.
	streamFor time.Duration
}

const taskType = "bench"

// steps returns the measurements of asynq in a round, or those of the named part.
func (r rival) steps(only string) []bench.Step {
	stream := bench.Step{Name: "asynq, live stream", Run: r.stream}
	if only == bench.OnlyStream {
		return []bench.Step{stream}
	}
	steps := []bench.Step{
		{Name: "asynq, concurrency 5", Run: func(ctx context.Context, on *bench.Server, note func(string, float64)) error {
			return r.drain(ctx, on, 5, note)
		}},
		{Name: "asynq, concurrency 100", Run: func(ctx context.Context, on *bench.Server, note func(string, float64)) error {
			return r.drain(ctx, on, 100, note)
		}},
		{Name: "asynq, push to start", Run: r.start},
	}
	if only != bench.OnlyDrain {
		steps = append(steps, stream)
	}
	return steps
}

// The stream is handled by this many workers of asynq, and by a lowkiq node that owns this many shards.
const (
	streamWorkers = 32
	streamShards  = 50
)

// loads are the loads that both are measured with.
var loads = []bench.Load{bench.Saturation, bench.PerSecond(1000), bench.PerSecond(10_000)}

// streamFigure returns the name of a figure of a load.
func streamFigure(load bench.Load, name string) string { return "stream/" + load.Name + "/" + name }

// stream measures every load on a server.
func (r rival) stream(ctx context.Context, on *bench.Server, note func(string, float64)) error {
	opt, err := asynq.ParseRedisURI(on.URL)
	if err != nil {
		return err
	}
	client := asynq.NewClient(opt)
	defer client.Close()
	s := bench.NewStream(on, func(ctx context.Context, id string, payload []byte) error {
		_, err := client.EnqueueContext(ctx, asynq.NewTask(taskType, payload), asynq.TaskID(id))
		return err
	})
	server, err := serve(on, streamWorkers, func(task *asynq.Task) error { return s.Handle(task.Payload()) })
	if err != nil {
		return err
	}
	defer server.Shutdown()
	for _, load := range loads {
		figures, err := s.Measure(ctx, load, r.streamFor)
		if err != nil {
			return fmt.Errorf("%s: %w", load.Name, err)
		}
		figures.Note(func(name string, value float64) { note(streamFigure(load, name), value) })
	}
	return nil
}

// drain enqueues all tasks from 50 goroutines, then lets a server handle them.
func (r rival) drain(ctx context.Context, on *bench.Server, concurrency int, note func(string, float64)) error {
	before, err := on.Usage(ctx)
	if err != nil {
		return err
	}
	rate, err := r.enqueue(ctx, on)
	if err != nil {
		return err
	}
	pushed, err := on.Usage(ctx)
	if err != nil {
		return err
	}
	drained, err := r.handleAll(ctx, on, concurrency)
	if err != nil {
		return err
	}
	after, err := on.Usage(ctx)
	note(pushRate, rate)
	note(pushCPU, r.usPerJob(pushed.CPU-before.CPU))
	note(bytesPerJob, float64(pushed.Bytes-before.Bytes)/float64(r.jobs))
	note(drainRate(concurrency), drained)
	note(drainCPU(concurrency), r.usPerJob(after.CPU-pushed.CPU))
	return err
}

func (r rival) usPerJob(d time.Duration) float64 {
	return float64(d.Microseconds()) / float64(r.jobs)
}

// enqueue pushes a task per call and returns tasks per second.
func (r rival) enqueue(ctx context.Context, on *bench.Server) (rate float64, err error) {
	opt, err := asynq.ParseRedisURI(on.URL)
	if err != nil {
		return 0, err
	}
	client := asynq.NewClient(opt)
	defer client.Close()
	payload := []byte("0123456789abcdef")
	errs := make([]error, 50)
	var next atomic.Int64
	var group sync.WaitGroup
	begun := time.Now()
	for i := range errs {
		group.Go(func() {
			for next.Add(1) <= int64(r.jobs) && errs[i] == nil {
				_, errs[i] = client.EnqueueContext(ctx, asynq.NewTask(taskType, payload))
			}
		})
	}
	group.Wait()
	return float64(r.jobs) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// handleAll drains with an empty handler. It returns tasks per second from the first handler call to the last.
func (r rival) handleAll(ctx context.Context, on *bench.Server, concurrency int) (rate float64, err error) {
	var left atomic.Int64
	left.Store(int64(r.jobs))
	var first sync.Once
	var begun time.Time
	done := make(chan struct{})
	server, err := serve(on, concurrency, func(*asynq.Task) error {
		first.Do(func() { begun = time.Now() })
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer server.Shutdown()
	select {
	case <-done:
		return float64(r.jobs) / time.Since(begun).Seconds(), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(10 * time.Minute):
		return 0, fmt.Errorf("%d of %d tasks are not handled after 10 minutes", left.Load(), r.jobs)
	}
}

// serve starts an asynq server, which the caller must shut down.
func serve(on *bench.Server, concurrency int, handle func(*asynq.Task) error) (*asynq.Server, error) {
	opt, err := asynq.ParseRedisURI(on.URL)
	if err != nil {
		return nil, err
	}
	server := asynq.NewServer(opt, asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
	return server, server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		return handle(task)
	}))
}

// start measures the time from before an enqueue to the start of its handler. asynq polls an empty queue once a second, so a
// sample first waits for a random part of a second.
func (r rival) start(ctx context.Context, on *bench.Server, note func(string, float64)) error {
	started := make(chan time.Time, 1)
	server, err := serve(on, 5, func(*asynq.Task) error {
		started <- time.Now()
		return nil
	})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	opt, err := asynq.ParseRedisURI(on.URL)
	if err != nil {
		return err
	}
	client := asynq.NewClient(opt)
	defer client.Close()
	var took []float64
	for range r.samples {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(r.pause)):
		}
		begun := time.Now()
		if _, err := client.EnqueueContext(ctx, asynq.NewTask(taskType, nil)); err != nil {
			return err
		}
		select {
		case at := <-started:
			took = append(took, float64(at.Sub(begun).Nanoseconds())/1e6)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Second):
			return errors.New("no handler started within 10 s of an enqueue")
		}
	}
	slices.Sort(took)
	note(startP50, took[len(took)/2])
	note(startP99, took[len(took)*99/100])
	return nil
}
