package node

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestPaused: a paused queue is not popped, not by a node that starts later either.
func TestPaused(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	p.push(numbered("a", 0, 3)...)
	var resumed atomic.Bool
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error {
		if !resumed.Load() {
			t.Error("a paused queue's job was handled")
		}
		return nil
	})
	run.serving()
	run.renew()
	run.renew()
	if got := p.stats().Jobs.Ready; got != 1 {
		t.Errorf("%d ids are ready, want 1", got)
	}
	resumed.Store(true)
	if err := p.client.Registry().Resume(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	run.renew()
	p.drained()
	resumed.Store(false)
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	run.renew()
	await(t, "the node notices", func() bool { return run.queues.handled["orders"].paused.Load() })
	p.push(numbered("a", 3, 4)...)
	run.stop()
	if got := p.stats().Jobs.Ready; got != 1 {
		t.Errorf("%d ids are ready, want 1", got)
	}
}

// TestPausedBeforeStart: the first pop knows, without a renewal in between.
func TestPausedBeforeStart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Handle(QueueConfig{Name: "orders", Shards: 1}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	if err := n.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !n.queues.handled["orders"].paused.Load() {
		t.Error("the node does not know that the queue is paused")
	}
}
