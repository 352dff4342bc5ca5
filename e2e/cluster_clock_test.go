//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestClusterClockJumps sets the wall clock of Redis's host an hour on, so that every lease ends at once, and then two
// hours back. No id runs twice at once, order holds, and nodes serve all shards again. After the jumps a dead node's
// shards move in time (I1, I3, I4).
func TestClusterClockJumps(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	r := rigAt(t, fleetShards, server.URL())
	r.redis = server
	f := fleetOf(r, settings{TTL: 2 * ttl}) // no lease is to end by itself
	f.upAll(names(5)...)
	f.balanced(patience)
	before := f.lease("n1").Instance
	clock.Set(time.Hour)
	jumped := judge.Now()
	f.await("every lease has ended and was taken anew", patience, func() bool { return f.lease("n1").Instance != before })
	f.t.Logf("clock of Redis an hour on: all shards held again %s later", (f.balanced(patience) - jumped).Round(time.Millisecond))
	f.goesOn()
	clock.Set(-time.Hour)
	jumped = judge.Now()
	f.goesOn()
	if moves := f.watch.since(jumped); len(moves) > 0 {
		t.Errorf("clock of Redis set back: got %d moves, want none: %+v", len(moves), moves[0])
	}
	died := f.crash("n3")
	f.t.Logf("node killed after that: its shards served elsewhere %s later", (f.balanced(2*f.settings.TTL+3*time.Second+slack) - died).Round(time.Millisecond))
	f.onlyScheduled()
	clock.Set(time.Hour) // what was pushed then is due again
	f.finish(judge.Config{MaxDuplicates: -1, MaxUncaused: -1})
}

// goesOn waits until jobs of every queue were handled from now on.
func (f *fleet) goesOn() {
	f.t.Helper()
	for i, q := range f.queues {
		before, more := int64(-1), int64(100)
		if i >= len(fleetQueues) {
			more = 5 // these have less to do
		}
		f.await("queue "+q.Name+" goes on", patience, func() bool {
			stats, err := f.statsOf(q)
			if err == nil && before < 0 {
				before = stats.Processed
			}
			return err == nil && stats.Processed > before+more
		})
	}
}

// onlyScheduled ends the flow and waits until no job is left but those that are not due.
func (f *fleet) onlyScheduled() {
	f.t.Helper()
	f.leftIs("all jobs but the scheduled ones are done", func(c protocol.Counts) int { return c.Total() - c.Scheduled })
}
