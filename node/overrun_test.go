package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestOverrunOfClaim gives the shard of a living node to another node. A handler that ignores its cancel leads to OnOverrun,
// although the lease holds, because it may run beside the handler of the new owner (I1).
func TestOverrunOfClaim(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	began, release := make(chan struct{}, 10), make(chan struct{})
	cause, overrun := make(chan error, 10), make(chan string, 1)
	run := start(t, Config{Redis: srv.URL(), TTL: 15 * time.Second, OnOverrun: func(stacks []byte) {
		overrun <- string(stacks)
		close(release)
	}}, QueueConfig{Shards: 1, Rules: rules.Rules{ShardConcurrency: 2}}, func(ctx context.Context, b *lowkiq.Batch) error {
		began <- struct{}{}
		<-release
		cause <- context.Cause(ctx)
		return nil
	}).serving()
	if _, err := p.client.Leases().Take(t.Context(), "n2/X.1", []byte("{}"), []byte("{}"), time.Hour); err != nil {
		t.Fatal(err)
	}
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	claimed := run.instance().claims.Get(lowkiq.Shard{Queue: "orders"}).Runner
	owner, err := p.Shard(0).Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.Shard(0).Claim(t.Context(), "n2/X.1", protocol.Seize, owner)
	if err != nil {
		t.Fatal(err)
	}
	claimed.Wake() // the other lane asks Redis
	if stacks := receive(t, "the overrun", overrun); !strings.Contains(stacks, "TestOverrunOfClaim") {
		t.Error("the stacks do not show the handler")
	}
	if err := receive(t, "the handler's end", cause); !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("the cause is %v", err)
	}
	if now, err := p.Shard(0).Owner(t.Context()); err != nil || now.Instance != "n2/X.1" || now.Fence != other.Fence {
		t.Errorf("got owner %+v, %v; want the other node's claim untouched", now, err)
	}
	if !strings.HasSuffix(run.instance().name, ".1") {
		t.Errorf("works as %s: the lease was to live", run.instance().name)
	}
}

// TestOverrunOfLease checks that a handler that ignores its cancel leads to OnOverrun at 0.9 ttl, and that its shard is not
// released before it has returned.
func TestOverrunOfLease(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	began, release := make(chan struct{}, 2), make(chan struct{})
	overrun := make(chan time.Duration, 2)
	var run *running
	run = start(t, Config{Redis: srv.URL(), TTL: shortTTL, OnOverrun: func(stacks []byte) {
		in := run.instance()
		if !strings.Contains(string(stacks), "TestOverrunOfLease") {
			t.Error("the stacks do not show the handler")
		}
		overrun <- sinceBoot() - in.keeper.SafeEnd() - shortTTL/5
		srv.Resume()
		if owner, err := p.Shard(0).Owner(context.Background()); err != nil || owner.Instance != in.name {
			t.Errorf("owner is %q, %v; want %q: the handler still runs", owner.Instance, err, in.name)
		}
		close(release)
	}}, QueueConfig{Shards: 1}, func(context.Context, *lowkiq.Batch) error {
		srv.Pause()
		began <- struct{}{}
		<-release
		return nil
	})
	first := run.serving().instance()
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	if late := receive(t, "the overrun", overrun); late < 0 {
		t.Errorf("OnOverrun was called %s before 0.9 ttl", -late)
	}
	run.next(first)
	p.drained()
	if got := p.stats().Processed; got != 1 {
		t.Errorf("%d processed, want 1: it was done, and acked under the old name", got)
	}
}

// TestShutdownThatHangs checks that OnOverrun is called if Run does not end in time, for any reason.
func TestShutdownThatHangs(t *testing.T) {
	t.Parallel()
	overrun, release := make(chan string, 1), make(chan struct{})
	run := startQueues(t, Config{Name: "n1", Redis: redistest.Start(t).URL(), ShutdownTimeout: time.Millisecond, overtime: 10 * time.Millisecond, OnOverrun: func(stacks []byte) {
		select {
		case overrun <- string(stacks):
		default:
		}
	}}, func(n *Node) error {
		return n.Attach(func() (string, error) { return "http://127.0.0.1", nil }, func(context.Context) error { <-release; return nil })
	}).serving()
	defer run.stop()
	defer close(release)
	run.cancel()
	if stacks := receive(t, "the overrun", overrun); !strings.Contains(stacks, "TestShutdownThatHangs") {
		t.Error("the stacks do not show what hangs")
	}
}
