package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose link to the keeper flaps hands over, and the new one plans: a node that
// dies is planned around, one that joins is planned for.
func TestLeaderThatFlapsYields(t *testing.T) {
	t.Parallel()
	for _, link := range []struct{ down, up time.Duration }{
		{2 * time.Second, 1500 * time.Millisecond}, {time.Second, 500 * time.Millisecond}, {4 * time.Second, time.Second},
	} {
		t.Run(fmt.Sprint(link.down, link.up), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 4, func(t *testing.T, w *world) {
				w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
				old := w.leader()
				others := slices.DeleteFunc(w.alive(), func(p *process) bool { return p == old })
				old.flap(link.down, link.up)
				others[0].kill()
				took := w.eventually(time.Minute, "the dead node's shards move", func() bool {
					return len(others[1].agent.Assignment().Owned(others[0].node.Name)) == 0
				})
				t.Logf("moved after %s", took)
				if limit := ttl + 5*time.Second; took > limit {
					t.Errorf("took %s, want at most %s", took, limit)
				}
				w.start("n9")
				w.eventually(15*time.Second, "a join", func() bool { return len(others[1].agent.Assignment().Owned("n9")) > 0 })
				if w.leader() == old {
					t.Error("the leader that flaps leads again")
				}
			})
		})
	}
}

// A leader cut off from the keeper hands over before its lease is gone, and its shards
// move as soon as it is.
func TestLeaderWithoutKeeperYields(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		old, id := w.leader(), w.record().ID
		other := w.alive()[slices.IndexFunc(w.alive(), func(p *process) bool { return p != old })]
		old.isolateFromKeeper()
		took := w.eventually(20*time.Second, "its shards move", func() bool { return len(other.agent.Assignment().Owned(old.node.Name)) == 0 })
		t.Logf("moved after %s", took)
		if limit := ttl + 2*time.Second; took > limit {
			t.Errorf("took %s, want at most %s", took, limit)
		}
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want still %d: no new group is needed", got, id)
		}
		w.with(func() { old.noKeeper = false })
		w.eventually(20*time.Second, "all take part again", w.agreed)
		if w.leader() == old {
			t.Error("the old leader took leadership back")
		}
	})
}

// When no process reaches the keeper, nothing is gained by another leader.
func TestNoYieldWhereNoneCouldPlan(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		leader := w.leader()
		term := leader.agent.server.raft.CurrentTerm()
		for _, p := range w.alive() {
			p.isolateFromKeeper()
		}
		time.Sleep(2 * time.Minute)
		if got := w.leader(); got != leader {
			t.Fatalf("got leader %v, want still %s", got, leader.boot)
		}
		if got := leader.agent.server.raft.CurrentTerm(); got != term {
			t.Errorf("got term %d, want still %d", got, term)
		}
		for _, p := range w.alive() {
			w.with(func() { p.noKeeper = false })
		}
		w.eventually(20*time.Second, "the cluster goes on", w.agreed)
	})
}

// A node that flaps alone still plans: what it can read counts together.
func TestOnlyNodeThatFlapsPlans(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, w *world) {
		leader := w.leader()
		other := w.alive()[slices.IndexFunc(w.alive(), func(p *process) bool { return p != leader })]
		leader.flap(1900*time.Millisecond, 1500*time.Millisecond)
		other.kill()
		took := w.eventually(time.Minute, "it takes all shards", func() bool { return len(leader.agent.Assignment().Owned(leader.node.Name)) == 80 })
		t.Logf("moved after %s", took)
		if took > 3*ttl {
			t.Errorf("took %s, want at most %s", took, 3*ttl)
		}
	})
}

func TestSuccessors(t *testing.T) {
	t.Parallel()
	var servers []raft.Server
	for _, id := range []string{"a#7.1", "b#7.1", "c#7.1", "d#7.1", "e#7.1"} {
		servers = append(servers, raft.Server{ID: raft.ServerID(id)})
	}
	servers[4].Suffrage = raft.Nonvoter
	able := func(server string) Peer { return Peer{RaftInfo: RaftInfo{Server: server, CanPlan: true}} }
	draining := able("c#7.1")
	draining.Draining = true
	gossiped := []Peer{able("a#7.1"), {RaftInfo: RaftInfo{Server: "b#7.1"}}, draining, able("d#7.1"), able("e#7.1"), able("x#7.1")}
	if got := findSuccessors(servers, gossiped, "a#7.1"); len(got) != 1 || got[0].ID != "d#7.1" {
		t.Errorf("got %v, want d alone: b is not able, c is draining, e has no vote", got)
	}
}
