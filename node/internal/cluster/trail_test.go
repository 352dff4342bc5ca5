package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// A change that Redis refuses is logged at growing intervals.
func TestRefusedChange(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	now := time.Duration(0)
	c := &Cluster{cfg: Config{
		TTL: 6 * time.Second, Now: func() time.Duration { return now }, Log: slog.New(slog.NewTextHandler(&log, nil)),
		WriteChange: func(context.Context, changes.Line) error { return errors.New("OOM") }, OutOfReach: func(string, error) bool { return false },
	}}
	for ; now < 10*time.Minute; now += 3 * time.Second {
		if c.writeLine(t.Context(), changes.Line{Action: "joined", Target: "n1"}) == nil {
			t.Fatal("got no error, want that of Redis")
		}
	}
	if lines := strings.Count(log.String(), "change not logged"); lines < 2 || lines > 10 || !strings.Contains(log.String(), "left_out=") {
		t.Errorf("got %d lines, want 2 to 10:\n%s", lines, log.String())
	}
}

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

// TestTrailIsBounded checks that the oldest lines wait while Redis is out of reach, and that nothing waits for them.
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
