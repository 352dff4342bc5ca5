package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
)

// movedFrom fails unless every change from before to after takes a shard from one
// of the names.
func movedFrom(t *testing.T, before, after *Assignment, names ...string) {
	t.Helper()
	if others := movedElsewhere(before, after, names); len(others) > 0 {
		t.Errorf("moved %v, want only shards of %v to move", others, names)
	}
}

func movedElsewhere(before, after *Assignment, names []string) []Change {
	return slices.DeleteFunc(before.Diff(after), func(c Change) bool { return slices.Contains(names, c.From) })
}

// TestStoryChecksObject shows that the two judges of these stories can fail.
func TestStoryChecksObject(t *testing.T) {
	t.Parallel()
	before := &Assignment{Nodes: []string{"a", "b"}, Queues: []Placement{{"q", []int32{0, 1}}}}
	after := &Assignment{Nodes: []string{"a", "b"}, Queues: []Placement{{"q", []int32{1, 0}}}}
	if got := movedElsewhere(before, after, []string{"a"}); len(got) != 1 || got[0].From != "b" {
		t.Errorf("got %v, want the shard of b", got)
	}
	w := &world{seen: map[Generation][]byte{}}
	before.Generation, after.Generation = Generation{1, 1}, Generation{1, 1}
	for i, a := range []*Assignment{before, before, after} {
		if err := w.note(a); (err != nil) != (i == 2) {
			t.Errorf("assignment %d of generation 1.1: got %v", i+1, err)
		}
	}
}

func (w *world) voters() []string { return w.record().Voters }

// generations returns how many assignments the processes have seen.
func (w *world) generations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

// voting returns the living processes that are voters by the record.
func (w *world) voting() []*process {
	voters := w.voters()
	return slices.DeleteFunc(w.alive(), func(p *process) bool { return !slices.Contains(voters, p.agent.Seat().Server) })
}

func TestClusterForms(t *testing.T) {
	t.Parallel()
	for nodes, voters := range map[int]int{1: 1, 2: 1, 3: 3, 5: 3, 8: 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			t.Parallel()
			inBubble(t, nodes, func(t *testing.T, w *world) {
				w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == voters })
				time.Sleep(time.Minute)
				if got := len(w.voters()); got != voters {
					t.Errorf("got %d voters a minute later, want %d", got, voters)
				}
			})
		})
	}
}

func TestJoinMovesTheLowerBound(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(t *testing.T, w *world) {
		before := w.processes[0].agent.Assignment()
		w.start("n5")
		w.eventually(10*time.Second, "join", w.agreed)
		changes := before.Diff(w.processes[0].agent.Assignment())
		if len(changes) != 16 {
			t.Errorf("got %d moves, want 16", len(changes))
		}
		for _, c := range changes {
			if c.To != "n5" {
				t.Errorf("moved %v, want moves to n5 only", c)
			}
		}
	})
}

func TestJoinsAtOnceAreOneAssignment(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, w *world) {
		before := w.generations()
		for i := range 3 {
			w.start(fmt.Sprintf("m%d", i))
			time.Sleep(300 * time.Millisecond)
		}
		w.eventually(10*time.Second, "joins", w.agreed)
		if got := w.generations() - before; got != 1 {
			t.Errorf("got %d assignments, want 1", got)
		}
	})
}

func TestDrainActsAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		before := w.processes[0].agent.Assignment()
		leader := w.leader()
		w.with(func() { leader.node.Draining = true })
		leader.agent.Wake()
		took := w.eventually(5*time.Second, "drain", func() bool {
			return len(w.processes[0].agent.Assignment().Owned(leader.node.Name)) == 0
		})
		if took > time.Second {
			t.Errorf("drain took %s, want at most 1s", took)
		}
		movedFrom(t, before, w.processes[0].agent.Assignment(), leader.node.Name)
		left := time.Now()
		leader.cancel()
		<-leader.done
		if took := time.Since(left); took > leaveTimeout {
			t.Errorf("leave took %s, want at most %s", took, leaveTimeout)
		}
		id := w.record().ID
		w.eventually(10*time.Second, "three voters again", func() bool { return len(w.voting()) == 3 && len(w.voters()) == 3 })
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want still %d", got, id)
		}
	})
}

func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
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

// TestLostCommit: what a leader cut off from its voters plans is lost, and it
// follows the others once it is back.
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

// TestCutOffOldHistory: a leader that slept through a rebirth drops its Raft and
// joins the new record, under a new server id.
func TestCutOffOldHistory(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		old, id := w.leader(), w.record().ID
		server := old.agent.Seat().Server
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
		if got := old.agent.Seat().Server; got == server || recordOf(got) != w.record().ID {
			t.Errorf("got server %s, want a new one under record %d", got, w.record().ID)
		}
	})
}

func TestRecordLost(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		id, before := w.record().ID, w.alive()[0].agent.Assignment()
		w.with(func() { w.raw, w.mark = nil, nil })
		w.eventually(5*time.Second, "the leader writes the record back", func() bool { return w.record() != nil })
		time.Sleep(3 * ttl)
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want %d back", got, id)
		}
		if after := w.alive()[0].agent.Assignment(); after != before {
			t.Errorf("got generation %s, want nothing to move after %s", after.Generation, before.Generation)
		}
	})
}

