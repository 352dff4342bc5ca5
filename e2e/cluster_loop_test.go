//go:build linux

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterCrashLoop kills a node, and then again and again a moment after it took a lease. The others have its
// shards soon and keep them until it has lived for 2 ttls. The leader stays (I4). The cluster does not know a process
// that dies before it has a lease. So each life counts from its lease, however slowly the machine starts a process.
func TestClusterCrashLoop(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const life, bound = 1200 * time.Millisecond, 20 * ttl / 6
	f := newFleet(t, settings{MaxCrashes: -1})
	f.upAll(names(3)...)
	f.balanced(patience)
	leader, voters, _ := f.parts()
	loops, stays := voters[0], []string{leader, voters[1]}
	first := f.crash(loops)
	lives := func(until time.Duration) {
		for judge.Now()-first < until {
			f.up(loops)
			f.lease(loops)
			<-time.After(life)
			f.crash(loops)
		}
	}
	lives(bound)
	f.balancedOver(slack, stays...)
	served := judge.Now()
	for tries := 1; ; tries++ { // a leader whose machine stands still is replaced, whoever crashes
		lives(judge.Now() - first + 5*life)
		status, err := f.status(leader)
		if err == nil && status.Leader == leader {
			break
		}
		if err != nil || tries == 3 {
			t.Errorf("got leader %q, %v, want still %s", status.Leader, err, leader)
			break
		}
		f.await("a leader", patience, func() bool {
			if known, err := f.status(stays[0]); err == nil {
				leader = known.Leader
			}
			return slices.Contains(stays, leader)
		})
	}
	for _, m := range f.watch.since(served) {
		if m.to == loops {
			t.Errorf("%s after the first death: got a move %+v, want the node that crashes to get no shard", m.at-first, m)
		}
	}
	began := judge.Now()
	f.up(loops)
	took := f.balanced(patience) - began
	t.Logf("the one that lives has shards after %s", took.Round(time.Millisecond))
	if took < 3*ttl/2 {
		t.Errorf("it had shards after %s, want about %s of life first", took, 2*ttl)
	}
	f.finish(judge.Config{MaxDuplicates: -1})
}
