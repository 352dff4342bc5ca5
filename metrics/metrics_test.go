package metrics

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The names, kinds and labels are a contract: boards and alerts refer to them. A series
// per anything but queue, state, op and name could be too many.
const contract = `
lowkiq_build_info GAUGE goversion version
lowkiq_calls_waiting GAUGE
lowkiq_children GAUGE queue
lowkiq_children_busy GAUGE queue
lowkiq_claims_unreplicated_total COUNTER
lowkiq_expired_total COUNTER queue
lowkiq_fenced_total COUNTER op
lowkiq_generation GAUGE
lowkiq_handler_overdue_total COUNTER queue
lowkiq_handler_ready GAUGE queue
lowkiq_handler_seconds HISTOGRAM queue
lowkiq_handover_seconds HISTOGRAM
lowkiq_hook_errors_total COUNTER queue
lowkiq_jobs_buried_total COUNTER queue
lowkiq_jobs_failed_total COUNTER queue
lowkiq_jobs_postponed_total COUNTER queue reason
lowkiq_jobs_processed_total COUNTER queue
lowkiq_jobs_pushed_total COUNTER queue
lowkiq_jobs_redelivered_total COUNTER queue
lowkiq_journal_dropped_lines GAUGE queue
lowkiq_lease_remaining_seconds GAUGE
lowkiq_log_dropped_lines_total COUNTER
lowkiq_morgue_payloads GAUGE queue
lowkiq_morgue_trimmed_total COUNTER queue
lowkiq_process_wait_seconds HISTOGRAM queue
lowkiq_queue_jobs GAUGE queue state
lowkiq_queue_jobs_failed GAUGE queue
lowkiq_queue_lag_seconds GAUGE queue
lowkiq_queue_shards GAUGE queue
lowkiq_queue_unhandled GAUGE queue
lowkiq_raft_leader GAUGE
lowkiq_recurring_late_seconds GAUGE
lowkiq_recurring_missed_total COUNTER name
lowkiq_rules_in_force GAUGE queue
lowkiq_shard_moves_total COUNTER
lowkiq_shards_owned GAUGE queue
lowkiq_shards_unowned GAUGE queue
lowkiq_slots GAUGE
lowkiq_slots_busy GAUGE
lowkiq_unowned_seconds HISTOGRAM
lowkiq_wait_seconds HISTOGRAM queue
`

