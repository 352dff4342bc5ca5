package node

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// waits is a job that was popped 12 s ago and is at a stage.
func waits(at queue.Stage, now time.Time) func(*facts) {
	return func(f *facts) {
		f.job.State, f.job.Flight, f.job.Since, f.where = queue.InFlight, 7, now.Add(-12*time.Second), queue.Whereabouts{Stage: at}
	}
}

// TestJudge: every reason why an id is not with a handler.
func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	base := func() facts {
		return facts{
			found: true, handled: true, standing: queue.Standing{Now: now},
			job:   queue.Listed{State: queue.Ready, Job: lowkiq.Job{ID: "a", PerformAt: now.Add(-2 * time.Second), RetryCount: -1}},
			shard: status.Shard{Queue: "orders", Assigned: "n1", Owner: "n1/B.1", State: status.Owned},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*facts)
		state  string
		want   string
		due    float64
	}{
		{"not there", func(f *facts) { f.found = false }, "absent", "it is done, or was never pushed", 0},
		{"next", func(f *facts) {}, "ready", "it is next in its shard, which n1/B.1 works on", -2},
		{"behind", func(f *facts) { f.standing.Ahead = 3 }, "ready", "behind 3 ids", -2},
		{"behind one", func(f *facts) { f.standing.Ahead = 1 }, "ready", "behind 1 id in", -2},
		{"put back, not ready", func(f *facts) {
			f.job.State, f.job.PerformAt, f.unready = queue.Scheduled, now.Add(time.Minute), "no such file"
		}, "scheduled", "due in 1m0s; the handler of n1/B.1 is not ready: no such file", 60},
		{"probation", func(f *facts) { f.standing.Suspect, f.standing.Crashes = true, 2 }, "ready", "probation (2 crashes)", -2},
		{"paused", func(f *facts) { f.paused = true }, "ready", `queue "orders" is paused`, -2},
		{"scheduled", func(f *facts) { f.job.State, f.job.PerformAt = queue.Scheduled, now.Add(time.Minute) }, "scheduled", "due in 1m0s", 60},
		{"scheduled for long", func(f *facts) { f.job.State, f.job.PerformAt = queue.Scheduled, now.Add(50*time.Hour) }, "scheduled",
			"due in 2 days, at " + now.Add(50*time.Hour).UTC().Format(time.RFC3339), 180000},
		{"retry", func(f *facts) {
			f.job.State, f.job.PerformAt, f.job.RetryCount, f.job.Error = queue.Retrying, now.Add(time.Second), 0, "boom\nstack"
		}, "retry", "attempt 1 failed (last error: boom); the next one is due in 1s", 1},
		{"in flight", func(f *facts) { f.job.State, f.job.Flight = queue.InFlight, 7 }, "in_flight",
			"n1/B.1 has it, popped (flight 7), and does not say whether a handler has begun", -2},
		{"handled", func(f *facts) {
			f.job.State, f.job.Flight, f.where = queue.InFlight, 7, queue.Whereabouts{Stage: queue.Handled, For: 3 * time.Second}
		}, "in_flight", "a handler of n1/B.1 has it (flight 7) for 3s; it was popped before", -2},
		{"in flight since", func(f *facts) { f.job.State, f.job.Flight, f.job.Since = queue.InFlight, 7, now.Add(-12*time.Second) },
			"in_flight", "n1/B.1 has it, popped 12s ago (flight 7)", -2},
		{"popped", waits(queue.Behind, now), "in_flight", "popped 12s ago (flight 7) by n1/B.1, it waits for others of its shard", -2},
		{"no process", waits(queue.ForProcess, now), "in_flight", "popped 12s ago (flight 7), it waits for a process of n1/B.1", -2},
		{"no call", waits(queue.ForCall, now), "in_flight", "(flight 7), it waits for a handler of n1/B.1: the queue is at its concurrency", -2},
		{"no slot", waits(queue.ForSlot, now), "in_flight", "(flight 7), it waits for a handler of n1/B.1: the node is at its concurrency", -2},
		{"in flight with the dead", func(f *facts) { f.job.State, f.shard.State, f.shard.Assigned = queue.InFlight, status.Claiming, "n2" },
			"in_flight", "n1/B.1, whose lease is gone: it runs again once the shard is seized; n2 is to claim it", -2},
		{"in flight, refused", func(f *facts) { f.job.State, f.job.Flight, f.refused = queue.InFlight, 7, "nack: NOPERM" },
			"in_flight", "in flight (7) with n1/B.1, which Redis refuses an operation: nack: NOPERM", -2},
		{"refused", func(f *facts) { f.refused = "pop: WRONGTYPE" }, "ready", "waits, because Redis refuses n1/B.1 an operation: pop: WRONGTYPE", -2},
		{"not ready", func(f *facts) { f.unready = "py: exit status 1" }, "ready", "its shard waits, because the handler of n1/B.1 is not ready: py: exit status 1", -2},
		{"morgue", func(f *facts) { f.job.State, f.job.Error = queue.Dead, "boom" }, "morgue", "in the morgue (last error: boom)", 0},
		{"blocked", func(f *facts) { f.job.State = queue.Waiting }, "blocked", "waits for a person", 0},
		{"unowned", func(f *facts) { f.shard.Owner, f.shard.State = "", status.Claiming }, "ready", "nobody owns its shard now; n1 is to claim it", -2},
		{"held by the dead", func(f *facts) { f.shard.State, f.shard.Assigned = status.Unowned, "" }, "ready", "held by n1/B.1, whose lease is gone", -2},
		{"no handler", func(f *facts) { f.shard.State, f.handled = status.Unowned, false }, "ready", `no live node handles queue "orders"`, -2},
		{"leaving", func(f *facts) { f.shard.State, f.shard.Assigned = status.Leaving, "n2" }, "ready", "from n1/B.1 to n2", -2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := base()
			c.change(&f)
			got := f.judge("a")
			if got.State != c.state || !strings.Contains(got.Reason, c.want) {
				t.Errorf("got %s, %q, want %s, %q", got.State, got.Reason, c.state, c.want)
			}
			switch {
			case c.due == 0 && got.Due != nil:
				t.Errorf("due: got %v, want none", *got.Due)
			case c.due != 0 && (got.Due == nil || *got.Due != c.due):
				t.Errorf("due: got %v, want %v", got.Due, c.due)
			}
			if since := f.standing.Now.Sub(f.job.Since).Seconds(); !f.job.Since.IsZero() && (got.Since == nil || *got.Since != since) {
				t.Errorf("since: got %v, want %v", got.Since, since)
			}
		})
	}
}

