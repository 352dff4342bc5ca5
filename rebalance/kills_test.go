package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What dies or is cut off, and how the cluster returns.

func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 && w.record().Fewer == nil })
		leader, id := w.leader(), w.record().ID
		before := leader.agent.Assignment()
		leader.kill()
		took := w.eventually(30*time.Second, "the shards move", w.agreed)
		t.Logf("agreed %s after the kill", took)
		if limit := ttl + 3*time.Second; took > limit {
			t.Errorf("took %s, want at most %s", took, limit)
		}
		movedFrom(t, before, w.alive()[0].agent.Assignment(), leader.node.Name)
		w.eventually(20*time.Second, "three living voters", func() bool { return len(w.voting()) == 3 && len(w.voters()) == 3 })
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want still %d: two of three voters live", got, id)
		}
	})
}

// TestLeaderKilledAmidAStep kills the leader after the record announced a third voter, and before Raft added it. Two of
// three voters live, but Raft knows two, and the remaining one elects no leader. So the nodes found another group,
// soon.
func TestLeaderKilledAmidAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var killed time.Time
		dies := func(next *record) bool {
			if killed.IsZero() && next != nil && len(next.Voters) == 3 {
				killed = time.Now()
				return true
			}
			return false
		}
		for i := range 5 {
			w.start(fmt.Sprintf("n%d", i+1), func(p *process) { p.dies = dies })
		}
		w.eventually(20*time.Second, "the leader is killed", func() bool { return len(w.alive()) == 4 })
		id := w.record().ID
		w.eventually(30*time.Second, "the others go on", func() bool { return w.record().ID != id && w.agreed() })
		took := time.Since(killed)
		t.Logf("agreed %s after the kill", took)
		if limit := 2*ttl + 2*time.Second; took > limit {
			t.Errorf("took %s, want at most %s", took, limit)
		}
		w.eventually(20*time.Second, "three living voters", func() bool { return len(w.voting()) == 3 && len(w.voters()) == 3 })
	})
}

// TestLeaderThatCommitsNothing lets the heartbeats of a leader pass, but not its entries. It stays the leader, and Raft
// answers none of its requests to add a server or to commit a plan. Its turns end all the same, and another node leads.
func TestLeaderThatCommitsNothing(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"a server", "a plan"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 4, func(t *testing.T, w *world) {
				w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 && w.record().Fewer == nil })
				old, id := w.leader(), w.record().ID
				others := slices.DeleteFunc(w.alive(), func(p *process) bool { return p == old })
				w.with(func() {
					old.stuck = true
					if what == "a plan" {
						others[0].node.Draining = true
					}
				})
				if what == "a server" {
					w.start("n5")
				}
				took := w.eventually(time.Minute, "it is done", func() bool {
					a := others[1].agent.Assignment()
					return what == "a plan" && len(a.Owned(others[0].node.Name)) == 0 || what == "a server" && len(a.Owned("n5")) > 0
				})
				t.Logf("done after %s", took)
				if limit := (stuckTTLs + 2) * ttl; took > limit {
					t.Errorf("took %s, want at most %s", took, limit)
				}
				if got := w.record().ID; got != id {
					t.Errorf("got record %d, want still %d: the others are a quorum", got, id)
				}
				w.with(func() { old.stuck, others[0].node.Draining = false, false })
				w.eventually(5*ttl, "all take part again", w.agreed)
			})
		})
	}
}

func TestRebirth(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		nodes int
		kill  func(w *world) []*process
	}{
		{"two of three voters", 5, func(w *world) []*process { return w.voting()[:2] }},
		{"all voters", 5, (*world).voting},
		{"all but one", 5, func(w *world) []*process { return w.voting()[1:] }},
		{"all but one other", 5, func(w *world) []*process {
			voters := w.voting()
			return slices.DeleteFunc(w.alive(), func(p *process) bool { return p == voters[0] })
		}},
		{"the first of two", 2, func(w *world) []*process { return w.alive()[:1] }},
		{"the second of two", 2, func(w *world) []*process { return w.alive()[1:] }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, tt.nodes, func(t *testing.T, w *world) {
				w.eventually(20*time.Second, "voters", func() bool { return len(w.voting()) == votersFor(tt.nodes) })
				before := w.alive()[0].agent.Assignment()
				var names []string
				for _, p := range tt.kill(w) {
					names = append(names, p.node.Name)
					p.kill()
				}
				took := w.eventually(40*time.Second, "the cluster returns", w.agreed)
				t.Logf("agreed %s after the kill", took)
				if limit := 15 * time.Second; took > limit {
					t.Errorf("took %s, want at most %s", took, limit)
				}
				movedFrom(t, before, w.alive()[0].agent.Assignment(), names...)
			})
		})
	}
}

