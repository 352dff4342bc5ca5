package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestNonvotersLookAway checks that a node without a vote in a large cluster reads only its own lease while the mark of a
// leader exists. It follows the plan nevertheless, and reads all leases once the leader is gone.
func TestNonvotersLookAway(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	join := func(name string) *running {
		return startMember(t, Config{Name: name, Redis: url, fewNodes: -1}, 8)
	}
	first := join("n1").serving()
	await(t, "the first node leads", func() bool { return first.cluster.Load().Status().Leading })
	second := join("n2")
	awaitSpread(t, []int{4, 4}, first, second)
	c := second.cluster.Load()
	for tries := 1; ; tries++ {
		await(t, "the second looks away", c.LooksAway)
		_, looked, _ := c.RecentLeases()
		for range 3 {
			second.renew()
		}
		if _, now, _ := c.RecentLeases(); now == looked && c.LooksAway() {
			break
		}
		if tries == 5 { // a machine that stands still lets it lose the leader
			t.Fatal("the second has looked at all leases, five times, want its own alone")
		}
	}
	if first.cluster.Load().LooksAway() {
		t.Error("the leader looks away")
	}
	first.stop()
	awaitSpread(t, []int{8}, second)
	await(t, "the second looks at all leases and leads", func() bool { return !c.LooksAway() && c.Status().Leading })
}

// TestMissingMarkIsLookedAt checks that such a node reads all leases as soon as the leader's mark is missing, whatever Raft
// says about a leader.
func TestMissingMarkIsLookedAt(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	join := func(name string) *running {
		return startMember(t, Config{Name: name, Redis: srv.URL(), fewNodes: -1}, 8).serving()
	}
	first := join("n1")
	await(t, "the first node leads", func() bool { return first.cluster.Load().Status().Leading })
	c := join("n2").cluster.Load()
	for tries := 1; ; tries++ {
		await(t, "the second looks away", func() bool { return c.LooksAway() && first.cluster.Load().Status().Leading })
		_, looked, _ := c.RecentLeases()
		await(t, "the second looks at all leases", func() bool {
			raw(t, srv.Addr(), "DEL", "lk:{default}:leader") // the leader writes it again
			_, now, _ := c.RecentLeases()
			return now != looked
		})
		if first.cluster.Load().Status().Leading {
			break
		}
		if tries == 5 { // a busy machine ends a leadership by itself
			t.Fatal("the first did not lead any more, five times: the test shows nothing")
		}
	}
	await(t, "the second looks away again", c.LooksAway)
}

// TestTwentyNodes checks that all nodes have their share in a cluster of more than 16 nodes, and that only the leader and the
// voters read all leases.
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
