// Package explore finds out whether the processes of a protocol can break one of its promises, in any order of their steps.
//
// A [Model] is a set of states and the events that may happen in each. [Explore] visits all states, breadth first. So no
// story is shorter than the story that it reports.
package explore

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// Model describes a protocol.
type Model[S comparable] struct {
	Start S
	Steps func(S) []Event[S]
	Wrong func(S) string // the invariant that a state breaks, "" if none
	Goals []Goal[S]
	Max   int // maximum number of states, 0 for no maximum; beyond it the verdict is TooMany
}

// Event is something that may happen.
type Event[S comparable] struct {
	By    rune // the process that acts, 0 if What names it
	What  string
	Next  S
	Fault bool // a crash, a cut or a loss; no path to a goal may depend on it
}

// Goal is a set of states that every state must be able to reach without a further fault.
type Goal[S comparable] struct {
	Name string
	From func(S) bool // restricts the states that must be able to reach it; nil means all states
	Is   func(S) bool
}

// Verdict is the result of Explore.
type Verdict struct {
	States int
	Wrong  string   // the broken invariant, or Stuck or TooMany; "" if the model keeps its promises
	Story  []string // the events that lead to the wrong state
}

func (v Verdict) String() string { return v.Wrong + ":\n  " + strings.Join(v.Story, "\n  ") }

// Values of Verdict.Wrong beside the invariants of the model. The name of the goal follows Stuck.
const (
	Stuck   = "stuck: no way on without another fault"
	TooMany = "too many states"
)

// Explore visits the states of a model until a state is wrong. If none is, it looks for states that cannot reach a goal.
func Explore[S comparable](m Model[S]) Verdict {
	e := explorer[S]{Model: m, table: make([]int32, 1<<10), seed: maphash.MakeSeed()}
	e.addState(m.Start, -1, 0, "")
	for i := 0; i < len(e.states); i++ {
		if wrong := m.Wrong(e.states[i]); wrong != "" {
			return Verdict{len(e.states), wrong, e.tellStory(i)}
		}
		e.first = append(e.first, len(e.next))
		for _, event := range m.Steps(e.states[i]) {
			k := e.addState(event.Next, i, event.By, event.What)
			if !event.Fault && len(m.Goals) > 0 && k != i {
				e.next = append(e.next, int32(k))
			}
		}
		if m.Max > 0 && len(e.states) > m.Max {
			return Verdict{States: len(e.states), Wrong: TooMany}
		}
	}
	e.first = append(e.first, len(e.next))
	for _, goal := range m.Goals {
		if i := e.findDeadEnd(goal); i >= 0 {
			name := strings.TrimSuffix(Stuck+": "+goal.Name, ": ")
			return Verdict{len(e.states), name, append(e.tellStory(i), fmt.Sprintf("%+v", e.states[i]))}
		}
	}
	return Verdict{States: len(e.states)}
}

// explorer has the visited states. A state's number is its place in the order of visits.
type explorer[S comparable] struct {
	Model[S]
	states []S
	steps  []step
	first  []int   // by state: place of its first event in next
	next   []int32 // the states after events that are no faults
	table  []int32 // numbers of states plus 1, by hash; an open hash table, because a map would store each state again
	seed   maphash.Seed
}

// step is the event by which a state was first reached.
type step struct {
	from int32
	by   rune
	what string
}

// addState returns the number of a state. It adds the state if the state is new.
func (e *explorer[S]) addState(s S, from int, by rune, what string) int {
	if len(e.states)*3 > len(e.table)*2 {
		e.table = make([]int32, 2*len(e.table))
		for i, known := range e.states {
			slot, _ := e.findSlot(known)
			e.table[slot] = int32(i + 1)
		}
	}
	slot, k := e.findSlot(s)
	if k >= 0 {
		return k
	}
	e.states, e.steps = append(e.states, s), append(e.steps, step{int32(from), by, what})
	e.table[slot] = int32(len(e.states))
	return len(e.states) - 1
}

// findSlot returns the state's slot in the table and its number, or a free slot and -1.
func (e *explorer[S]) findSlot(s S) (slot, k int) {
	mask := len(e.table) - 1
	for slot = int(maphash.Comparable(e.seed, s)) & mask; ; slot = (slot + 1) & mask {
		k = int(e.table[slot]) - 1
		if k < 0 || e.states[k] == s {
			return slot, k
		}
	}
}

// tellStory returns the events that lead from the first state to state i.
func (e *explorer[S]) tellStory(i int) (lines []string) {
	for ; i > 0; i = int(e.steps[i].from) {
		line := e.steps[i].what
		if by := e.steps[i].by; by != 0 {
			line = fmt.Sprintf("%c %s", by, line)
		}
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	return lines
}

// findDeadEnd returns the first state from which the goal is out of reach, or -1. Most events lead to later states, so a few
// rounds in reverse order find all states that reach the goal.
func (e *explorer[S]) findDeadEnd(goal Goal[S]) int {
	reaches := make([]bool, len(e.states))
	for i, s := range e.states {
		reaches[i] = goal.Is(s)
	}
	for changed := true; changed; {
		changed = false
		for i := len(e.states) - 1; i >= 0; i-- {
			if reaches[i] {
				continue
			}
			for _, k := range e.next[e.first[i]:e.first[i+1]] {
				if reaches[k] {
					reaches[i], changed = true, true
					break
				}
			}
		}
	}
	for i, s := range e.states {
		if !reaches[i] && (goal.From == nil || goal.From(s)) {
			return i
		}
	}
	return -1
}
