package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// cutter cuts connections at random until the test stops it.
func cutter(t *testing.T, proxy *redistest.Proxy, seed uint64) (stop func()) {
	t.Helper()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	end := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for cuts := -1; ; {
			select {
			case <-end:
				proxy.CutReplyOf(func([]string) bool { return false })
				return
			case <-tick.C:
			}
			if now := proxy.Cuts(); now == cuts {
				continue // the last one is not spent yet
			} else {
				cuts = now
			}
			n := 1 + random.IntN(20)
			matches := func(words []string) bool {
				if strings.EqualFold(words[0], "evalsha") {
					n--
				}
				return n == 0
			}
			if random.IntN(3) == 0 {
				proxy.CutRequestOf(matches)
			} else {
				proxy.CutReplyOf(matches)
			}
		}
	})
	return sync.OnceFunc(func() { close(end); group.Wait() })
}

// TestLostReplies loses requests and answers at random for the whole run, also those of leases and claims. No job is lost, no
// state stays behind, and the order holds.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 8} {
		t.Run(fmt.Sprint(lanes, " lanes"), func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			proxy := redistest.NewProxy(t, srv.Addr())
			var stop func()
			const ids, each = 40, 15
			var fails atomic.Int64
			p := open(t, srv.URL(), 3)
			p.judged = newJudged(t)
			run := start(t, Config{Redis: proxy.URL(), TTL: 6 * time.Second, OnStart: func() error {
				stop = cutter(t, proxy, rand.Uint64())
				return nil
			}}, QueueConfig{
				Shards:    3,
				Rules:     rules.Rules{ShardConcurrency: lanes, BatchSize: 2},
				RetryFunc: func(int) time.Duration { return time.Millisecond },
			}, p.judged.around(func(context.Context, *lowkiq.Batch) error {
				if rand.IntN(10) == 0 && fails.Add(1) < 50 {
					return errBoom
				}
				return nil
			}))
			run.serving()
			defer stop()
			for n := range each {
				for i := range ids {
					p.push(numbered(fmt.Sprint("id", i), n, n+1)...)
				}
			}
			p.drained()
			t.Logf("%d connections were cut", proxy.Cuts())
			stop()
			run.stop()
			p.judged.check(t, -1, lanes)
			if owner, err := p.Shard(0).Owner(t.Context()); err != nil || owner.Instance != "" {
				t.Errorf("after the drain %q owns a shard, %v", owner.Instance, err)
			}
		})
	}
}

// TestLostLeaseReply checks that a lost answer to the request for a lease does not end the node, and that the node does not use
// a name twice.
func TestLostLeaseReply(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	p := open(t, srv.URL(), 2)
	p.push(numbered("a", 0, 3)...)
	proxy.CutReplyOf(func(words []string) bool {
		return strings.EqualFold(words[0], "evalsha") && len(words) > 3 && strings.Contains(words[3], ":lease:")
	})
	run := start(t, Config{Redis: proxy.URL()}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error { return nil })
	p.drained()
	if got := run.instance().name; !strings.HasSuffix(got, ".2") {
		t.Errorf("works as %s, want instance 2", got)
	}
	if proxy.Cuts() != 1 {
		t.Error("nothing was cut")
	}
}

// TestForgetfulRedis lets Redis fall back to an earlier state, as after a failover to a replica that lagged, so that pops and
// acks are forgotten. The shard goes on without a restart.
func TestForgetfulRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	held, release := make(chan struct{}, 2), make(chan struct{})
	p.judged = newJudged(t)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, p.judged.around(func(_ context.Context, b *lowkiq.Batch) error {
		if b.Jobs[0].ID == "held" {
			held <- struct{}{}
			<-release
		}
		return nil
	}))
	run.serving()
	p.push(numbered("held", 0, 1)...)
	receive(t, "the handler", held)
	raw(t, srv.Addr(), "SAVE")
	close(release)
	for i := range 5 {
		p.push(numbered("after", i, i+1)...)
		p.drained()
	}
	srv.Kill()
	srv.Restart()
	receive(t, "what came back is handled again", held)
	p.drained()
	p.push(numbered("after", 5, 6)...)
	p.drained()
	p.judged.check(t, -1, 1)
	if got := run.instance().name; !strings.HasSuffix(got, ".1") {
		t.Errorf("works as %s: its lease was to survive", got)
	}
}

// TestTwoNodes checks that a second node waits, and takes over as soon as the first node has drained.
func TestTwoNodes(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	srv := redistest.Start(t)
	const shards = 8
	p := open(t, srv.URL(), shards)
	p.judged = newJudged(t)
	handle := p.judged.around(nothing)
	first := start(t, Config{Name: "n1", Redis: srv.URL()}, QueueConfig{Shards: shards}, handle).serving()
	second := start(t, Config{Name: "n2", Redis: srv.URL()}, QueueConfig{Shards: shards}, handle).serving()
	if got := second.owns(); got != 0 {
		t.Errorf("the second node has %d shards, want 0", got)
	}
	const each = 40
	for n := range each {
		if n == each/2 {
			first.cancel()
		}
		for i := range 20 {
			p.push(numbered(fmt.Sprint("id", i), n, n+1)...)
		}
	}
	p.drained()
	second.serving()
	p.judged.check(t, 0, 1) // a drain loses nothing
	second.stop()
	if instances, err := p.client.Leases().All(t.Context()); err != nil || len(instances) != 0 {
		t.Errorf("%d instances have an entry in the index, %v; want none after two drains", len(instances), err)
	}
}
