package runner

import (
	"testing"
	"time"
)

// TestRefusals checks when pops of ids in quarantine pause, because the groups of all of them have refused them.
func TestRefusals(t *testing.T) {
	t.Parallel()
	type step struct {
		id        string
		now, wait time.Duration
		pause     time.Duration // afterwards
	}
	const s = time.Second
	for name, steps := range map[string][]step{
		"an id that comes alone":         {{"a", 0, 10 * s, 0}, {"a", s, 9 * s, 0}, {"a", s, 9 * s, 10 * s}},
		"no refusal lasts an hour":       {{"a", 0, time.Hour, 0}, {"a", s, time.Hour, 0}, {"a", s, time.Hour, time.Minute}},
		"the first that may ask ends it": {{"a", 0, 10 * s, 0}, {"b", 0, 2 * s, 0}, {"a", s, 9 * s, 0}, {"b", s, s, 0}, {"a", s, 9 * s, 2 * s}},
		"an id that may ask comes first": {{"a", 0, 10 * s, 0}, {"a", s, 9 * s, 0}, {"b", s, 5 * s, 0}, {"a", s, 9 * s, 0}, {"b", s, 5 * s, 0}, {"a", s, 9 * s, 6 * s}},
		"an id whose time has come":      {{"a", 0, 2 * s, 0}, {"a", 3 * s, 2 * s, 0}, {"a", 4 * s, s, 0}, {"a", 4 * s, s, 5 * s}},
		"a time that is over is no end":  {{"a", 0, s, 0}, {"b", 0, 10 * s, 0}, {"b", 2 * s, 8 * s, 0}, {"b", 2 * s, 8 * s, 10 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var q quarantine
			for i, at := range steps {
				if q.refuse(at.id, at.now, at.wait); q.pause != at.pause {
					t.Fatalf("step %d: got a pause until %s, want %s", i, q.pause, at.pause)
				}
			}
			q.forgetRefusals()
			if q.refuse("a", 0, s); q.pause != 0 || q.early != 0 {
				t.Errorf("got %+v after all refusals were forgotten", q)
			}
		})
	}
}
