package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// shards are those of a queue with so many ready ids each, owned by n1, that have waited for a minute.
func shards(ready ...int) (all []protocol.Stats) {
	for _, n := range ready {
		s := protocol.Stats{Jobs: protocol.Counts{Ready: n, InFlight: min(n, 1)}, Owner: protocol.Owner{Instance: "n1/A.1", Fence: 1}}
		if n > 0 {
			s.Lag = time.Minute
		}
		all = append(all, s)
	}
	return all
}

func waitsFor(stage protocol.Stage, of string) func(*QueueFacts) {
	return func(f *QueueFacts) {
		f.Handled[0].Waits = map[string][]protocol.Wait{"orders": append(f.Handled[0].Waits["orders"], protocol.Wait{For: stage, Of: of})}
	}
}

// TestCauses checks each cause, and the order of causes.
func TestCauses(t *testing.T) {
	t.Parallel()
	ready := func(n ...int) func(*QueueFacts) { return func(f *QueueFacts) { f.Shards = shards(n...) } }
	jobs := func(c protocol.Counts) func(*QueueFacts) {
		return func(f *QueueFacts) { f.Shards = []protocol.Stats{{Jobs: c, Owner: protocol.Owner{Instance: "n1/A.1"}}} }
	}
	second := func(of Instance) func(*QueueFacts) {
		return func(f *QueueFacts) {
			of.Node, of.Name, of.Queues = "n2", "n2/B.1", map[string]int{"orders": 1}
			f.Handled = append(f.Handled, of)
		}
	}
	first := func(change func(*Instance)) func(*QueueFacts) { return func(f *QueueFacts) { change(&f.Handled[0]) } }
	paused := func(f *QueueFacts) { f.Paused = true }
	refused := first(func(i *Instance) {
		i.Refused = []string{"shard orders2/1: pop: NOPERM", "shard orders/1: pop: WRONGTYPE"}
	})
	unready := first(func(i *Instance) { i.Unready = map[string]string{"orders": "no such file"} })
	drains := first(func(i *Instance) { i.Draining = true })
	for _, c := range []struct {
		name    string
		changes []func(*QueueFacts)
		want    []string // kind, then parts of the sentence with its command, between bars
	}{
		{"nothing", nil, nil},
		{"it keeps up", []func(*QueueFacts){func(f *QueueFacts) {
			f.Shards = shards(5)
			f.Shards[0].Lag = 900 * time.Millisecond
		}}, nil},
		{"unhandled", []func(*QueueFacts){func(f *QueueFacts) { f.Handled = Handled{{Node: "n1", Queues: map[string]int{"mail": 1}}} }, ready(3, 0)},
			[]string{"unhandled|no live node handles it|lowkiq-node queues delete orders --dry-run"}},
		{"Redis refuses leases", []func(*QueueFacts){func(f *QueueFacts) { f.Handled, f.Redis = nil, "lease: MISCONF no disk" }, paused},
			[]string{"redis|Redis refuses the leases of nodes, and without one a node handles nothing: lease: MISCONF no disk", "paused|"}},
		{"a lease that cannot be read may handle it", []func(*QueueFacts){func(f *QueueFacts) { f.Handled = Handled{{Node: "n1", Name: "n1/A.1", Unreadable: true}} }}, nil},
		{"paused", []func(*QueueFacts){paused, ready(100, 0, 0, 0)}, []string{"paused|no job begins|lowkiq-node queues resume orders"}},
		{"draining", []func(*QueueFacts){drains, ready(100, 0)}, []string{"draining|all nodes that handle it are draining: n1|lowkiq-node drain --undo n1"}},
		{"one of two drains", []func(*QueueFacts){drains, second(Instance{})}, nil},
		{"refused", []func(*QueueFacts){refused}, []string{"refused|Redis refuses node n1 an operation: shard orders/1: pop: WRONGTYPE"}},
		{"a whole queue is refused", []func(*QueueFacts){first(func(i *Instance) { i.Refused = []string{`queue "orders" has 3 shards`} })}, []string{`refused|queue "orders" has 3 shards`}},
		{"not ready", []func(*QueueFacts){unready, ready(100, 0)}, []string{"not_ready|no handler of it is ready (n1): no such file"}},
		{"one of two is not ready", []func(*QueueFacts){unready, second(Instance{})}, []string{"not_ready|1 of 2 handlers are not ready (n1), and others take their shards: no such file"}},
		{"unowned", []func(*QueueFacts){ready(3, 2, 0), func(f *QueueFacts) { f.Shards[0].Owner.Instance = "n0/Z.1" }},
			[]string{"unowned|1 of 3 shards have no live owner, and 4 ids wait in them|lowkiq-node shards --queue orders", "shards|"}},
		{"rate", []func(*QueueFacts){ready(160, 0, 0, 0), waitsFor(protocol.ForRate, "10/s")}, []string{"rate|as many ids as its limit allows, 10/s|lowkiq-node rules orders --set limit.rate=RATE"}},
		{"limit", []func(*QueueFacts){ready(9), waitsFor(protocol.ForPermit, "5")}, []string{"limit|as many calls as its limit allows, 5|limit.concurrency=N"}},
		{"pushes wait for a run", []func(*QueueFacts){jobs(protocol.Counts{InFlight: 1}), func(f *QueueFacts) { f.Shards[0].Lag = time.Minute }},
			[]string{"in_flight|payloads wait until the run of their id ends, and 1 id is in flight|lowkiq-node jobs orders --state in_flight"}},
		{"group", []func(*QueueFacts){waitsFor(protocol.ForGroup, "2 calls and 10/s")}, []string{"group|the limit of their group, 2 calls and 10/s|groups.concurrency=N"}},
		{"concurrency", []func(*QueueFacts){waitsFor(protocol.ForCall, "2"), second(Instance{Waits: map[string][]protocol.Wait{"orders": {{For: protocol.ForCall, Of: "2"}}}})},
			[]string{"concurrency|node n1, n2 runs as many calls as its concurrency allows, 2|concurrency=N"}},
		{"two bounds of a node", []func(*QueueFacts){first(func(i *Instance) {
			i.Waits = map[string][]protocol.Wait{"orders": {{For: protocol.ForCall, Of: "1"}, {For: protocol.ForCall, Of: "8"}}}
		})}, []string{"concurrency|node n1 runs as many calls as its concurrency allows, 1|concurrency=N"}},
		{"processes", []func(*QueueFacts){waitsFor(protocol.ForProcess, "3")}, []string{"processes|all processes of its handler are busy on node n1, 3"}},
		{"slots", []func(*QueueFacts){waitsFor(protocol.ForSlot, "8")}, []string{"slots|all calls of node n1 are taken, 8 of all queues"}},
		{"crowded", []func(*QueueFacts){ready(1, 0, 212, 0, 0, 0, 2, 0)}, []string{"crowded|212 of 215 ready ids are in shard 2 of 8|shard_concurrency=N"}},
		{"stuck", []func(*QueueFacts){ready(1, 0, 212, 0), func(f *QueueFacts) {
			f.Shards[2].First, f.Shards[2].FirstSince, f.Shards[2].LastSince = "a", 74*time.Second, 74*time.Second
		}}, []string{"stuck|212 of 213 ready ids are in shard 2, which waits for a; node n1 has had that id for 1m14s|lowkiq-node cancel a --queue orders"}},
		{"stuck at an id that a shell would split", []func(*QueueFacts){ready(3), func(f *QueueFacts) {
			f.Shards[0].First, f.Shards[0].FirstSince, f.Shards[0].LastSince = "a b", time.Minute, time.Minute
		}}, []string{"stuck|which waits for a b;|lowkiq-node cancel 'a b' --queue orders"}},
		{"crowded behind a run that may be healthy", []func(*QueueFacts){ready(0, 9), func(f *QueueFacts) {
			f.Shards[1].First, f.Shards[1].FirstSince, f.Shards[1].LastSince, f.Shards[1].Lag = "a", 59*time.Second, 59*time.Second, time.Second
		}}, []string{"crowded|9 of 9"}},
		{"the owner of a long run is dead", []func(*QueueFacts){ready(0, 9), func(f *QueueFacts) {
			f.Shards[1].First, f.Shards[1].FirstSince, f.Shards[1].LastSince, f.Shards[1].Owner.Instance = "a", time.Hour, time.Hour, "n0/Z.1"
		}}, []string{"unowned|1 of 2 shards", "crowded|9 of 9"}},
		{"crowded, and its shard goes on", []func(*QueueFacts){ready(0, 9), func(f *QueueFacts) {
			f.Shards[1].First, f.Shards[1].FirstSince, f.Shards[1].LastSince = "a", time.Hour, time.Second
		}}, []string{"crowded|9 of 9"}},
		{"crowded, two shards", []func(*QueueFacts){ready(0, 0, 100, 0, 0, 0, 90, 0)}, []string{"crowded|190 of 190 ready ids are in 2 of 8 shards"}},
		{"one id is crowded", []func(*QueueFacts){ready(0, 1)}, []string{"crowded|1 of 1 ready id is in shard 1 of 2"}},
		{"all shards", []func(*QueueFacts){ready(3, 4, 0, 5)}, []string{"shards|12 ready ids are in 3 of 4 shards|shard_concurrency=N"}},
		{"one shard there is", []func(*QueueFacts){ready(3)}, []string{"shards|3 ready ids are in 1 of 1 shards"}},
		{"put off", []func(*QueueFacts){jobs(protocol.Counts{Scheduled: 5}), func(f *QueueFacts) { f.Shards[0].Lag = 37 * time.Second }},
			[]string{"put_off|its handler or a group put off jobs that were due, the oldest 37s ago|lowkiq-node jobs orders --state scheduled"}},
		{"scheduled", []func(*QueueFacts){jobs(protocol.Counts{Scheduled: 5})}, nil},
		{"held", []func(*QueueFacts){jobs(protocol.Counts{Held: 2})}, []string{"held|a person holds 2 ids|lowkiq-node hold --queue orders"}},
		{"retries", []func(*QueueFacts){jobs(protocol.Counts{Retry: 1})}, []string{"retries|1 id failed and waits for the next attempt|lowkiq-node errors orders"}},
		{"blocked", []func(*QueueFacts){jobs(protocol.Counts{Blocked: 3})}, []string{"blocked|3 ids ran out of retries and wait for a person|--state blocked"}},
		{"the order", []func(*QueueFacts){
			jobs(protocol.Counts{Ready: 1, Held: 1, Retry: 1, Blocked: 1}), paused, refused, unready, drains, waitsFor(protocol.ForSlot, "8"), waitsFor(protocol.ForProcess, "1"),
			waitsFor(protocol.ForCall, "1"), waitsFor(protocol.ForGroup, "1/s"), waitsFor(protocol.ForPermit, "1"), waitsFor(protocol.ForRate, "1/s"),
			func(f *QueueFacts) { f.Shards[0].Owner.Instance, f.Shards[0].Lag = "", time.Hour },
		}, []string{"paused|", "refused|", "draining|", "not_ready|", "unowned|", "rate|", "limit|", "group|", "concurrency|", "processes|", "slots|", "held|", "retries|", "blocked|"}},
		{"a group waits, and its shard is crowded", []func(*QueueFacts){ready(50, 0, 0, 0), waitsFor(protocol.ForGroup, "1/s")}, []string{"group|", "crowded|50 of 50"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := QueueFacts{Name: "orders", Handled: Handled{{Node: "n1", Name: "n1/A.1", Queues: map[string]int{"orders": 1, "mail": 1}}}}
			for _, change := range c.changes {
				change(&f)
			}
			got := f.Causes()
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				kind, parts, _ := strings.Cut(want, "|")
				if string(got[i].Kind) != kind {
					t.Errorf("cause %d: got %q, want %s", i, got[i], kind)
				}
				for part := range strings.SplitSeq(parts, "|") {
					if !strings.Contains(got[i].String(), part) {
						t.Errorf("cause %d: got %q, want %q in it", i, got[i], part)
					}
				}
			}
		})
	}
}

