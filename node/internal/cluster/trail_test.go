package cluster

import (
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestTrail(t *testing.T) {
	t.Parallel()
	assigned := func(nodes string, owners ...int32) *plan.Assignment {
		return &plan.Assignment{Nodes: strings.Fields(nodes), Queues: []plan.Placement{{Queue: "orders", Owners: owners}}}
	}
	none, alone, both := &plan.Assignment{}, assigned("n1", 0, 0, 0), assigned("n1 n2", 0, 1, 0)
	for _, c := range []struct {
		name       string
		led, leads bool
		was, is    *plan.Assignment
		want       string
	}{
		{"the first plan of the first leader", false, true, none, alone, "leads n1, joined n1, shards moved 3"},
		{"a node that does not lead", false, false, alone, both, ""},
		{"a node that leads no more", true, false, alone, both, ""},
		{"another node", true, true, alone, both, "joined n2, shards moved 1"},
		{"the death of the leader", false, true, both, assigned("n2", 0, 0, 0), "leads n1, left n1, shards moved 2"},
		{"the same plan", true, true, both, both, ""},
	} {
		var got []string
		for _, line := range linesOf("n1", c.led, c.leads, c.was, c.is) {
			text := line.Action + " " + line.Target
			text += string(line.New)
			if got = append(got, text); line.Who.String() != "cluster" || line.Node != "n1" {
				t.Errorf("%s: %s is of %q on %s", c.name, text, line.Who, line.Node)
			}
		}
		if g := strings.Join(got, ", "); g != c.want {
			t.Errorf("%s: got %q, want %q", c.name, g, c.want)
		}
	}
}

// TestTrailIsBounded: while Redis is out of reach the oldest lines wait, and nothing waits for them.
func TestTrailIsBounded(t *testing.T) {
	t.Parallel()
	followed := &trail{node: "n1", applied: &plan.Assignment{}, pending: make(chan changes.Line, trailPending)}
	for i := range 10 * trailPending {
		followed.record(i%2 == 0, followed.applied)
	}
	if len(followed.pending) != trailPending {
		t.Errorf("got %d lines, want %d", len(followed.pending), trailPending)
	}
}
