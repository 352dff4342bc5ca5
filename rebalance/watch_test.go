package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestStableSet(t *testing.T) {
	t.Parallel()
	all, most, few := []string{"a", "b", "c", "d"}, []string{"a", "b"}, []string{"a"}
	start := time.Unix(0, 0)
	tests := []struct {
		name  string
		steps []struct {
			at    time.Duration
			names []string
		}
		want []bool
	}{
		{"at first", steps(0, all, 1, all, 2, all), []bool{false, false, true}},
		{"a change starts again", steps(0, all, 1, most, 2, most, 3, most), []bool{false, false, false, true}},
		{"half may vanish", steps(0, all, 2, all, 3, most), []bool{false, true, true}},
		{"more than half may not", steps(0, all, 2, all, 3, few, 4, few, 5, few), []bool{false, true, false, false, true}},
		{"back again", steps(0, all, 2, all, 3, few, 4, all, 5, all, 6, all), []bool{false, true, false, false, false, true}},
	}
	for _, tt := range tests {
		s := stableSet{hold: 2 * time.Second}
		for i, step := range tt.steps {
			if got := s.observe(start.Add(step.at), step.names); got != tt.want[i] {
				t.Errorf("%s: step %d: got %v, want %v", tt.name, i, got, tt.want[i])
			}
		}
	}
}

type step = struct {
	at    time.Duration
	names []string
}

func steps(pairs ...any) []step {
	var all []step
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, step{time.Duration(pairs[i].(int)) * time.Second, pairs[i+1].([]string)})
	}
	return all
}