// TestRecordAndLeasesLost: Redis came back empty. Nothing moves while the leases
// come back one by one.
func TestRecordAndLeasesLost(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		before := w.alive()[0].agent.Assignment()
		leader := w.leader()
		w.with(func() {
			w.raw, w.mark = nil, nil
			for _, p := range w.processes {
				p.unleased = true
			}
		})
		time.Sleep(time.Second)
		w.with(func() { leader.unleased = false })
		for _, p := range w.processes {
			time.Sleep(900 * time.Millisecond)
			w.with(func() { p.unleased = false })
		}
		time.Sleep(3 * ttl)
		if after := w.alive()[0].agent.Assignment(); after != before {
			t.Errorf("got generation %s, want nothing to move after %s", after.Generation, before.Generation)
		}
	})
}

// TestLeaderWithoutLease: a leader that lost its lease plans nothing; after the mark
// has been missing long enough the others found a new group.
func TestLeaderWithoutLease(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		leader, id := w.leader(), w.record().ID
		w.with(func() { leader.unleased = true })
		took := w.eventually(6*ttl, "a new record", func() bool { return w.record().ID != id })
		if least := 2 * ttl; took < least {
			t.Errorf("new record after %s, want at least %s: a quorum of voters lives", took, least)
		}
		w.with(func() { leader.unleased = false })
		w.eventually(30*time.Second, "the cluster agrees", w.agreed)
	})
}

func TestFoundersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 4 {
			w.start(fmt.Sprintf("n%d", i), func(p *process) { p.lostReply = i == 0 })
		}
		w.eventually(30*time.Second, "one cluster", w.agreed)
		records := map[uint64]bool{}
		w.with(func() {
			for g := range w.seen {
				records[g.Record] = true
			}
		})
		if len(records) != 1 {
			t.Errorf("got assignments of records %v, want of one", records)
		}
	})
}

func TestLastOneDeletesTheRecord(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, w *world) {
		for i, p := range w.alive() {
			p.cancel()
			<-p.done
			if gone := w.record() == nil; gone != (i == 1) {
				t.Errorf("after %d left: record gone %v", i+1, gone)
			}
			w.eventually(40*time.Second, "those left agree", func() bool { return i == 1 || w.agreed() })
		}
	})
}

// TestVanishedMajorityIsDoubted: more than half of the nodes vanish from the view
// for a moment; nothing moves.
func TestVanishedMajorityIsDoubted(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		before, leader := w.alive()[0].agent.Assignment(), w.leader()
		lose := func(lost bool) {
			w.with(func() {
				for _, p := range w.processes {
					p.unleased = lost && p != leader
				}
			})
		}
		lose(true)
		time.Sleep(ttl/3 - 500*time.Millisecond)
		lose(false)
		time.Sleep(2 * ttl)
		if after := w.alive()[0].agent.Assignment(); after != before {
			t.Errorf("got generation %s, want nothing to move after %s", after.Generation, before.Generation)
		}
	})
}

// TestDeafNode: a node that acknowledges nothing keeps what it had and gets nothing
// new; what it was given since goes elsewhere.
func TestDeafNode(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		before := w.alive()[0].agent.Assignment()
		deaf := w.processes[2]
		if deaf == w.leader() {
			deaf = w.processes[1]
		}
		time.Sleep(ttl) // its acknowledgement is seen
		w.with(func() { deaf.frozen = true })
		w.with(func() { w.queues = append(w.queues, lowkiq.Queue{Name: "c", Shards: 9}) })
		w.with(func() {
			for _, p := range w.processes {
				p.node.Queues = []string{"a", "b", "c"}
			}
		})
		name := deaf.node.Name
		given := func() int { return w.leader().agent.Assignment().Counts("c")[name] }
		w.eventually(5*time.Second, "a plan with the node", func() bool { return given() > 0 })
		w.eventually(5*ttl, "what it was given goes elsewhere", func() bool { return given() == 0 })
		after := w.leader().agent.Assignment()
		if got, want := len(after.Owned(name)), len(before.Owned(name)); got != want {
			t.Errorf("%s: got %d shards, want to keep %d", name, got, want)
		}
		w.with(func() { deaf.frozen = false })
		w.eventually(5*ttl, "it hears again", func() bool { return given() == 3 })
	})
}

// TestHundredNodes: a large cluster forms, and survives its leader and then all of
// its voters.
func TestHundredNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, lowkiq.Queue{Name: "a", Shards: 5000}, lowkiq.Queue{Name: "b", Shards: 5000})
		for i := range 100 {
			w.start(fmt.Sprintf("n%03d", i))
		}
		w.eventually(20*time.Second, "the cluster forms", w.agreed)
		before, leader := w.alive()[0].agent.Assignment(), w.leader()
		leader.kill()
		w.eventually(15*time.Second, "the leader's shards move", w.agreed)
		after := w.alive()[0].agent.Assignment()
		movedFrom(t, before, after, leader.node.Name)
		var names []string
		for _, p := range w.voting() {
			names = append(names, p.node.Name)
			p.kill()
		}
		w.eventually(15*time.Second, "the voters' shards move", w.agreed)
		movedFrom(t, after, w.alive()[0].agent.Assignment(), names...)
	})
}

// TestAllLeaveAtOnce: nobody waits for a successor where there is none.
func TestAllLeaveAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		w.with(func() {
			for _, p := range w.processes {
				p.node.Draining = true
			}
		})
		start := time.Now()
		for _, p := range w.processes {
			p.cancel()
		}
		for _, p := range w.processes {
			<-p.done
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s, want at most 1s", took)
		}
	})
}