func TestShardState(t *testing.T) {
	t.Parallel()
	info := func(node string, draining bool) LeaseInfo {
		return LeaseInfo{Node: node, Draining: draining, Queues: map[string]int{"orders": 1}}
	}
	live := map[string]LeaseInfo{"n1/A.1": info("n1", false), "n2/B.1": info("n2", true)}
	for _, c := range []struct {
		name, queue, owner, assigned string
		agreed                       bool
		want                         status.ShardState
	}{
		{"owned", "orders", "n1/A.1", "n1", true, status.Owned},
		{"to be given away", "orders", "n1/A.1", "n2", true, status.Leaving},
		{"owner drains", "orders", "n2/B.1", "n2", true, status.Leaving},
		{"released", "orders", "", "n1", true, status.Claiming},
		{"owner is dead", "orders", "n3/C.1", "n1", true, status.Claiming},
		{"assigned to the dead", "orders", "n3/C.1", "n3", true, status.Unowned},
		{"assigned to nobody", "orders", "", "", true, status.Unowned},
		{"no cluster, owned", "orders", "n1/A.1", "", false, status.Owned},
		{"no cluster, free", "orders", "", "", false, status.Claiming},
		{"no cluster, not handled", "mail", "", "", false, status.Unowned},
	} {
		if got := shardState(c.queue, c.owner, c.assigned, c.agreed, live); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	view := rebalance.View{
		Queues: []lowkiq.Queue{{Name: "orders", Shards: 4}},
		Peers: []rebalance.Peer{
			{Node: plan.Node{Name: "n1"}, Leased: true}, {Node: plan.Node{Name: "n2"}, Leased: true},
			{Node: plan.Node{Name: "old"}, Leased: true, Superseded: true}, {Node: plan.Node{Name: "late"}},
		},
	}
	nodes, err := change(view, []string{"n3"}, []string{"n2"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]plan.Node{}
	for _, n := range nodes {
		got[n.Name] = n
	}
	if len(got) != 3 || got["n1"].Draining || !got["n2"].Draining || len(got["n3"].Queues) != 1 {
		t.Errorf("got %+v, want n1, n2 draining, n3 with orders", nodes)
	}
	for _, c := range []struct {
		name        string
		add, remove []string
		want        string
	}{
		{"unknown", nil, []string{"n9"}, `unknown node "n9" (known: n1, n2)`},
		{"there already", []string{"n1"}, nil, `add "n1": there is such a node already`},
	} {
		if _, err := change(view, c.add, c.remove); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
