package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestDrainWithoutRedis: a node that is told to stop while it hands shards over, and while
// Redis is away, does not wait for Redis.
func TestDrainWithoutRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	run := start(t, Config{Redis: srv.URL(), TTL: 2 * time.Minute}, QueueConfig{Shards: 4}, nothing).serving()
	in := run.instance()
	srv.Stop()
	run.drain(true)
	await(t, "shards on their way", func() bool {
		for _, r := range in.all() {
			if !r.leaving.Load() {
				return false
			}
		}
		return true
	})
	run.cancel()
	select {
	case <-run.ended:
	case <-time.After(patience):
		t.Errorf("the node still runs after %s, want %s or little more", patience, releasePatience)
		srv.Restart()
	}
}

// TestLostShardsWaitQuietly: shards whose claims are gone wait for their handlers without
// keeping the supervisor, and with it Redis, busy.
func TestLostShardsWaitQuietly(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const shards = 8
	p := open(t, srv.URL(), shards)
	began, release := make(chan struct{}, shards), make(chan struct{})
	run := start(t, Config{Redis: srv.URL(), TTL: time.Minute, Concurrency: shards}, QueueConfig{Shards: shards, ShardConcurrency: 2}, func(context.Context, *lowkiq.Batch) error {
		began <- struct{}{}
		<-release
		return nil
	}).serving()
	in := run.instance()
	for i := range shards {
		p.push(numbered(idOf(p, i), 0, 1)...)
		receive(t, "a handler", began)
	}
	for _, r := range in.all() {
		raw(t, srv.Addr(), "DEL", fmt.Sprintf("lk:{default/orders/1/%d}:claim", r.shard.Index))
		r.run.Wake() // the other lane's pop is refused
	}
	await(t, "all claims are known to be gone", func() bool {
		for _, r := range in.all() {
			if fenced, _ := r.run.Fenced(); !fenced {
				return false
			}
		}
		return true
	})
	before := commands(t, srv.Addr())
	<-time.After(time.Second) // the window of the measurement
	if got := commands(t, srv.Addr()) - before; got > 100 {
		t.Errorf("%d commands in a second, want about none, not one after the other", got)
	}
	close(release)
	p.drained()
}

// idOf is an id of a shard.
func idOf(p *producer, shard int) string {
	for i := 0; ; i++ {
		if id := string(rune('a'+i%26)) + string(rune('0'+i/26)); p.Of(id).Index == shard {
			return id
		}
	}
}

// TestSubscriptions: a shard is listened to from the first attempt to claim it, also if it
// was news of its release that led to it, until it is given up.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	in := unstarted(t, redistest.Start(t).URL(), 2)
	c := newClaimer(in)
	shards := in.missing()
	if !c.claimFreed(t.Context(), shards[0].Shard) {
		t.Fatal("a free shard was not claimed")
	}
	if got := c.claimAll(t.Context(), in.missing()); got != 1 {
		t.Fatalf("claimed %d shards, want the other one", got)
	}
	if len(c.since) > 0 {
		t.Errorf("%d shards count as unowned", len(c.since))
	}
	await(t, "news of both shards arrive", func() bool { return listensTo(in, 2) })
	in.desired.Store(&desire{known: true, of: map[lowkiq.Shard]bool{shards[1].Shard: true}})
	c.giveUp()
	in.handovers.Wait()
	c.unsubscribe()
	if listensTo(in, 2) || !listensTo(in, 1) {
		t.Error("want the news of the shard that is left, and no other")
	}
	in.desired.Store(everything)
	if got := c.claimAll(t.Context(), in.missing()); got != 1 {
		t.Errorf("claimed %d shards, want the one given up", got)
	}
	await(t, "news of both shards arrive again", func() bool { return listensTo(in, 2) })
}

// listensTo reports whether the subscriptions of n shards are confirmed.
func listensTo(in *instance, n int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.heard) == n
}

// unstarted is an instance that listens, and leaves the rest to the test.
func unstarted(t *testing.T, url string, shards int) *instance {
	t.Helper()
	n, err := New(Config{Name: "n1", Redis: url, TTL: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders", Shards: shards}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	if err := n.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := newInstance(ctx, n, 1)
	if err := in.keeper.Take(ctx, func(ctx context.Context) error {
		_, err := n.leases.TakeLease(ctx, in.name, []byte("{}"), in.info(), n.cfg.TTL)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); in.listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		in.handBack()
		in.cancelIO()
		in.cancelWork(lowkiq.ErrShutdown)
		receive(t, "the listener's end", ended)
		n.client.Close()
		n.leases.Close()
	})
	return in
}