// TestSlowest checks that causes of some ids do not explain the lag.
func TestSlowest(t *testing.T) {
	t.Parallel()
	for want, kinds := range map[string][]CauseKind{"": {CauseHeld, CauseRetries, CauseBlocked}, "rate": {CauseRate, CauseHeld}, "group": {CauseHeld, CauseGroup}} {
		var all []Cause
		for _, kind := range kinds {
			all = append(all, Cause{Kind: kind})
		}
		if got, there := Slowest(all); string(got.Kind) != want || there != (want != "") {
			t.Errorf("%v: got %v, want %q", kinds, got, want)
		}
	}
}

// TestBy checks that a node is named once, and that a lease that cannot be read may handle anything.
func TestBy(t *testing.T) {
	t.Parallel()
	handles := map[string]int{"orders": 0}
	h := Handled{{Node: "n1", Queues: handles}, {Node: "n1", Queues: handles}, {Node: "n2", Unreadable: true}}
	if got := fmt.Sprint(h.By("orders"), h.By("mail")); got != "[n1 n2 (its lease cannot be read)] [n2 (its lease cannot be read)]" {
		t.Errorf("got %s", got)
	}
}

// A full Redis is a cause that does not explain a lag, because it refuses pushes and not the work.
func TestFullRedisIsACause(t *testing.T) {
	t.Parallel()
	causes := (&QueueFacts{Name: "orders", Full: "redis h:1 is full"}).Causes()
	last := causes[len(causes)-1]
	if first, _ := Slowest([]Cause{last}); last.Kind != CauseFull || last.Reason != "redis h:1 is full" || first.Kind != "" {
		t.Errorf("got %+v, want the full Redis, and not for a lag", causes)
	}
}
