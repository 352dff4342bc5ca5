package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// TestPaused checks that a paused queue is not popped, also by a node that starts later.
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

// prepared is a node that is about to take its first lease.
func prepared(t *testing.T, url string) *Node {
	t.Helper()
	n, err := New(Config{Redis: url, Name: "n1", TTL: calmTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	if err := n.Handle(QueueConfig{Name: "orders", Shards: 1}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	if err := n.prepareRun(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPausedBeforeStart checks that the first pop knows of a pause, before any renewal.
func TestPausedBeforeStart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	n := prepared(t, srv.URL())
	if !n.queues.handled["orders"].paused.Load() {
		t.Error("the node does not know that the queue is paused")
	}
}

// TestNothingBeginsAfterPause checks that no job of a paused queue begins once all leases say that it is paused, at whatever
// moment the pause comes.
func TestNothingBeginsAfterPause(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 4)
	var begun atomic.Int64
	run := start(t, Config{Redis: srv.URL(), Concurrency: 6}, QueueConfig{Shards: 4, Rules: rules.Rules{BatchSize: 3, ShardConcurrency: 2}}, func(context.Context, *lowkiq.Batch) error {
		begun.Add(1)
		return nil
	}).serving()
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() {
		for ctx.Err() == nil {
			run.instance().keeper.RenewNow()
			time.Sleep(time.Millisecond) // renewals, not a wait
		}
	})
	registry, n := p.client.Registry(), 0
	for round := range 60 {
		was := begun.Load()
		p.push(numbered(fmt.Sprint("r", round, "-"), n, n+200)...)
		n += 200
		await(t, "jobs flow", func() bool { return begun.Load() > was })
		if err := registry.Pause(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		late, err := status.AwaitPause(t.Context(), run.Cluster(), "orders")
		if err != nil || len(late) > 0 {
			t.Fatalf("got %v, %v; want that the node has noticed", late, err)
		}
		await(t, "the end of what handlers have", func() bool { return p.stats().Jobs.InFlight == 0 })
		then := begun.Load()
		p.push(numbered("more", round, round+1)...)
		run.renew()
		if now := begun.Load(); now != then {
			t.Fatalf("round %d: %d handler calls began after the pause was noticed", round, now-then)
		}
		if err := registry.Resume(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
	}
	p.drained()
}

// TestPausedAsItStarts checks that a node begins no job of a queue that was paused just before the node took its lease, when
// the command that waits for the pause could not see the node.
func TestPausedAsItStarts(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	n := prepared(t, srv.URL())
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if late, err := status.AwaitPause(t.Context(), status.Of(n), "orders"); err != nil || len(late) > 0 {
		t.Fatalf("got %v, %v; want nobody: the node has no lease", late, err)
	}
	in := newInstance(t.Context(), n, 1)
	defer in.cancelIO()
	taken, err := in.takeLease()
	if err != nil {
		t.Fatal(err)
	}
	if !n.queues.handled["orders"].paused.Load() {
		t.Error("the node has its lease, may begin now, and does not know that the queue is paused")
	}
	in.dropLease(taken)
}

// TestHaltedForReshard checks that a queue whose shards are about to change is halted like a paused queue. The lease says that
// nothing begins. A running call goes on, or is cancelled if the change asks for it, which counts as no failure. Other queues
// go on. The node follows the queue to its new shards.
func TestHaltedForReshard(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	calls, end, others := make(chan context.Context, 10), make(chan struct{}), make(chan string, 10)
	run := startQueues(t, Config{Redis: srv.URL()}, func(n *Node) error {
		return errors.Join(
			n.Handle(QueueConfig{Name: "orders", Rules: rules.Rules{BatchSize: 1}}, lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
				if b.Jobs[0].RetryCount != -1 {
					t.Errorf("job %s: retry count %d, want -1", b.Jobs[0].ID, b.Jobs[0].RetryCount)
				}
				calls <- ctx
				select {
				case <-end:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})),
			n.Handle(QueueConfig{Name: "others", Shards: 1}, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
				others <- b.Jobs[0].ID
				return nil
			})))
	}).serving()
	const entry = `{"shards":2,"layout":1,"needs":["reshard"],"reshard":{"shards":4,"layout":2,"by":"ann","at":%d,"patience_ms":3600000%s}}`
	now := time.Now().UnixMilli()
	p.push(lowkiq.Push{ID: "a"})
	call := receive(t, "a call", calls)
	register(t, srv.Addr(), "orders", fmt.Sprintf(entry, now, ""))
	if late, err := status.AwaitPause(t.Context(), run.Cluster(), "orders"); err != nil || len(late) > 0 {
		t.Fatalf("got %v, %v; want that the lease says that nothing begins", late, err)
	}
	p.ids("b", 20)
	if _, err := p.client.Push(t.Context(), "others", lowkiq.Push{ID: "goes on"}); err != nil {
		t.Fatal(err)
	}
	receive(t, "a job of the other queue", others)
	run.renew()
	if n := p.stats().Jobs; n.InFlight != 1 || n.Ready != 20 || call.Err() != nil {
		t.Errorf("got %+v, the call: %v; want one id in its call and 20 that wait", n, context.Cause(call))
	}
	register(t, srv.Addr(), "orders", fmt.Sprintf(entry, now, `,"cancel_calls":true`))
	run.renew()
	receive(t, "the end of the call's context", call.Done())
	if why := context.Cause(call); why != lowkiq.ErrCancelled {
		t.Errorf("got the cause %v, want %v", why, lowkiq.ErrCancelled)
	}
	close(end)
	for range 21 {
		receive(t, "a call", calls)
	}
	await(t, "the queue has its new shards, and no job is left", func() bool {
		entries, err := p.client.Registry().Entries(t.Context())
		if err != nil || entries["orders"].Shards != 4 || entries["orders"].Copying() {
			return false
		}
		anew, err := p.client.Queue(t.Context(), "orders")
		if err != nil {
			return false
		}
		stats, err := anew.Stats(t.Context())
		return err == nil && stats.Jobs.Total() == 0 && stats.Failed == 0
	})
}
