package node

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
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
			if got := slots.Use(); got.Busy != 0 {
				t.Errorf("%d slots are taken, want none", got.Busy)
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
