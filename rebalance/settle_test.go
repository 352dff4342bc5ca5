package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestSteady(t *testing.T) {
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
		s := steady{hold: 2 * time.Second}
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

func TestLobby(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	l := lobby{settle: time.Second}
	check := func(what string, now time.Time, names, want []string) {
		t.Helper()
		if got := l.admit(now, names, []string{"old"}, all); !slices.Equal(got, want) {
			t.Errorf("%s: got %v in, want %v", what, got, want)
		}
	}
	check("owners are in", at(0), []string{"a", "old"}, []string{"old"})
	check("a second one prolongs", at(0.9), []string{"a", "b", "old"}, []string{"old"})
	check("still waiting", at(1.8), []string{"a", "b", "old"}, []string{"old"})
	if got, want := l.due(), at(1.9); !got.Equal(want) {
		t.Errorf("due: got %s, want %s", got, want)
	}
	check("settled", at(1.9), []string{"a", "b", "old"}, []string{"a", "b", "old"})
	check("deaths at once", at(2), []string{"a"}, []string{"a"})
	names := []string{"a"}
	for i := range 9 {
		names = append(names, fmt.Sprintf("x%d", i))
		if got := l.admit(at(3+0.9*float64(i)), names, nil, all); (len(got) > 1) != (i >= 6) {
			t.Errorf("stream of joins: %d in after %d came", len(got)-1, i+1)
		}
	}
}

func all(string) bool { return true }

// A node that would not hear of its shards waits for as long as that is so; others are
// not kept waiting by it, but for the first plan, and then not for ever.
func TestLobbyWantsHearing(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	hears := map[string]bool{"a": true}
	l := lobby{settle: time.Second}
	names := []string{"a", "b"}
	for _, step := range []struct {
		name      string
		at        time.Duration
		hear      string // who begins to hear
		want      []string
		gathering bool
		due       time.Duration // 0 = none
	}{
		{"both wait", 0, "", nil, true, time.Second},
		{"one is in", time.Second, "", []string{"a"}, true, 0},
		{"the other hears nothing for long", 7 * time.Second, "", []string{"a"}, false, 0},
		{"then it hears, and others may be coming", 8 * time.Second, "b", []string{"a"}, false, 9 * time.Second},
		{"nobody was", 9 * time.Second, "", []string{"a", "b"}, false, 0},
	} {
		hears[step.hear] = true
		now := start.Add(step.at)
		got := l.admit(now, names, nil, func(name string) bool { return hears[name] })
		if !slices.Equal(got, step.want) || l.gathering(now) != step.gathering {
			t.Errorf("%s: got %v in, gathering %v; want %v, %v", step.name, got, l.gathering(now), step.want, step.gathering)
		}
		if due := l.due(); due.IsZero() != (step.due == 0) || step.due > 0 && !due.Equal(start.Add(step.due)) {
			t.Errorf("%s: got due %s, want after %s", step.name, due, step.due)
		}
	}
}

// When all that were in the lobby are leaving, nobody waits: their shards would have no
// owner.
func TestLobbyOpens(t *testing.T) {
	t.Parallel()
	l := lobby{settle: time.Second}
	names := []string{"new", "old"}
	view := View{Peers: []Peer{{Node: Node{Name: "old", Draining: true}, Leased: true}, {Node: Node{Name: "new"}, Leased: true}}}
	admitted := l.admit(time.Unix(0, 0), names, []string{"old"}, all)
	if !slices.Equal(admitted, []string{"old"}) || view.anyTakes(admitted) {
		t.Fatalf("got %v in, somebody takes shards: %v; want the leaving node alone", admitted, view.anyTakes(admitted))
	}
	if got := l.open(names); !view.anyTakes(got) || !l.due().IsZero() {
		t.Errorf("opened: got %v in, want all, and nobody waiting", got)
	}
	if got := l.admit(time.Unix(0, 1), names, nil, all); !slices.Equal(got, names) {
		t.Errorf("afterwards: got %v in, want %v", got, names)
	}
}

func TestLag(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	l := lag{patience: 2 * ttl}
	peer := func(index uint64) []Peer { return []Peer{{Boot: "b", Seat: Seat{Applied: Generation{1, index}}}} }
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
		if got := l.deaf(start.Add(tt.at), peer(tt.applied), Generation{1, tt.current})["b"]; got != tt.want {
			t.Errorf("%s: got deaf %v, want %v", tt.name, got, tt.want)
		}
	}
}
