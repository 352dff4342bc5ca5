package explore

import "testing"

// TestExploreObjects explores a counter that must not reach three, and must be able to return to zero.
func TestExploreObjects(t *testing.T) {
	t.Parallel()
	counter := func(limit int, back bool, max int) Model[int] {
		return Model[int]{
			Steps: func(n int) []Event[int] {
				events := []Event[int]{{What: "up", Next: min(n+1, limit), Fault: true}}
				if back {
					events = append(events, Event[int]{What: "back", Next: 0})
				}
				return events
			},
			Wrong: func(n int) string {
				if n == 3 {
					return "three"
				}
				return ""
			},
			Goals: []Goal[int]{{"zero", func(n int) bool { return n != 1 }, func(n int) bool { return n == 0 }}},
			Max:   max,
		}
	}
	tests := []struct {
		name  string
		limit int
		back  bool
		max   int
		want  string
		story int
	}{
		{"sound", 2, true, 0, "", 0},
		{"breaks the invariant", 9, true, 0, "three", 3},
		{"gets stuck", 2, false, 0, Stuck + ": zero", 3},
		{"gets stuck where it may", 1, false, 0, "", 0},
		{"has too many states", 2, true, 2, TooMany, 0},
	}
	for _, tt := range tests {
		if got := Explore(counter(tt.limit, tt.back, tt.max)); got.Wrong != tt.want || len(got.Story) != tt.story {
			t.Errorf("%s: got %q after %d events, want %q after %d", tt.name, got.Wrong, len(got.Story), tt.want, tt.story)
		}
	}
}

// TestExploreVisitsAll counts the states of a model whose table grows.
func TestExploreVisitsAll(t *testing.T) {
	t.Parallel()
	const side = 100
	grid := Model[[2]int]{
		Steps: func(s [2]int) []Event[[2]int] {
			return []Event[[2]int]{
				{By: 'A', What: "right", Next: [2]int{(s[0] + 1) % side, s[1]}}, {By: 'B', What: "up", Next: [2]int{s[0], (s[1] + 1) % side}},
			}
		},
		Wrong: func([2]int) string { return "" },
	}
	if got := Explore(grid); got.States != side*side || got.Wrong != "" {
		t.Errorf("got %d states and %q, want %d", got.States, got.Wrong, side*side)
	}
	grid.Wrong = func(s [2]int) string {
		if s == [2]int{1, 1} {
			return "there"
		}
		return ""
	}
	if got, want := Explore(grid).String(), "there:\n  A right\n  B up"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
