package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
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
	await(t, "the first node leads", func() bool { return first.joined.Load().Status().Leading })
	second := start(t, config("n2"), rules, handle)
	owns := func(n int) func() bool {
		return func() bool { in := second.instance(); return in != nil && len(in.claims.All()) == n }
	}
	await(t, "each has its half", func() bool { return owns(4)() && len(first.instance().claims.All()) == 4 })
	c := second.joined.Load()
	await(t, "the second looks away", c.LooksAway)
	_, looked, _ := c.Live()
	for range 3 {
		second.renew()
	}
	if _, now, _ := c.Live(); now != looked || !c.LooksAway() {
		t.Error("the second has looked at all leases, want its own alone")
	}
	if first.joined.Load().LooksAway() {
		t.Error("the leader looks away")
	}
	first.stop()
	await(t, "the second has everything", owns(8))
	await(t, "the second looks at all leases and leads", func() bool { return !c.LooksAway() && c.Status().Leading })
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
	await(t, "the first node leads", func() bool { return first.joined.Load().Status().Leading })
	c := start(t, config("n2"), rules, handle).serving().joined.Load()
	await(t, "the second looks away", c.LooksAway)
	_, looked, _ := c.Live()
	await(t, "the second looks at all leases", func() bool {
		raw(t, srv.Addr(), "DEL", "lk:{default}:leader") // the leader writes it again
		_, now, _ := c.Live()
		return now != looked
	})
	if !first.joined.Load().Status().Leading {
		t.Error("the first does not lead any more: the test shows nothing")
	}
	await(t, "the second looks away again", c.LooksAway)
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
			if c := node.joined.Load(); !c.LooksAway() {
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
