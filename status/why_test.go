package status

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// waits is a job that was popped 12 s ago and is at a stage.
func waits(at protocol.Stage, now time.Time) func(*Facts) {
	return func(f *Facts) {
		f.Job.State, f.Job.Flight, f.Job.Since, f.Where = browse.StateInFlight, 7, now.Add(-12*time.Second), protocol.Whereabouts{Stage: at}
	}
}

// inGroup is a job that is due in a second, as its group was at its limit.
func inGroup(f *Facts, now time.Time) {
	f.Job.State, f.Job.PerformAt, f.Group = browse.StateScheduled, now.Add(time.Second), "acme:"
	f.InGroup = protocol.Group{Again: now.Add(2 * time.Second)}
	f.GroupLimit = rules.Limit{Concurrency: 2, Rate: rules.Rate{N: 10, Per: time.Second}}
}

// TestJudge checks each reason why no handler has an id.
func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	base := func() Facts {
		return Facts{
			Found: true, Handled: true, Position: browse.Position{Now: now},
			Job:   browse.Listed{State: browse.StateReady, Job: lowkiq.Job{ID: "a", PerformAt: now.Add(-2 * time.Second), RetryCount: -1}},
			Shard: Shard{Queue: "orders", Assigned: "n1", Owner: "n1/B.1", State: Owned},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Facts)
		state  string
		want   string
		due    float64
	}{
		{"not there", func(f *Facts) { f.Found = false }, "absent", "it is done, was deleted, or was never pushed", 0},
		{"not there, or in a workflow", func(f *Facts) { f.Found, f.Workflows = false, true }, "absent", "it is done, was deleted, was never pushed, or waits in a workflow for other jobs", 0},
		{"next", func(f *Facts) {}, "ready", "it is next in its shard, which n1/B.1 works on", -2},
		{"behind", func(f *Facts) { f.Position.Ahead = 3 }, "ready", "behind 3 ids", -2},
		{"behind others, at a limit", func(f *Facts) {
			f.Position.Ahead, f.Limits = 3, []Cause{{Kind: CauseRate, Reason: "as many ids as its limit allows, 10/s"}}
		}, "ready", "behind 3 ids in its shard, which n1/B.1 works on (0 in flight); of queue orders: as many ids as its limit allows, 10/s", -2},
		{"behind ids in flight", func(f *Facts) { f.Position.InFlight, f.Position.Flight = 4, []string{"x", "y", "z"} }, "ready", "works on (4 in flight: x, y, z, …)", -2},
		{"behind one", func(f *Facts) { f.Position.Ahead = 1 }, "ready", "behind 1 id in", -2},
		{"put back, not ready", func(f *Facts) {
			f.Job.State, f.Job.PerformAt, f.Unready = browse.StateScheduled, now.Add(time.Minute), "no such file"
		}, "scheduled", "due in 1m0s; the handler of n1/B.1 is not ready: no such file", 60},
		{"quarantine", func(f *Facts) { f.Position.Quarantined, f.Position.Crashes = true, 2 }, "ready", "quarantine (2 crashes)", -2},
		{"paused", func(f *Facts) { f.Paused = true }, "ready", `queue "orders" is paused`, -2},
		{"scheduled", func(f *Facts) { f.Job.State, f.Job.PerformAt = browse.StateScheduled, now.Add(time.Minute) }, "scheduled", "due in 1m0s", 60},
		{"scheduled and held", func(f *Facts) {
			f.Job.State, f.Job.PerformAt, f.Held = browse.StateScheduled, now.Add(time.Minute), " by ann"
		}, "scheduled", "due in 1m0s; no handler gets it then, as it is held by ann", 60},
		{"put off", func(f *Facts) {
			f.Job.State, f.Job.PerformAt, f.Job.WaitingSince = browse.StateScheduled, now.Add(time.Minute), now.Add(-time.Hour)
		}, "scheduled", "it has waited for 1h0m0s, was put off, and is due again in 1m0s", 60},
		{"of a group that is held back", func(f *Facts) {
			inGroup(f, now)
			f.InGroup.Till = now.Add(time.Minute)
		}, "scheduled", "a handler holds its group acme: back for 1m0s: hold --undo --prefix acme: lets it go on", 1},
		{"of a group that is held back for days", func(f *Facts) {
			inGroup(f, now)
			f.InGroup.Till = now.Add(72 * time.Hour)
		}, "scheduled", "back for 3 days, at " + now.Add(72*time.Hour).UTC().Format(time.RFC3339), 1},
		{"of a group at its limit", func(f *Facts) {
			inGroup(f, now)
			f.InGroup.Holders = map[string]int{"n2/C.1": 1, "n1/B.1": 1}
		}, "scheduled", "due in 1s; its group acme: is at its limit (2 of 2: n1/B.1 1, n2/C.1 1)", 1},
		{"put back by its group", func(f *Facts) {
			inGroup(f, now)
			f.InGroup.Holders = map[string]int{"n2/C.1": 1}
		}, "scheduled", "due in 1s; ids of its group acme: wait for the limit of the group (1 of 2 in calls: n2/C.1 1; 10/s)", 1},
		{"put back by the rate of its group", func(f *Facts) {
			inGroup(f, now)
			f.GroupLimit.Concurrency, f.InGroup.Again = 0, now.Add(900*time.Millisecond)
		}, "scheduled", "due in 1s; ids of its group acme: wait for the limit of the group (10/s)", 1},
		{"later than any of its group that was put back", func(f *Facts) {
			inGroup(f, now)
			f.Job.PerformAt = now.Add(time.Minute)
		}, "scheduled", "it is due in 1m0s", 60},
		{"scheduled for long", func(f *Facts) { f.Job.State, f.Job.PerformAt = browse.StateScheduled, now.Add(50*time.Hour) }, "scheduled",
			"due in 2 days, at " + now.Add(50*time.Hour).UTC().Format(time.RFC3339), 180000},
		{"retry", func(f *Facts) {
			f.Job.State, f.Job.PerformAt, f.Job.RetryCount, f.Job.Error = browse.StateRetry, now.Add(time.Second), 0, "boom\nstack"
		}, "retry", "attempt 1 failed (last error: boom); the next one is due in 1s", 1},
		{"in flight", func(f *Facts) { f.Job.State, f.Job.Flight = browse.StateInFlight, 7 }, "in_flight",
			"n1/B.1 has it, popped (flight 7), and does not say whether a handler has begun", -2},
		{"handled", func(f *Facts) {
			f.Job.State, f.Job.Flight, f.Where = browse.StateInFlight, 7, protocol.Whereabouts{Stage: protocol.Handled, For: 3 * time.Second}
		}, "in_flight", "a handler of n1/B.1 has it (flight 7) for 3s; it was popped before", -2},
		{"in flight since", func(f *Facts) {
			f.Job.State, f.Job.Flight, f.Job.Since = browse.StateInFlight, 7, now.Add(-12*time.Second)
		},
			"in_flight", "n1/B.1 has it, popped 12s ago (flight 7)", -2},
		{"popped", waits(protocol.Behind, now), "in_flight", "popped 12s ago (flight 7) by n1/B.1, it waits for others of its shard", -2},
		{"no process", waits(protocol.ForProcess, now), "in_flight", "popped 12s ago (flight 7), it waits for a process of n1/B.1", -2},
		{"no call", waits(protocol.ForCall, now), "in_flight", "(flight 7), it waits for a handler of n1/B.1: the queue is at its concurrency", -2},
		{"no permit", func(f *Facts) {
			waits(protocol.ForPermit, now)(f)
			f.Permits = map[string]int{"n1/B.1": 12, "n2/C.1": 8}
		}, "in_flight", "(flight 7), it waits for a handler of n1/B.1: the cluster is at the limit of the queue (20 permits: n1/B.1 12, n2/C.1 8)", -2},
		{"no rate", waits(protocol.ForRate, now), "in_flight", "it waits for a handler of n1/B.1: as many ids as the limit of the queue allows were handed out of late", -2},
		{"no permit of its group", func(f *Facts) {
			waits(protocol.ForGroup, now)(f)
			f.Group, f.GroupLimit = "acme:", rules.Limit{Concurrency: 2}
			f.InGroup = protocol.Group{Holders: map[string]int{"n1/B.1": 2}}
		}, "in_flight", "(flight 7), it waits on n1/B.1 for another id of its group to end; its group acme: is at its limit (2 of 2: n1/B.1 2)", -2},
		{"no slot", waits(protocol.ForSlot, now), "in_flight", "(flight 7), it waits for a handler of n1/B.1: the node is at its concurrency", -2},
		{"in flight with the dead", func(f *Facts) { f.Job.State, f.Shard.State, f.Shard.Assigned = browse.StateInFlight, Claiming, "n2" },
			"in_flight", "n1/B.1, whose lease is gone: it runs again once the shard is seized; n2 is to claim it", -2},
		{"in flight, refused", func(f *Facts) { f.Job.State, f.Job.Flight, f.Refused = browse.StateInFlight, 7, "nack: NOPERM" },
			"in_flight", "in flight (7) with n1/B.1, which Redis refuses an operation: nack: NOPERM", -2},
		{"refused", func(f *Facts) { f.Refused = "pop: WRONGTYPE" }, "ready", "waits, because Redis refuses n1/B.1 an operation: pop: WRONGTYPE", -2},
		{"not ready", func(f *Facts) { f.Unready = "py: exit status 1" }, "ready", "its shard waits, because the handler of n1/B.1 is not ready: py: exit status 1", -2},
		{"morgue", func(f *Facts) { f.Job.State, f.Job.Error = browse.StateMorgue, "boom" }, "morgue", "in the morgue (last error: boom)", 0},
		{"blocked", func(f *Facts) { f.Job.State = browse.StateBlocked }, "blocked", "waits for a person", 0},
		{"unowned", func(f *Facts) { f.Shard.Owner, f.Shard.State = "", Claiming }, "ready", "nobody owns its shard now; n1 is to claim it", -2},
		{"held by the dead", func(f *Facts) { f.Shard.State, f.Shard.Assigned = Unowned, "" }, "ready", "held by n1/B.1, whose lease is gone", -2},
		{"no handler", func(f *Facts) { f.Shard.State, f.Handled = Unowned, false }, "ready", `no live node handles queue "orders"`, -2},
		{"leaving", func(f *Facts) { f.Shard.State, f.Shard.Assigned = Leaving, "n2" }, "ready", "from n1/B.1 to n2", -2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := base()
			c.change(&f)
			got := f.Why("a")
			if got.State != c.state || !strings.Contains(got.Reason, c.want) {
				t.Errorf("got %s, %q, want %s, %q", got.State, got.Reason, c.state, c.want)
			}
			switch {
			case c.due == 0 && got.Due != nil:
				t.Errorf("due: got %v, want none", *got.Due)
			case c.due != 0 && (got.Due == nil || *got.Due != c.due):
				t.Errorf("due: got %v, want %v", got.Due, c.due)
			}
			if since := f.Position.Now.Sub(f.Job.Since).Seconds(); !f.Job.Since.IsZero() && (got.Since == nil || *got.Since != since) {
				t.Errorf("since: got %v, want %v", got.Since, since)
			}
		})
	}
}
