package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestShutdownTimeout checks that handlers are cancelled with ErrShutdown after the timeout, and that their jobs go back
// without a retry. Jobs that they report as done are done.
func TestShutdownTimeout(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.push(append(numbered("a", 0, 1), numbered("b", 0, 1)...)...)
	began, cause := make(chan struct{}, 1), make(chan error, 1)
	run := start(t, Config{Redis: srv.URL(), ShutdownTimeout: 20 * time.Millisecond}, QueueConfig{Shards: 1, Rules: rules.Rules{BatchSize: 2}}, func(ctx context.Context, b *lowkiq.Batch) error {
		began <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return lowkiq.Failed{"b": ctx.Err()}
	})
	receive(t, "the handler", began)
	run.stop()
	if err := <-cause; !errors.Is(err, lowkiq.ErrShutdown) {
		t.Errorf("the cause is %v", err)
	}
	s := p.stats()
	if s.Processed != 1 || s.Failed != 0 || s.Jobs.Ready != 1 {
		t.Errorf("%d processed, %d failed, %+v; want 1, 0, one ready", s.Processed, s.Failed, s.Jobs)
	}
	job, _, err := browse.Of(p.Queue).Job(t.Context(), "b")
	if err != nil || job.RetryCount != -1 || job.Error != "" {
		t.Errorf("b has retry count %d, error %q, %v; want -1, none", job.RetryCount, job.Error, err)
	}
}

// TestCancelledStart checks that a node that must stop before it has begun ends without an error.
func TestCancelledStart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	n, err := New(Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}