func TestContract(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	m.Queue("orders").Ready().Set(1)
	m.Queue("orders").ProcessWait().Observe(time.Second)
	m.SetUnowned("orders", 1, true)
	m.RecurringMissed("daily", 1)
	Pushed(registry)("orders", nil)
	registry.MustRegister(Build("1.2.3"), &Working{
		Slots: func() Use { return Use{Total: 8, Busy: 3} }, Children: func() map[string]Use { return map[string]Use{"orders": {Total: 2, Busy: 1}} },
		Calls: func() int { return 1 }, Unlogged: func() int64 { return 5 },
	})
	registry.MustRegister(&Shards{Timeout: time.Second, Read: func(context.Context) (map[string]Figures, error) {
		return map[string]Figures{"orders": {Jobs: map[string]int{"ready": 2}}}, nil
	}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := "\n"
	for _, f := range families {
		got += f.GetName() + " " + f.GetType().String()
		for _, label := range f.GetMetric()[0].GetLabel() {
			got += " " + label.GetName()
		}
		got += "\n"
	}
	if got != contract {
		t.Errorf("got %s\nwant %s", got, contract)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: got %v, %v, want nothing", problems, err)
	}
}

// What a node has handled so far is there from the start, as zeros: increase() would miss
// the first failure of a queue.
func TestQueueBeginsWithZeros(t *testing.T) {
	m := New(prometheus.NewRegistry())
	m.Queue("orders")
	for name, vec := range map[string]prometheus.Collector{
		"processed": m.processed, "failed": m.failed, "redelivered": m.redelivered, "overdue": m.overdue,
		"handler": m.handler, "wait": m.wait, "owned": m.owned, "buried": m.buried,
	} {
		if n := testutil.CollectAndCount(vec); n != 1 {
			t.Errorf("%s: got %d series before anything happened, want 1", name, n)
		}
	}
}

// Each metric of a queue counts what its name says.
func TestQueueFieldsAreTheirMetrics(t *testing.T) {
	m := New(prometheus.NewRegistry())
	q := m.Queue("orders")
	q.Processed.Add(1)
	q.Failed.Add(2)
	q.Redelivered.Add(3)
	q.Overdue.Add(4)
	q.Owned.Set(5)
	q.Shards.Set(6)
	q.Buried.Add(7)
	for want, vec := range []prometheus.Collector{1: m.processed, 2: m.failed, 3: m.redelivered, 4: m.overdue, 5: m.owned, 6: m.shards, 7: m.buried} {
		if vec == nil {
			continue
		}
		if got := testutil.ToFloat64(vec); got != float64(want) {
			t.Errorf("got %v, want %d", got, want)
		}
	}
}

func TestUnownedOfTheLeaderOnly(t *testing.T) {
	m := New(prometheus.NewRegistry())
	m.SetUnowned("orders", 2, false)
	m.SetUnowned("mail", 0, true)
	if n, got := testutil.CollectAndCount(m.ownerless), testutil.ToFloat64(m.ownerless.WithLabelValues("orders")); n != 2 || got != 2 {
		t.Errorf("got %d series, orders %v, want 2 and 2", n, got)
	}
	if orders, mail := testutil.ToFloat64(m.unhandled.WithLabelValues("orders")), testutil.ToFloat64(m.unhandled.WithLabelValues("mail")); orders != 1 || mail != 0 {
		t.Errorf("unhandled: got orders %v, mail %v, want 1 and 0", orders, mail)
	}
	m.ForgetQueue("mail")
	if n := testutil.CollectAndCount(m.ownerless) + testutil.CollectAndCount(m.unhandled); n != 2 {
		t.Errorf("got %d series once mail is deleted, want those of orders", n)
	}
	m.NoUnowned()
	if n := testutil.CollectAndCount(m.ownerless) + testutil.CollectAndCount(m.unhandled); n != 0 {
		t.Errorf("got %d series of a node that does not lead, want none", n)
	}
}

// The time runs on between two scrapes though nothing is renewed, and not below zero.
func TestLeaseRemaining(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	want := func(seconds string) {
		t.Helper()
		text := "# HELP lowkiq_lease_remaining_seconds Time until this node must stop working unless it renews its lease; 0 without a lease.\n" +
			"# TYPE lowkiq_lease_remaining_seconds gauge\nlowkiq_lease_remaining_seconds " + seconds + "\n"
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "lowkiq_lease_remaining_seconds"); err != nil {
			t.Error(err)
		}
	}
	want("0")
	left := 2 * time.Second
	m.LeaseRemaining(func() time.Duration { left -= 500 * time.Millisecond; return left })
	want("1.5")
	want("1")
	left = -time.Second
	want("0")
}

// increase() sees no step from nothing to 1, so a first refusal would alert nobody.
func TestFencedBeginsWithZero(t *testing.T) {
	m := New(prometheus.NewRegistry())
	before := testutil.CollectAndCount(m.fenced)
	for _, op := range []string{"pop", "ack", "nack", "bury", "note", "release"} {
		m.Fenced(op)
	}
	if after := testutil.CollectAndCount(m.fenced); before == 0 || after != before {
		t.Errorf("got %d series before and %d after the first refusals, want all of them before", before, after)
	}
}

func TestShards(t *testing.T) {
	owned := map[string]Figures{
		"orders": {Lag: 1500 * time.Millisecond, Jobs: map[string]int{"ready": 2, "retry": 1}, Failed: 3, Morgue: 4, Unlogged: 7},
		"mail":   {Jobs: map[string]int{"ready": 0}},
	}
	s := &Shards{Timeout: time.Second, Read: func(ctx context.Context) (map[string]Figures, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a scrape has no deadline")
		}
		return owned, nil
	}}
	const want = `
# HELP lowkiq_journal_dropped_lines Lines that the journals of this node's shards lack, ever, as Redis was out of memory. The leader adds the shards that nobody owns.
# TYPE lowkiq_journal_dropped_lines gauge
lowkiq_journal_dropped_lines{queue="mail"} 0
lowkiq_journal_dropped_lines{queue="orders"} 7
# HELP lowkiq_morgue_payloads Payloads of this node's shards that ran out of retries. The leader adds the shards that nobody owns.
# TYPE lowkiq_morgue_payloads gauge
lowkiq_morgue_payloads{queue="mail"} 0
lowkiq_morgue_payloads{queue="orders"} 4
# HELP lowkiq_queue_jobs_failed Failed jobs of this node's shards that wait for an attempt: those of state retry, and those of state ready that have failed. The leader adds the shards that nobody owns.
# TYPE lowkiq_queue_jobs_failed gauge
lowkiq_queue_jobs_failed{queue="mail"} 0
lowkiq_queue_jobs_failed{queue="orders"} 3
# HELP lowkiq_queue_jobs Jobs of this node's shards by state: ready, scheduled, retry, held, in_flight or blocked. The leader adds the shards that nobody owns.
# TYPE lowkiq_queue_jobs gauge
lowkiq_queue_jobs{queue="mail",state="ready"} 0
lowkiq_queue_jobs{queue="orders",state="ready"} 2
lowkiq_queue_jobs{queue="orders",state="retry"} 1
# HELP lowkiq_queue_lag_seconds For how long the due job has waited that has waited longest in this node's shards, also of those that were put off; 0 if none. The leader adds the shards that nobody owns.
# TYPE lowkiq_queue_lag_seconds gauge
lowkiq_queue_lag_seconds{queue="mail"} 0
lowkiq_queue_lag_seconds{queue="orders"} 1.5
`
	if err := testutil.CollectAndCompare(s, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	owned = nil
	if n := testutil.CollectAndCount(s); n != 0 {
		t.Errorf("got %d series after the shards were released, want none", n)
	}
}

// A Redis out of reach leaves the series out; zeros would be a lie.
func TestShardsUnreadable(t *testing.T) {
	var told error
	s := &Shards{Timeout: time.Second, Failed: func(err error) { told = err },
		Read: func(context.Context) (map[string]Figures, error) { return nil, errors.New("redis is away") }}
	if n := testutil.CollectAndCount(s); n != 0 || told == nil {
		t.Errorf("got %d series and told %v, want none and the error", n, told)
	}
}

// A job that is merged is stored; one that is refused is not.
func TestPushedCountsWhatIsStored(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	refused := errors.New("refused")
	push := Pushed(registry)("orders", func(_ context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
		if len(jobs) == 1 {
			return nil, refused
		}
		return []queue.Result{{}, {Merged: true}, {Err: refused}}, refused
	})
	for _, n := range []int{3, 1, 3} {
		if _, err := push(t.Context(), make([]lowkiq.Push, n)); !errors.Is(err, refused) {
			t.Errorf("got %v, want the error of the push", err)
		}
	}
	want := "# HELP lowkiq_jobs_pushed_total Jobs that this process has pushed and Redis has stored.\n" +
		"# TYPE lowkiq_jobs_pushed_total counter\nlowkiq_jobs_pushed_total{queue=\"orders\"} 4\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestWorking(t *testing.T) {
	t.Parallel()
	w := &Working{
		Slots:    func() Use { return Use{Total: 8, Busy: 3} },
		Children: func() map[string]Use { return map[string]Use{"orders": {Total: 2, Busy: 1}} },
		Calls:    func() int { return 4 },
		Unlogged: func() int64 { return 5 },
	}
	want := `
# HELP lowkiq_calls_waiting Payloads pushed through this node whose callers wait for their ends.
# TYPE lowkiq_calls_waiting gauge
lowkiq_calls_waiting 4
# HELP lowkiq_children Processes of the queue's exec handler that run.
# TYPE lowkiq_children gauge
lowkiq_children{queue="orders"} 2
# HELP lowkiq_children_busy Processes of the queue's exec handler that have a batch.
# TYPE lowkiq_children_busy gauge
lowkiq_children_busy{queue="orders"} 1
# HELP lowkiq_log_dropped_lines_total Lines of this node's log that were dropped, because they came faster than they were written, or could not be written.
# TYPE lowkiq_log_dropped_lines_total counter
lowkiq_log_dropped_lines_total 5
# HELP lowkiq_slots Handler calls that this node may run at once.
# TYPE lowkiq_slots gauge
lowkiq_slots 8
# HELP lowkiq_slots_busy Slots of this node that handler calls hold.
# TYPE lowkiq_slots_busy gauge
lowkiq_slots_busy 3
`
	if err := testutil.CollectAndCompare(w, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	m := New(prometheus.NewRegistry())
	q := m.Queue("orders")
	for _, d := range []time.Duration{time.Second, 2 * time.Second, 2*time.Second + 1, 0, -time.Second, 24000 * time.Hour} {
		q.Handler.Observe(d)
	}
	q.Wait.Observe(4 * time.Second)
	m.Queue("mail")
	all := m.Durations()
	for _, c := range []struct {
		name string
		got  Buckets
		want string
	}{
		{"handler", all["orders"].Handler, "{map[-160:2 0:1 8:1 9:1 192:1] 86400005}"},
		{"wait", all["orders"].Wait, "{map[16:1] 4}"},
		{"nothing yet", all["mail"].Handler, "{map[] 0}"},
	} {
		if got := fmt.Sprintf("{%v %.0f}", c.got.Counts, c.got.Sum); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// What is exported is what Prometheus' own histogram with the same buckets exports.
func TestHistogramIsAsPrometheusCounts(t *testing.T) {
	t.Parallel()
	ours := newHistograms("x_seconds", "X.").queue("orders")
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x_seconds", Help: "X.", Buckets: classicBounds,
		NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: math.Exp2(-20)})
	written := func(h prometheus.Metric) *dto.Histogram {
		var m dto.Metric
		if err := h.Write(&m); err != nil {
			t.Fatal(err)
		}
		m.Histogram.CreatedTimestamp = nil
		m.Histogram.SampleSum = proto.Float64(math.Round(m.Histogram.GetSampleSum())) // theirs rounds at each step
		return m.Histogram
	}
	compare := func(when string) {
		t.Helper()
		if got, want := written(ours), written(theirs); !proto.Equal(got, want) {
			t.Fatalf("%s: got\n%v\nwant\n%v", when, got, want)
		}
	}
	compare("nothing observed")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		d := time.Duration(math.Exp2(random.Float64()*50) - 1) // 0 to 13 days
		switch i % 50 {
		case 0:
			d = time.Duration(classicBounds[random.IntN(len(classicBounds))] * 1e9) // on a border
		case 1:
			d = time.Second << random.IntN(10)
		}
		ours.Observe(d)
		theirs.Observe(d.Seconds())
		if i == 0 || i == 10 {
			compare(fmt.Sprint(i+1, " observed"))
		}
	}
	compare("5000 observed")
}

// Operators are told to look whether handlers near their timeout, which is 30 min by
// default: all that is longer than the last bound looks the same.
func TestBoundsReachTheDefaultTimeout(t *testing.T) {
	if last := classicBounds[len(classicBounds)-1]; last < (30 * time.Minute).Seconds() {
		t.Errorf("the last bound is %v s, want at least 30 min", last)
	}
}

// Once for each job.
func BenchmarkObserve(b *testing.B) {
	h := newHistograms("x_seconds", "X.").queue("orders")
	for i := 0; b.Loop(); i++ {
		h.Observe(time.Duration(i%1000) * 130 * time.Microsecond)
	}
}
