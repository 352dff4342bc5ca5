package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// In a large cluster a node without a vote looks at its own lease alone, while a leader's
// mark is there; it follows the plan all the same, and looks at all leases once the leader
// is gone.
func TestNonvotersLookAway(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	join := func(name string) *running {
		return startMember(t, Config{Name: name, Redis: url, TTL: shortTTL, fewNodes: -1}, 8)
	}
	first := join("n1").serving()
	await(t, "the first node leads", func() bool { return first.cluster.Load().Status().Leading })
	second := join("n2")
	awaitSpread(t, []int{4, 4}, first, second)
	c := second.cluster.Load()
	await(t, "the second looks away", c.LooksAway)
	_, looked, _ := c.Live()
	for range 3 {
		second.renew()
	}
	if _, now, _ := c.Live(); now != looked || !c.LooksAway() {
		t.Error("the second has looked at all leases, want its own alone")
	}
	if first.cluster.Load().LooksAway() {
		t.Error("the leader looks away")
	}
	first.stop()
	awaitSpread(t, []int{8}, second)
	await(t, "the second looks at all leases and leads", func() bool { return !c.LooksAway() && c.Status().Leading })
}

// A node that looks away looks at all leases as soon as the leader's mark is missing, whatever Raft
// says of a leader.
func TestMissingMarkIsLookedAt(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	join := func(name string) *running {
		return startMember(t, Config{Name: name, Redis: srv.URL(), TTL: shortTTL, fewNodes: -1}, 8).serving()
	}
	first := join("n1")
	await(t, "the first node leads", func() bool { return first.cluster.Load().Status().Leading })
	c := join("n2").cluster.Load()
	await(t, "the second looks away", c.LooksAway)
	_, looked, _ := c.Live()
	await(t, "the second looks at all leases", func() bool {
		raw(t, srv.Addr(), "DEL", "lk:{default}:leader") // the leader writes it again
		_, now, _ := c.Live()
		return now != looked
	})
	if !first.cluster.Load().Status().Leading {
		t.Error("the first does not lead any more: the test shows nothing")
	}
	await(t, "the second looks away again", c.LooksAway)
}

// TestTwentyNodes: in a cluster of more than 16 nodes all have their share, and only the leader and
// the voters look at all leases.
func TestTwentyNodes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const count, shards = 20, 40
	url := redistest.Start(t).URL()
	nodes := make([]*running, count)
	for i := range nodes {
		nodes[i] = startMember(t, Config{Name: fmt.Sprintf("n%02d", i), Redis: url}, shards)
	}
	began := time.Now()
	for i, n := range nodes {
		await(t, fmt.Sprintf("node %d has its share", i), func() bool { return n.owns() == shards/count })
	}
	t.Logf("all have their share after %s", time.Since(began))
	voters := func() (n int) {
		for _, node := range nodes {
			if c := node.cluster.Load(); !c.LooksAway() {
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