func TestAllKilledAndRestarted(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		id := w.record().ID
		before := w.alive()[0].agent.Assignment()
		for _, p := range w.alive() {
			p.kill()
		}
		for i := range 3 {
			w.start(fmt.Sprintf("n%d", i+1), func(p *process) { p.claims = before })
		}
		took := w.eventually(30*time.Second, "the cluster returns", w.agreed)
		t.Logf("agreed %s after the restart", took)
		if got := w.record().ID; got <= id {
			t.Errorf("got record %d, want one above %d", got, id)
		}
		if after := w.alive()[0].agent.Assignment(); !after.SamePlaces(before) {
			t.Errorf("moved %v, want every node to keep what the claims say", before.Diff(after))
		}
	})
}

// TestLostCommit checks that the plans of a leader that is cut off from its voters are lost. It follows the others once
// it is back.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		old, id := w.leader(), w.record().ID
		before := old.agent.Assignment()
		old.isolate(true)
		w.with(func() { w.processes[4].node.Draining = true }) // something to plan
		old.agent.Wake()
		w.eventually(15*time.Second, "another leader", func() bool {
			p := w.leader()
			return p != nil && p != old && p.agent.Assignment().Generation.Compare(before.Generation) > 0
		})
		if got := old.agent.Assignment(); got != before {
			t.Errorf("the old leader works by %s, want still %s", got.Generation, before.Generation)
		}
		old.isolate(false)
		w.eventually(15*time.Second, "the old leader follows", func() bool {
			return old.agent.Assignment().Generation == w.leader().agent.Assignment().Generation
		})
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want still %d", got, id)
		}
	})
}

// TestCutOffOldHistory checks that a leader that slept through a rebirth drops its Raft and joins the new record, under
// a new server id.
func TestCutOffOldHistory(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		old, id := w.leader(), w.record().ID
		server := old.agent.RaftInfo().Server
		for _, p := range w.alive() {
			if p != old {
				p.kill()
			}
		}
		old.isolateFromKeeper()
		fresh := w.start("fresh")
		w.eventually(40*time.Second, "a new record", func() bool {
			return w.record().ID > id && len(fresh.agent.Assignment().Nodes) == 1
		})
		w.with(func() { old.noKeeper = false })
		w.eventually(20*time.Second, "both work by the new record", w.agreed)
		if got := old.agent.RaftInfo().Server; got == server || recordOf(got) != w.record().ID {
			t.Errorf("got server %s, want a new one under record %d", got, w.record().ID)
		}
	})
}

// A process of an older release that cannot read what the group writes leaves the group:
// it has no vote, leads no group, follows no plan that it would only half know, and says so.
// Once it can read again it comes back.
func TestUnreadEntry(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(30*time.Second, "three voters", func() bool { return len(w.voters()) == 3 })
		old := w.alive()[slices.IndexFunc(w.alive(), func(p *process) bool { return p != w.leader() })]
		was := old.agent.Assignment()
		old.older.Store(true)
		w.start("n4")
		w.eventually(10*time.Second, "it leaves the group", func() bool { return old.agent.RaftInfo().Server == "" })
		if got := old.agent.Status().Unread; !strings.Contains(got, "unknown command 99") {
			t.Errorf("its status says %q, want what it could not read", got)
		}
		w.eventually(60*time.Second, "the others go on with another voter", func() bool {
			voters := w.voters()
			return len(voters) == 3 && !slices.ContainsFunc(voters, func(id string) bool { return bootOf(id) == old.boot })
		})
		w.leader().kill()
		w.eventually(60*time.Second, "another one leads", func() bool { return w.leader() != nil })
		for end := time.Now().Add(2 * outsideTTLs * ttl); time.Now().Before(end); time.Sleep(ttl / 6) {
			if status := old.agent.Status(); status.Leading || slices.ContainsFunc(w.voters(), func(id string) bool { return bootOf(id) == old.boot }) {
				t.Fatalf("it leads or votes: %+v, voters %v", status, w.voters())
			}
		}
		if old.agent.Assignment() != was {
			t.Error("it works by another assignment, want the last one that it could read")
		}
		old.older.Store(false)
		w.eventually((outsideTTLs+5)*ttl, "it is back", func() bool { return w.agreed() && old.agent.Status().Unread == "" })
	})
}
