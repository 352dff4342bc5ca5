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
	name  string
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
	index := map[S]int{m.start: 0}
	states, from, how := []S{m.start}, []int{-1}, []string{"start"}
	backward := [][]int{nil}
	story := func(i int) (names []string) {
		for ; i > 0; i = from[i] {
			names = append(names, how[i])
		}
		slices.Reverse(names)
		return names
	}
	for i := 0; i < len(states); i++ {
		if wrong := m.wrong(states[i]); wrong != "" {
			return verdict{len(states), wrong, story(i)}
		}
		for _, e := range m.steps(states[i]) {
			k, ok := index[e.next]
			if !ok {
				k = len(states)
				index[e.next] = k
				states, from, how = append(states, e.next), append(from, i), append(how, e.name)
				backward = append(backward, nil)
			}
			if !e.fault {
				backward[k] = append(backward[k], i)
			}
		}
	}
	if i := deadEnd(m, states, backward); i >= 0 {
		return verdict{len(states), stuck, append(story(i), fmt.Sprintf("%+v", states[i]))}
	}
	return verdict{states: len(states)}
}

// deadEnd returns the first state from which no good one can be reached, or -1.
func deadEnd[S comparable](m model[S], states []S, backward [][]int) int {
	if m.good == nil {
		return -1
	}
	reaches := make([]bool, len(states))
	var queue []int
	for i, s := range states {
		if m.good(s) {
			reaches[i] = true
			queue = append(queue, i)
		}
	}
	for len(queue) > 0 {
		k := queue[0]
		queue = queue[1:]
		for _, i := range backward[k] {
			if !reaches[i] {
				reaches[i] = true
				queue = append(queue, i)
			}
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
				events := []event[int]{{name: "up", next: min(n+1, limit), fault: true}}
				if back {
					events = append(events, event[int]{name: "back", next: 0})
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
