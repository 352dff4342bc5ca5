package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestLives(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	l := crashWatch{ttl: ttl}
	var peers []Peer
	at := func(d time.Duration, what string, changes ...Peer) {
		t.Helper()
		for _, c := range changes {
			peers = slices.DeleteFunc(peers, func(p Peer) bool { return p.Boot == c.Boot })
			if c.Leased || c.RaftInfo.Server != "" {
				peers = append(peers, c)
			}
		}
		l.observe(start.Add(d), peers)
		got := ""
		for _, p := range peers {
			got += p.Boot
			if p.Recent {
				got += "y"
			}
			if p.Barred {
				got += "t"
			}
			if p.Deferred {
				got += "d"
			}
			got += " "
		}
		if got != what+" " {
			t.Errorf("after %s: got %q, want %q", d, got, what)
		}
		for i := range peers {
			peers[i].Recent, peers[i].Barred, peers[i].Deferred = false, false, false
		}
	}
	boot := func(name, boot string) Peer { return Peer{Node: plan.Node{Name: name}, Boot: boot, Leased: true} }
	gone := func(boot string) Peer { return Peer{Boot: boot} }
	at(0, "A B", boot("a", "A"), boot("b", "B"))
	at(1*ttl, "A", gone("B"))
	at(1*ttl+1, "A By", boot("b", "B")) // the same boot is back; B counts as new, A was no crash of its
	at(4*ttl, "A B", boot("b", "B"))
	at(5*ttl, "A B Cy", boot("c", "C"))
	at(6*ttl, "A B Cy", boot("c", "C"))
	at(7*ttl, "A B", gone("C")) // after a presence of 2 ttl: its lease was there for one of them
	at(7*ttl+1, "A B Dytd", boot("c", "D"))
	at(7*ttl+2, "A B Dytd Eyd", boot("e", "E"))
	at(9*ttl+1, "A B D Eyd")
	at(9*ttl+2, "A B D E")
	at(17*ttl, "A B D E Fy", boot("f", "F")) // another name: forgotten
	at(18*ttl, "A B E Fy Gytd D", boot("c", "G"), func() Peer { p := boot("c", "D"); p.Superseded = true; return p }())
}

// looper is a node that dies a while after each start.
type looper struct {
	life, pause time.Duration
	host        bool // on its host: the next process proves that the last one is dead
	names       bool // under a new name each time
}

func (l looper) String() string {
	return fmt.Sprintf("lives %s, starts after %s, host %v, new names %v", l.life, l.pause, l.host, l.names)
}

// loop starts and kills processes until the count is reached, and then lets one live.
func (w *world) loop(l looper, count int) {
	name := "loop"
	for i := range count {
		if l.names {
			name = fmt.Sprintf("loop%d", i)
		}
		p := w.start(name)
		if i == count-1 {
			return
		}
		if !w.sleep(l.life) {
			return
		}
		p.kill()
		w.with(func() { p.unleased = l.host })
		if !w.sleep(l.pause) {
			return
		}
	}
}

// loops are the nodes of a crash loop that the assignment gives shards.
func loops(a *plan.Assignment) (names []string) {
	for _, name := range a.Nodes {
		if name[0] == 'l' {
			names = append(names, name)
		}
	}
	return names
}

// A node that dies soon after each start loses its shards, and gets them back once it has
// lived for 2 ttl. Meanwhile the others keep their leader.
func TestCrashLoop(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	for _, life := range []time.Duration{400 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second} {
		for _, pause := range []time.Duration{0, time.Second} {
			if testing.Short() && pause > 0 {
				continue
			}
			for _, place := range []looper{{}, {host: true}, {names: true}, {names: true, host: true}} {
				for _, nodes := range []int{1, 2} {
					l := looper{life, pause, place.host, place.names}
					t.Run(fmt.Sprintf("%d nodes and one that %s", nodes, l), func(t *testing.T) {
						t.Parallel()
						inBubble(t, nodes, func(t *testing.T, w *world) { w.crashLoop(l, nodes) })
					})
				}
			}
		}
	}
}

func (w *world) crashLoop(l looper, nodes int) {
	t := w.t
	healthy := w.alive()
	first := w.start("loop")
	w.eventually(20*time.Second, "the node that will crash owns shards", w.agreed)
	w.eventually(30*time.Second, "voters", func() bool { return len(w.voting()) == votersFor(nodes+1) })
	time.Sleep(3 * ttl) // it is no recent process
	id := w.record().ID
	kept := first.agent.Status().Leading == false && nodes > 1 // two nodes have one vote
	leader := w.leader()
	first.kill()
	w.with(func() { first.unleased = l.host })
	died := time.Now()
	over := make(chan struct{})
	w.flaps.Go(func() { defer close(over); w.loop(l, 1+int(40*time.Second/(l.life+l.pause))) })
	var held time.Time // when one of the loop last owned a shard
	for open := true; open; {
		select {
		case <-over:
			open = false
		case <-time.After(50 * time.Millisecond):
		}
		if a := healthy[0].agent.Assignment(); len(loops(a)) > 0 || slices.ContainsFunc(a.Queues, func(q plan.Placement) bool { return slices.Contains(q.Owners, plan.None) }) {
			held = time.Now()
		}
		if got := w.leader(); kept && got != leader && time.Since(died) > time.Second {
			t.Fatalf("%s after the first death: leader %v, want still %s", time.Since(died), got, leader.boot)
		}
	}
	began := time.Now()
	t.Logf("the last time a plan gave the loop a shard: %s after the first death", held.Sub(died))
	// The owner's lease ends within 3 ttl. Once in some 20,000 runs the shards moved 0.85 s after that, and the cause is unknown.
	if limit := 4 * ttl; held.Sub(died) > limit {
		t.Errorf("the loop had shards until %s after the first death, want at most %s", held.Sub(died), limit)
	}
	if got := w.record().ID; kept && got != id {
		t.Errorf("got record %d, want still %d", got, id)
	}
	w.eventually(40*time.Second, "the last one owns shards", w.agreed)
	if took := time.Since(began); took < 2*ttl-time.Second || took > 3*ttl {
		t.Errorf("the one that lives owns shards after %s, want about 2 ttl", took)
	}
}

// A process that is killed and started once keeps its shards, however soon it is back.
func TestOneRestartMovesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		time.Sleep(4 * ttl)
		before := w.alive()[0].agent.Assignment()
		p := w.alive()[1]
		p.kill()
		again := w.start(p.node.Name)
		time.Sleep(3 * ttl)
		if after := again.agent.Assignment(); !after.SamePlaces(before) {
			t.Errorf("moved %v, want nothing to move", before.Diff(after))
		}
	})
}
