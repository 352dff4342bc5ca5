package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

func TestMarks(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	peer := func(boot string, unready ...string) Peer {
		return Peer{Node: Node{Name: boot, Queues: []string{"q", "r"}, Unready: unready}, Boot: boot, Leased: true}
	}
	type look struct {
		at    time.Duration
		peers []Peer
		want  string // boots that are believed not to be ready for q
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"what a new leader finds counts at once", []look{{0, []Peer{peer("A", "q"), peer("B")}, "[A]"}}},
		{"news counts after a ttl", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A", "q"), peer("B")}, "[]"}, {ttl + 1, []Peer{peer("A", "q"), peer("B")}, "[A]"}}},
		{"an endpoint of all fails and comes back", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A", "q"), peer("B", "q")}, "[]"}, {2 * ttl, []Peer{peer("A", "q"), peer("B", "q")}, "[A B]"},
			{3 * ttl, []Peer{peer("A", "q"), peer("B")}, "[A B]"}, {4*ttl - 1, []Peer{peer("A"), peer("B")}, "[A B]"},
			{5*ttl - 1, []Peer{peer("A"), peer("B")}, "[]"}}},
		{"a mark that is gone at once", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A"), peer("B")}, "[]"}, {3 * ttl, []Peer{peer("A", "q"), peer("B")}, "[]"}}},
		{"no end of changes", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A", "q"), peer("B", "q")}, "[]"}, {2 * ttl, []Peer{peer("A", "q"), peer("B", "q", "r")}, "[A B]"}}},
		{"an endless row of them", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A", "q"), peer("B", "q")}, "[]"}, {2*ttl - 1, []Peer{peer("A", "q"), peer("C", "q")}, "[]"},
			{2*ttl + 1, []Peer{peer("A", "q"), peer("D", "q")}, "[A D]"}}},
		{"other queues are others", []look{
			{0, []Peer{peer("A"), peer("B")}, "[]"}, {1, []Peer{peer("A", "q"), peer("B")}, "[]"},
			{ttl, []Peer{peer("A", "q"), peer("B", "r")}, "[]"}, {ttl + 1, []Peer{peer("A", "q"), peer("B", "r")}, "[A]"}}},
		{"a queue that the process does not handle", []look{{0, []Peer{peer("A", "q", "z")}, "[A]"}}},
	} {
		m := marks{ttl: ttl}
		for i, l := range tt.looks {
			peers := slices.Clone(l.peers)
			m.observe(start.Add(l.at), peers)
			got := []string{}
			for _, p := range peers {
				if slices.Contains(p.Unready, "q") {
					got = append(got, p.Boot)
				}
				if slices.Contains(p.Unready, "z") {
					t.Errorf("%s: %s is marked for a queue that it does not handle", tt.name, p.Boot)
				}
			}
			if fmt.Sprint(got) != l.want {
				t.Errorf("%s: look %d: got %v believed not to be ready, want %s", tt.name, i, got, l.want)
			}
		}
		m.observe(start.Add(100*ttl), nil)
		m.observe(start.Add(102*ttl), nil)
		if len(m.queues) > 0 {
			t.Errorf("%s: once all are gone %d queues are remembered, want none", tt.name, len(m.queues))
		}
	}
}

// mark changes what a process says of its handlers.
func (p *process) mark(unready ...string) { p.world.with(func() { p.node.Unready = unready }) }

// has counts the shards of a queue that a node is given.
func (w *world) has(name, queue string) int {
	return w.alive()[0].agent.Assignment().Counts(queue)[name]
}

// A node whose handler is not ready loses the shards of that queue and no others, under any
// leader; it gets them back once it is ready. If no handler is ready, nothing moves.
func TestUnreadyHandler(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		broken := w.alive()[0]
		name := broken.node.Name
		if leader := w.leader(); leader == broken {
			broken = w.alive()[1]
			name = broken.node.Name
		}
		b := w.has(name, "b")
		broken.mark("a")
		took := w.eventually(5*ttl, "its shards of a are elsewhere", func() bool { return w.has(name, "a") == 0 })
		if took < ttl || took > 2*ttl {
			t.Errorf("moved after %s, want 1 to 2 ttl", took)
		}
		if got := w.has(name, "b"); got != b {
			t.Errorf("it has %d shards of b, want %d as before", got, b)
		}
		w.leader().kill()
		w.eventually(5*ttl, "another leader", func() bool { return w.leader() != nil })
		for end := time.Now().Add(4 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if got := w.has(name, "a"); got != 0 {
				t.Fatalf("the next leader gives it %d shards of a, want none", got)
			}
		}
		moved := w.alive()[0].agent.Assignment()
		for _, p := range w.alive() {
			p.mark("a")
		}
		time.Sleep(5 * ttl)
		if got := w.has(name, "a"); got != 20 {
			t.Errorf("all are marked: it has %d shards of a, want its half of 40, as without marks", got)
		}
		if next := w.alive()[0].agent.Assignment(); next.Counts("b")[name] != moved.Counts("b")[name] {
			t.Error("shards of b have moved, want those of a alone")
		}
		for _, p := range w.alive() {
			p.mark()
			time.Sleep(ttl / 2)
		}
		all := w.alive()[0].agent.Assignment()
		time.Sleep(5 * ttl)
		if next := w.alive()[0].agent.Assignment(); !next.SamePlaces(all) {
			t.Errorf("all are ready again, one after the other: moved %v, want nothing to move", all.Diff(next))
		}
	})
}

// A mark is no word against the only node that could serve a shard.
func TestUnreadyHandlerAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, w *world) {
		w.alive()[0].mark("a", "b")
		time.Sleep(5 * ttl)
		for i := range 40 {
			if owner := w.alive()[0].agent.Assignment().Owner(lowkiq.Shard{Queue: "a", Index: i}); owner != "n1" {
				t.Errorf("shard %d is owned by %q, want n1", i, owner)
			}
		}
	})
}
