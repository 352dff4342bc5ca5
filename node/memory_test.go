package node

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// granted is a handler that counts how often it was told that it may go on.
type granted struct {
	times, handled atomic.Int64
	early          atomic.Bool // a batch came before the first grant
}

func (g *granted) Handle(context.Context, *lowkiq.Batch) error {
	if g.times.Load() == 0 {
		g.early.Store(true)
	}
	g.handled.Add(1)
	return nil
}

func (g *granted) Grant(time.Duration) { g.times.Add(1) }

// TestGrantWithoutRegistry: handlers may go on as long as the lease is renewed, whether the
// registry can be read or not.
func TestGrantWithoutRegistry(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.push(lowkiq.Push{ID: "a"})
	var handler granted
	run := startHandler(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, &handler)
	await(t, "a batch", func() bool { return handler.handled.Load() > 0 })
	if handler.early.Load() {
		t.Error("got a batch before the first grant: a node that froze then could not end it (I1)")
	}
	raw(t, srv.Addr(), "DEL", "lk:{default}:queues")
	raw(t, srv.Addr(), "SET", "lk:{default}:queues", "no_hash")
	for range 3 {
		before := handler.times.Load()
		run.renew()
		await(t, "the grant of a renewal", func() bool { return handler.times.Load() > before })
	}
}

// TestRanLast: a process that has given a shard back is its last owner no more: if Redis
// forgets the claim, somebody else may have had it meanwhile.
func TestRanLast(t *testing.T) {
	t.Parallel()
	run := start(t, Config{Redis: redistest.Start(t).URL()}, QueueConfig{Shards: 2}, nothing).serving()
	shard := lowkiq.Shard{Queue: "orders"}
	if !run.ranLast(shard) {
		t.Error("the owner of a shard does not know that it was the last one")
	}
	run.drain(true)
	await(t, "the shards are given back", func() bool { return len(run.instance().all()) == 0 })
	if run.ranLast(shard) {
		t.Error("a shard that was given back still counts as run by this process last")
	}
}

// TestPrune: what is known of instances that have been dead for long is forgotten, be they of
// this host or of another; leases that are not missing for long stay.
func TestPrune(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	far := func(i int) string {
		return fmt.Sprintf(`{"host":"elsewhere","pids":"pid:[1]","pid":%d,"start":"1","ttl_ms":3000}`, i)
	}
	for i, name := range []string{"gone/X.1", "new/X.1"} {
		if _, err := p.client.TakeLease(t.Context(), name, []byte(far(i)), []byte("{}"), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	in := unstarted(t, srv.URL(), 1)
	await(t, "the leases are gone", func() bool {
		instances, err := p.client.Instances(t.Context())
		return err == nil && len(instances) == 3 && instances[0].Lease == nil && instances[2].Lease == nil
	})
	in.prune(t.Context())
	in.node.absent["gone/X.1"] -= forgetAfter + time.Second
	in.prune(t.Context())
	if instances, err := p.client.Instances(t.Context()); err != nil || len(instances) != 3 {
		t.Errorf("%d instances are listed right after the last look, %v; want three: it is not time to look again", len(instances), err)
	}
	in.pruned -= pruneEvery
	in.node.absent["no longer listed/X.1"] = sinceBoot() - forgetMost - time.Second
	in.node.ends["no longer listed/X.1"] = sinceBoot() - forgetMost - time.Second
	in.prune(t.Context())
	instances, err := p.client.Instances(t.Context())
	if err != nil || len(instances) != 2 {
		t.Errorf("%d instances are listed, %v; want this one and the newly dead", len(instances), err)
	}
	if got := len(in.node.absent); got != 1 {
		t.Errorf("%d instances are remembered as without lease, want the newly dead: %v", got, in.node.absent)
	}
	if got := len(in.node.ends); got != 0 {
		t.Errorf("%d instances are remembered as ended, want none", got)
	}
}

// TestForgettable: an instance of a long ttl is remembered for longer, none for ever.
func TestForgettable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		missing, ttl time.Duration
		proven, want bool
	}{
		{pruneAfter, 6 * time.Second, true, false},
		{pruneAfter + 1, 6 * time.Second, true, true},
		{forgetAfter, 6 * time.Second, false, false},
		{forgetAfter + 1, 6 * time.Second, false, true},
		{forgetAfter + 1, 2 * time.Minute, false, false},
		{20*time.Minute + 1, 2 * time.Minute, false, true},
		{forgetMost + 1, 1000 * time.Hour, false, true},
		{0, 0, false, false},
	} {
		if got := forgettable(tt.missing, tt.ttl, tt.proven); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

// TestNotReadyBeforeClaims: an instance that follows another one is not ready before it has
// claimed its shards.
func TestNotReadyBeforeClaims(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	run := start(t, Config{Redis: proxy.URL()}, QueueConfig{Shards: 4}, nothing).serving()
	await(t, "it is ready", func() bool { return run.Ready() == nil })
	var claims, ready atomic.Int64
	proxy.CutReplyOf(func(words []string) bool {
		if text := strings.Join(words, " "); strings.Contains(text, ".2 fresh") || strings.Contains(text, ".2 self") {
			claims.Add(1)
			if run.Ready() == nil {
				ready.Add(1)
			}
		}
		return false
	})
	first := run.instance()
	raw(t, srv.Addr(), "DEL", "lk:{default}:lease:"+first.name)
	first.keeper.Poke()
	run.next(first)
	if claims.Load() < 4 || ready.Load() > 0 {
		t.Errorf("ready at %d of %d claims, want 0 of 4", ready.Load(), claims.Load())
	}
}