func TestJoinWindow(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	w := joinWindow{}
	check := func(what string, now time.Time, names, want []string) {
		t.Helper()
		if got := w.admit(now, names, []string{"old"}, setOf(names)); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("owners are planned for", at(0), []string{"a", "old"}, []string{"old"})
	check("a second one prolongs", at(0.9), []string{"a", "b", "old"}, []string{"old"})
	check("still waiting", at(1.8), []string{"a", "b", "old"}, []string{"old"})
	if got, want := w.nextDue(), at(1.9); !got.Equal(want) {
		t.Errorf("due: got %s, want %s", got, want)
	}
	check("stable", at(1.9), []string{"a", "b", "old"}, []string{"a", "b", "old"})
	check("deaths at once", at(2), []string{"a"}, []string{"a"})
	names := []string{"a"}
	for i := range 9 {
		names = append(names, fmt.Sprintf("x%d", i))
		if got := w.admit(at(3+0.9*float64(i)), names, nil, setOf(names)); (len(got) > 1) != (i >= 6) {
			t.Errorf("one join after the other: %d are planned for after %d came", len(got)-1, i+1)
		}
	}
}

// A node that does not follow the group's log waits for as long as that is so; others are
// not kept waiting by it, but for the first plan, and then not for ever.
func TestJoinWindowOfNodesThatDoNotFollow(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	follows := map[string]bool{"a": true}
	w := joinWindow{}
	names := []string{"a", "b"}
	for _, step := range []struct {
		name    string
		at      time.Duration
		follows string // the node that begins to
		want    []string
		open    bool
		due     time.Duration // 0 = none
	}{
		{"both wait", 0, "", nil, true, time.Second},
		{"one is planned for", time.Second, "", []string{"a"}, true, 0},
		{"the other follows nothing for long", 7 * time.Second, "", []string{"a"}, false, 0},
		{"then it follows, and others may be coming", 8 * time.Second, "b", []string{"a"}, false, 9 * time.Second},
		{"none was", 9 * time.Second, "", []string{"a", "b"}, false, 0},
	} {
		follows[step.follows] = true
		now := start.Add(step.at)
		got := w.admit(now, names, nil, follows)
		if !slices.Equal(got, step.want) || w.isOpen(now) != step.open {
			t.Errorf("%s: got %v, open %v; want %v, %v", step.name, got, w.isOpen(now), step.want, step.open)
		}
		if due := w.nextDue(); due.IsZero() != (step.due == 0) || step.due > 0 && !due.Equal(start.Add(step.due)) {
			t.Errorf("%s: got due %s, want after %s", step.name, due, step.due)
		}
	}
}

// When all that are planned for are leaving, no node waits: their shards would have no owner.
func TestJoinWindowEnds(t *testing.T) {
	t.Parallel()
	w := joinWindow{}
	names := []string{"new", "old"}
	view := View{Peers: []Peer{{Node: plan.Node{Name: "old", Draining: true}, Leased: true}, {Node: plan.Node{Name: "new"}, Leased: true}}}
	admitted := w.admit(time.Unix(0, 0), names, []string{"old"}, setOf(names))
	if !slices.Equal(admitted, []string{"old"}) || view.anyMayTake(admitted) {
		t.Fatalf("got %v, one takes shards: %v; want the leaving node alone", admitted, view.anyMayTake(admitted))
	}
	if got := w.admitAll(names); !view.anyMayTake(got) || !w.nextDue().IsZero() {
		t.Errorf("admitted all: got %v, want all, and none waiting", got)
	}
	if got := w.admit(time.Unix(0, 1), names, nil, setOf(names)); !slices.Equal(got, names) {
		t.Errorf("afterwards: got %v, want %v", got, names)
	}
}

func TestLaggards(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	l := laggards{patience: 2 * ttl}
	peer := func(index uint64) []Peer {
		return []Peer{{Boot: "b", RaftInfo: RaftInfo{Applied: gen(1, index)}}}
	}
	tests := []struct {
		name             string
		at               time.Duration
		applied, current uint64
		want             bool
	}{
		{"behind", 0, 4, 5, false},
		{"for long", 2 * ttl, 4, 5, true},
		{"progress counts", 2*ttl + 1, 5, 6, false},
		{"stuck again", 4*ttl + 1, 5, 7, true},
		{"caught up", 4*ttl + 2, 7, 7, false},
		{"a new plan", 4*ttl + 3, 7, 8, false},
	}
	for _, tt := range tests {
		if got := l.observe(start.Add(tt.at), peer(tt.applied), gen(1, tt.current))["b"]; got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	peer := func(boot string, unready ...string) Peer {
		return Peer{Node: plan.Node{Name: boot, Queues: []string{"q", "r"}, Unready: unready}, Boot: boot, Leased: true}
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
		m := readiness{ttl: ttl}
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
	return count(w.alive()[0].agent.Assignment(), queue, name)
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
		if next := w.alive()[0].agent.Assignment(); count(next, "b", name) != count(moved, "b", name) {
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

func TestFollowerWatch(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	follows := Peer{Leased: true, Boot: "h", RaftInfo: RaftInfo{Server: "h#7.1", Leader: "a#7.1"}}
	apart := Peer{Leased: true, Boot: "d", RaftInfo: RaftInfo{Server: "d#7.1"}}
	other := Peer{Leased: true, Boot: "o", RaftInfo: RaftInfo{Server: "o#6.1", Leader: "b#6.1"}}
	self := Peer{Leased: true, Boot: "a", RaftInfo: RaftInfo{Server: "a#7.1", Leader: "a#7.1"}}
	dead := Peer{Boot: "x", RaftInfo: RaftInfo{Server: "x#7.1"}}
	u := followerWatch{patience: 4 * ttl}
	for _, tt := range []struct {
		name  string
		at    time.Duration
		peers []Peer
		want  bool
	}{
		{"two processes, one does not follow", 0, []Peer{self, apart}, false},
		{"for ever", 9 * ttl, []Peer{self, apart}, false},
		{"two do not", 10 * ttl, []Peer{self, apart, other}, false},
		{"almost for the patience", 13*ttl - 1, []Peer{self, apart, other}, false},
		{"for the patience", 13 * ttl, []Peer{self, apart, other}, true},
		{"those are dead", 14 * ttl, []Peer{self, dead, dead, dead}, false},
		{"many start", 15 * ttl, []Peer{self, apart, apart, apart, apart, apart}, false},
		{"one more follows each time", 18 * ttl, []Peer{self, follows, apart, apart, apart, apart}, false},
		{"one more again", 21 * ttl, []Peer{self, follows, follows, apart, apart, apart, apart}, false},
		{"no more", 25 * ttl, []Peer{self, follows, follows, apart, apart, apart, apart}, true},
		{"half of them", 26 * ttl, []Peer{self, follows, follows, apart, apart, apart}, false},
	} {
		if got := u.hasLostMajority(start.Add(tt.at), tt.peers, "a#7.1"); got != tt.want {
			t.Errorf("%s: got lost %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A founder that no other process follows must not keep them without a leader: record and
// mark are its own, and all others would wait to be added by it for ever.
func TestUnfollowedFounderGivesUp(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, w *world) {
		founder, id := w.leader(), w.record().ID
		founder.isolate(true)
		second, third := w.start("n2"), w.start("n3")
		took := w.eventually(8*ttl, "the others found a group", func() bool {
			a := second.agent.Assignment()
			return w.record().ID > id && a.Generation == third.agent.Assignment().Generation && slices.Contains(a.Nodes, "n3")
		})
		if took < 4*ttl {
			t.Errorf("given up after %s, want patience of %s", took, 4*ttl)
		}
		founder.isolate(false)
		w.eventually(10*ttl, "the founder is one of them", w.agreed)
	})
}
