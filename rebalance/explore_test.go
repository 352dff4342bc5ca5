package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A model is a set of states and what may happen in each. explore visits all of
// them, breadth first, so that what it finds wrong is a shortest story.
type model[S comparable] struct {
	start S
	steps func(S) []event[S]
	wrong func(S) string // the invariant a state breaks, "" if none
	// good states are those that every state must be able to reach without another
	// fault; nil = not checked.
	good func(S) bool
}

// event is something that may happen.
type event[S comparable] struct {
	by    int // the process: 0 is A
	what  string
	next  S
	fault bool // a crash, a cut, a loss: nothing that one may count on
}

// verdict is what explore found.
type verdict struct {
	states int
	wrong  string // "" if nothing
	story  []string
}

func (v verdict) String() string { return v.wrong + ":\n  " + strings.Join(v.story, "\n  ") }

const stuck = "stuck: no way on without another fault"

func explore[S comparable](m model[S]) verdict {
	type step struct {
		from int32
		by   int
		what string
	}
	index := map[S]int32{m.start: 0}
	states, steps := []S{m.start}, []step{{}} // by state: how it was first reached
	var edges [][2]int32                      // from, to: without faults
	story := func(i int32) (lines []string) {
		for ; i > 0; i = steps[i].from {
			lines = append(lines, fmt.Sprintf("%c %s", 'A'+steps[i].by, steps[i].what))
		}
		slices.Reverse(lines)
		return lines
	}
	for i := int32(0); int(i) < len(states); i++ {
		if wrong := m.wrong(states[i]); wrong != "" {
			return verdict{len(states), wrong, story(i)}
		}
		for _, e := range m.steps(states[i]) {
			k, ok := index[e.next]
			if !ok {
				k = int32(len(states))
				index[e.next] = k
				states, steps = append(states, e.next), append(steps, step{i, e.by, e.what})
			}
			if !e.fault && m.good != nil {
				edges = append(edges, [2]int32{i, k})
			}
		}
	}
	if i := deadEnd(m, states, edges); i >= 0 {
		return verdict{len(states), stuck, append(story(int32(i)), fmt.Sprintf("%+v", states[i]))}
	}
	return verdict{states: len(states)}
}

// deadEnd returns the first state from which no good one can be reached, or -1.
func deadEnd[S comparable](m model[S], states []S, edges [][2]int32) int {
	if m.good == nil {
		return -1
	}
	first := make([]int, len(states)+1) // by state: where its edges begin, once sorted by their end
	for _, e := range edges {
		first[e[1]+1]++
	}
	for i := range states {
		first[i+1] += first[i]
	}
	next, before := slices.Clone(first), make([]int32, len(edges))
	for _, e := range edges {
		before[next[e[1]]] = e[0]
		next[e[1]]++
	}
	reaches := make([]bool, len(states))
	var queue []int32
	visit := func(i int32) {
		if !reaches[i] {
			reaches[i] = true
			queue = append(queue, i)
		}
	}
	for i, s := range states {
		if m.good(s) {
			visit(int32(i))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, i := range before[first[queue[0]]:first[queue[0]+1]] {
			visit(i)
		}
	}
	return slices.Index(reaches, false)
}

// TestExploreObjects: a counter that must not reach three, and must be able to
// return to zero.
func TestExploreObjects(t *testing.T) {
	t.Parallel()
	counter := func(limit int, back bool) model[int] {
		return model[int]{
			steps: func(n int) []event[int] {
				events := []event[int]{{what: "up", next: min(n+1, limit), fault: true}}
				if back {
					events = append(events, event[int]{what: "back", next: 0})
				}
				return events
			},
			wrong: func(n int) string {
				if n >= 3 {
					return "three"
				}
				return ""
			},
			good: func(n int) bool { return n == 0 },
		}
	}
	tests := []struct {
		name  string
		limit int
		back  bool
		want  string
		story int
	}{
		{"sound", 2, true, "", 0},
		{"breaks the invariant", 9, true, "three", 3},
		{"gets stuck", 2, false, stuck, 2},
	}
	for _, tt := range tests {
		if got := explore(counter(tt.limit, tt.back)); got.wrong != tt.want || len(got.story) != tt.story {
			t.Errorf("%s: got %q after %d events, want %q after %d", tt.name, got.wrong, len(got.story), tt.want, tt.story)
		}
	}
}
