package node

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// typedNil is an error whose Error panics on the nil pointer that careless code returns.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

// TestBrokenHandlers: whatever a handler does to its goroutine is a failure of its batch,
// not the end of the node, and the shard goes on. A panic is no crash: no probation.
func TestBrokenHandlers(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for _, c := range []struct {
		name string
		do   func() error
		want string // in the job's error
	}{
		{"panic", func() error { panic("poison") }, "panic: poison\ngoroutine "},
		{"panic with its stack", func() error { panic("poison") }, "TestBrokenHandlers"},
		{"goexit", func() error { runtime.Goexit(); return nil }, "handler called runtime.Goexit"},
		{"typed nil", func() error { var e *typedNil; return e }, "panic: runtime error: invalid memory address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := strings.ReplaceAll(c.name, " ", "-")
			run := start(t, Config{Redis: srv.URL(), Cluster: cluster, Concurrency: 1}, QueueConfig{
				Shards: 1, BatchSize: 2, RetryIn: func(int) time.Duration { return time.Hour },
			}, func(_ context.Context, b *lowkiq.Batch) error {
				if b.Jobs[0].ID == "bad" {
					return c.do()
				}
				return nil
			})
			p := openCluster(t, srv.URL(), cluster, 1)
			p.push(numbered("bad", 0, 1)...)
			await(t, "the failure", func() bool { return p.stats().Jobs.Retry == 1 })
			p.push(numbered("good", 0, 1)...)
			await(t, "the shard goes on", func() bool { return p.stats().Processed == 1 })
			job, _, err := p.Job(t.Context(), "bad")
			if err != nil || job.RetryCount != 0 || !strings.Contains(job.Error, c.want) {
				t.Errorf("retry count %d, error %q, %v; want 0, %q", job.RetryCount, job.Error, err, c.want)
			}
			slots := run.instance().slots
			run.stop()
			if got := slots.free; got != 1 {
				t.Errorf("%d slots are free, want 1", got)
			}
		})
	}
}

// TestTimeout: the context ends with ErrTimeout; it is a failure once the call returns,
// even with nil, and not before.
func TestTimeout(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	cause := make(chan error, 1)
	release := make(chan struct{})
	start(t, Config{Redis: srv.URL()}, QueueConfig{
		Shards: 1, HandlerTimeout: 20 * time.Millisecond, RetryIn: func(int) time.Duration { return time.Hour },
	}, func(ctx context.Context, b *lowkiq.Batch) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		<-release
		return nil
	})
	p := open(t, srv.URL(), 1)
	p.push(numbered("a", 0, 1)...)
	if err := receive(t, "the timeout", cause); !errors.Is(err, lowkiq.ErrTimeout) {
		t.Errorf("the cause is %v", err)
	}
	if got := p.stats().Jobs; got.InFlight != 1 || got.Retry != 0 {
		t.Errorf("before it returns: %+v, want it in flight", got)
	}
	close(release)
	await(t, "the failure", func() bool { return p.stats().Jobs.Retry == 1 })
	job, _, err := p.Job(t.Context(), "a")
	if want := "handler timeout: 20ms"; err != nil || job.Error != want {
		t.Errorf("error %q, %v; want %q", job.Error, err, want)
	}
}

// TestOverdue: a call that ignores its timeout is reported once, 30 s later; one that
// returned in time, or just then, never.
func TestOverdue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		took   time.Duration
		cause  error
		report int64
	}{
		{"in time", time.Second, nil, 0},
		{"late", 20 * time.Second, lowkiq.ErrTimeout, 0},
		{"very late", time.Hour, lowkiq.ErrTimeout, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log count
				in := &instance{log: slog.New(&log)}
				r := &runner{in: in, claim: &queue.Claim{Shard: &queue.Shard{}}, on: &handled{metrics: metrics.New(prometheus.NewRegistry()).Queue("q")}}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := r.watch(10*time.Second, cancel)
				time.Sleep(c.took)
				synctest.Wait()
				if got := context.Cause(ctx); got != c.cause {
					t.Errorf("cause %v, want %v", got, c.cause)
				}
				w.stop()
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := log.n.Load(); got != c.report {
					t.Errorf("%d reports, want %d", got, c.report)
				}
			})
		})
	}
}

// TestOverdueRace: the timeout and the return at the same instant, many times.
func TestOverdueRace(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var log count
			r := &runner{in: &instance{log: slog.New(&log)}}
			_, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w := r.watch(time.Second, cancel)
			time.Sleep(time.Second)
			w.stop()
			time.Sleep(time.Hour) // a report would meet a nil claim and panic
			synctest.Wait()
		})
	}
}

// count is a log handler that counts.
type count struct{ n atomic.Int64 }

func (c *count) Enabled(context.Context, slog.Level) bool { return true }
func (c *count) Handle(context.Context, slog.Record) error {
	c.n.Add(1)
	return nil
}
func (c *count) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *count) WithGroup(string) slog.Handler      { return c }
