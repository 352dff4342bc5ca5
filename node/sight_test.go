package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// In a large cluster a node without a vote looks at its own lease alone, while a leader's
// mark is there; it follows the plan all the same, and looks at all leases once the leader
// is gone.
func TestNonvotersLookAway(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	handle := func(context.Context, *lowkiq.Batch) error { return nil }
	config := func(name string) Config {
		return Config{Name: name, Redis: url, Bind: "127.0.0.1:0", TTL: 3 * time.Second, fewNodes: -1}
	}
	rules := QueueConfig{Name: "orders", Shards: 8}
	first := start(t, config("n1"), rules, handle).serving()
	await(t, "the first node leads", func() bool { return first.joined.Load().agent.Status().Leading })
	second := start(t, config("n2"), rules, handle)
	owns := func(n int) func() bool {
		return func() bool { in := second.instance(); return in != nil && len(in.claims.All()) == n }
	}
	await(t, "each has its half", func() bool { return owns(4)() && len(first.instance().claims.All()) == 4 })
	c := second.joined.Load()
	await(t, "the second looks away", c.sight.away.Load)
	looked := c.sight.recent.Load()
	for range 3 {
		second.renew()
	}
	if c.sight.recent.Load() != looked || !c.sight.away.Load() {
		t.Error("the second has looked at all leases, want its own alone")
	}
	if first.joined.Load().sight.away.Load() {
		t.Error("the leader looks away")
	}
	addresses, err := c.addresses(t.Context())
	if err != nil || len(addresses) != 1 {
		t.Errorf("addresses of others: got %v %v, want the first node's", addresses, err)
	}
	first.stop()
	await(t, "the second has everything", owns(8))
	await(t, "the second looks at all leases and leads", func() bool { return !c.sight.away.Load() && c.agent.Status().Leading })
}

// Those whose lease is gone are asked for again now and then, and forgotten with their entry in the index.
func TestTheDeadAreNotAskedFor(t *testing.T) {
	t.Parallel()
	const again = time.Minute
	named := func(names ...string) (list []queue.Instance) {
		for _, name := range names {
			list = append(list, queue.Instance{Name: name, Identity: []byte("{}")})
		}
		return list
	}
	s := sight{index: named("a", "b", "c")}
	look := func(now time.Duration, leased ...string) string {
		asked, names := s.asked(now, again), ""
		for i := range asked {
			names += asked[i].Name
			if slices.Contains(leased, asked[i].Name) {
				asked[i].Lease = []byte("{}")
			}
		}
		s.found(now, asked)
		return names
	}
	for _, step := range []struct {
		at     time.Duration
		leased string
		want   string
	}{
		{0, "abc", "abc"},
		{time.Second, "ac", "abc"},
		{2 * time.Second, "ac", "ac"},
		{time.Second + again - 1, "ac", "ac"},
		{time.Second + again, "a", "abc"}, // and b has not come back
		{2*time.Second + again, "a", "a"},
		{time.Second + 2*again, "abc", "abc"}, // a failover shows what was before
		{2*time.Second + 2*again, "ab", "abc"},
		{3*time.Second + 2*again, "ab", "ab"},
	} {
		if got := look(step.at, strings.Split(step.leased, "")...); got != step.want {
			t.Errorf("at %s: asked for %s, want %s", step.at, got, step.want)
		}
	}
	s.index = named("a", "d")
	if got := look(4*time.Second+2*again, "a", "d"); got != "ad" || len(s.lost) != 0 {
		t.Errorf("asked for %s, lost %v; want a and d, and none", got, s.lost)
	}
}

// A node that looks away looks at all leases as soon as the leader's mark is missing, whatever Raft says of a leader.
func TestMissingMarkIsLookedAt(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	handle := func(context.Context, *lowkiq.Batch) error { return nil }
	config := func(name string) Config {
		return Config{Name: name, Redis: srv.URL(), Bind: "127.0.0.1:0", TTL: 3 * time.Second, fewNodes: -1}
	}
	rules := QueueConfig{Name: "orders", Shards: 8}
	first := start(t, config("n1"), rules, handle).serving()
	await(t, "the first node leads", func() bool { return first.joined.Load().agent.Status().Leading })
	c := start(t, config("n2"), rules, handle).serving().joined.Load()
	await(t, "the second looks away", c.sight.away.Load)
	looked := c.sight.recent.Load()
	await(t, "the second looks at all leases", func() bool {
		raw(t, srv.Addr(), "DEL", "lk:{default}:leader") // the leader writes it again
		return c.sight.recent.Load() != looked
	})
	if !first.joined.Load().agent.Status().Leading {
		t.Error("the first does not lead any more: the test shows nothing")
	}
	await(t, "the second looks away again", c.sight.away.Load)
}

// TestTwentyNodes: in a cluster of more than 16 nodes all have their share, and only the leader and the voters look at all
// leases.
func TestTwentyNodes(t *testing.T) {
	t.Parallel()
	const count, shards = 20, 40
	url := redistest.Start(t).URL()
	nodes := make([]*running, count)
	for i := range nodes {
		cfg := Config{Name: fmt.Sprintf("n%02d", i), Redis: url, Bind: "127.0.0.1:0", TTL: 6 * time.Second}
		nodes[i] = start(t, cfg, QueueConfig{Name: "orders", Shards: shards}, nothing)
	}
	began := time.Now()
	for i, n := range nodes {
		await(t, fmt.Sprintf("node %d has its share", i), func() bool { in := n.instance(); return in != nil && len(in.claims.All()) == shards/count })
	}
	t.Logf("all have their share after %s", time.Since(began))
	voters := func() (n int) {
		for _, node := range nodes {
			if c := node.joined.Load(); !c.sight.away.Load() {
				n++
			}
		}
		return n
	}
	await(t, "all but five look away", func() bool { return voters() == 5 })
	t.Logf("all but the voters look away after %s", time.Since(began))
	for _, n := range nodes {
		n.cancel() // at once: one after the other would take a while
	}
}
