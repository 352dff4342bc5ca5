package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// movedFrom fails unless every change from before to after takes a shard from one
// of the names.
func movedFrom(t *testing.T, before, after *plan.Assignment, names ...string) {
	t.Helper()
	if others := movedElsewhere(before, after, names); len(others) > 0 {
		t.Errorf("moved %v, want only shards of %v to move", others, names)
	}
}

func movedElsewhere(before, after *plan.Assignment, names []string) []plan.Change {
	return slices.DeleteFunc(before.Diff(after), func(c plan.Change) bool { return slices.Contains(names, c.From) })
}

// TestStoryChecksObject shows that the two judges of these stories can fail.
func TestStoryChecksObject(t *testing.T) {
	t.Parallel()
	before := &plan.Assignment{Nodes: []string{"a", "b"}, Queues: []plan.Placement{{Queue: "q", Owners: []int32{0, 1}}}}
	after := &plan.Assignment{Nodes: []string{"a", "b"}, Queues: []plan.Placement{{Queue: "q", Owners: []int32{1, 0}}}}
	if got := movedElsewhere(before, after, []string{"a"}); len(got) != 1 || got[0].From != "b" {
		t.Errorf("got %v, want the shard of b", got)
	}
	w := &world{seen: map[plan.Generation][]byte{}}
	before.Generation, after.Generation = gen(1, 1), gen(1, 1)
	for i, a := range []*plan.Assignment{before, before, after} {
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
	return slices.DeleteFunc(w.alive(), func(p *process) bool { return !slices.Contains(voters, p.agent.RaftInfo().Server) })
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

// TestEvenAfterADeparture checks that a departure moves the shards of the departed node at once. Moves that would only
// make the others more even wait until no node has left for a while, or one joins.
func TestEvenAfterADeparture(t *testing.T) {
	t.Parallel()
	for _, joins := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			// n1 shares its ten queues with n2, so that n3 and n4 get nothing of what it has when
			// it departs.
			w := newWorld(t)
			w.queues = nil
			current := &plan.Assignment{Nodes: []string{"n1", "n2", "n3", "n4"}}
			var names []string
			for i := range int32(20) {
				names = append(names, fmt.Sprintf("q%02d", i))
				w.queues = append(w.queues, lowkiq.Queue{Name: names[i], Shards: 2})
				current.Queues = append(current.Queues, plan.Placement{Queue: names[i], Owners: []int32{i % 2 * 2, i%2*2 + 1}})
			}
			for _, name := range current.Nodes {
				w.start(name, func(p *process) { p.node.Queues, p.claims = names, current })
			}
			w.eventually(30*time.Second, "the cluster forms", w.agreed)
			time.Sleep(2 * maxWindows * time.Second)
			before := w.processes[0].agent.Assignment()
			if changes := current.Diff(before); len(changes) > 0 {
				t.Fatalf("at first: moved %v, want nothing to move", changes)
			}
			w.with(func() { w.processes[0].node.Draining = true })
			w.processes[0].agent.Wake()
			left := func() *plan.Assignment { return w.processes[1].agent.Assignment() }
			w.eventually(2*time.Second, "drain", func() bool { return len(left().Owned("n1")) == 0 })
			movedFrom(t, before, left(), "n1")
			drained := left()
			if joins {
				w.start("new", func(p *process) { p.node.Queues = names })
			}
			time.Sleep((maxWindows - 1) * time.Second)
			if moved := len(drained.Diff(left())); (moved > 0) != joins {
				t.Errorf("joins %v: %d moves within %s", joins, moved, (maxWindows-1)*time.Second)
			}
			w.eventually(2*time.Second, "even", func() bool { return len(drained.Diff(left())) > 0 })
			for _, n := range left().Nodes {
				if owned := len(left().Owned(n)); !joins && owned != 13 && owned != 14 || joins && owned != 10 {
					t.Errorf("joins %v: %s got %d shards", joins, n, owned)
				}
			}
		})
	}
}

// TestVanishedMajorityMovesNothing lets more than half of the nodes vanish from the view for a moment. Nothing moves.
func TestVanishedMajorityMovesNothing(t *testing.T) {
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

// TestNodeThatAppliesNothing checks that a node that acknowledges nothing keeps its shards and gets nothing new. Shards
// that the plan gave it since then go elsewhere.
func TestNodeThatAppliesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		before := w.alive()[0].agent.Assignment()
		behind := w.processes[2]
		if behind == w.leader() {
			behind = w.processes[1]
		}
		time.Sleep(ttl) // its acknowledgement is seen
		w.with(func() { behind.frozen = true })
		w.with(func() { w.queues = append(w.queues, lowkiq.Queue{Name: "c", Shards: 9}) })
		w.with(func() {
			for _, p := range w.processes {
				p.node.Queues = []string{"a", "b", "c"}
			}
		})
		name := behind.node.Name
		given := func() int { return count(w.leader().agent.Assignment(), "c", name) }
		w.eventually(5*time.Second, "a plan with the node", func() bool { return given() > 0 })
		w.eventually(5*ttl, "what it was given goes elsewhere", func() bool { return given() == 0 })
		after := w.leader().agent.Assignment()
		if got, want := len(after.Owned(name)), len(before.Owned(name)); got != want {
			t.Errorf("%s: got %d shards, want to keep %d", name, got, want)
		}
		w.with(func() { behind.frozen = false })
		w.eventually(5*ttl, "it has caught up", func() bool { return given() == 3 })
	})
}

// TestLargeCluster forms a large cluster, which survives its leader and then all of its voters.
func TestLargeCluster(t *testing.T) {
	t.Parallel()
	nodes := 30
	if testing.Short() {
		nodes = 15
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, lowkiq.Queue{Name: "a", Shards: 5000}, lowkiq.Queue{Name: "b", Shards: 5000})
		for i := range nodes {
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
