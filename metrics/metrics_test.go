package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What a node and a producer export is what the table declares. A series per anything but queue,
// state, reason, op and name could be too many.
func TestTableIsExported(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	m.Queue("orders").Ready().Set(1)
	m.Queue("orders").ProcessWait().Observe(time.Second)
	m.SetUnowned("orders", 1, true)
	m.RecurringMissed("daily", 1)
	m.RefusedFollowUp("orders", "size")
	m.SetReshard("orders", 7, time.Second)
	m.SetRedisMemory(1, 2)
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
	var got, want []string
	for _, f := range families {
		line := f.GetName() + " " + strings.ToLower(f.GetType().String()) + " " + f.GetHelp()
		for _, label := range f.GetMetric()[0].GetLabel() {
			line += " " + label.GetName()
		}
		got = append(got, line)
	}
	for _, m := range Table() {
		line := m.Name + " " + string(m.Type) + " " + m.Help
		for _, label := range slices.Sorted(slices.Values(m.Labels)) {
			line += " " + label
			if !slices.Contains([]string{"queue", "state", "reason", "op", "name", "version", "goversion"}, label) {
				t.Errorf("%s has the label %s", m.Name, label)
			}
		}
		want = append(want, line)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: got %v, %v, want nothing", problems, err)
	}
}

const (
	tableFile  = "../docs/operations.md"
	tableBegin = "<!-- table of metrics: LOWKIQ_TABLES_WRITE=1 go test ./metrics -run TestTableOfOperations -->\n\n"
	tableEnd   = "\n## The log\n"
)

// The table of docs/operations.md is made from Table. With LOWKIQ_TABLES_WRITE=1 this test writes
// it.
func TestTableOfOperations(t *testing.T) {
	text, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	got, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table: want %q before and %q after it", tableFile, tableBegin, tableEnd)
	}
	if os.Getenv("LOWKIQ_TABLES_WRITE") != "" {
		if err := os.WriteFile(tableFile, []byte(before+tableBegin+Rows()+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != Rows() {
		t.Errorf("the table of %s is not that of metrics/table.go; run LOWKIQ_TABLES_WRITE=1 go test ./metrics -run TestTableOfOperations", tableFile)
	}
}

// What a node has handled so far is there from the start, as zeros: increase() would miss
// the first failure of a queue.
func TestQueueBeginsWithZeros(t *testing.T) {
	m := New(prometheus.NewRegistry())
	m.Queue("orders")
	for name, vec := range map[string]prometheus.Collector{
		"processed": m.counters[processed], "failed": m.counters[failed], "redelivered": m.counters[redelivered], "overdue": m.counters[overdue],
		"handler": m.histograms[handlerSeconds].vec, "wait": m.histograms[waitSeconds].vec, "owned": m.gauges[shardsOwned], "buried": m.counters[buried],
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
	for want, vec := range []prometheus.Collector{1: m.counters[processed], 2: m.counters[failed], 3: m.counters[redelivered], 4: m.counters[overdue], 5: m.gauges[shardsOwned], 6: m.gauges[queueShards], 7: m.counters[buried]} {
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
	if n, got := testutil.CollectAndCount(m.gauges[shardsUnowned]), testutil.ToFloat64(m.gauges[shardsUnowned].WithLabelValues("orders")); n != 2 || got != 2 {
		t.Errorf("got %d series, orders %v, want 2 and 2", n, got)
	}
	if orders, mail := testutil.ToFloat64(m.gauges[queueUnhandled].WithLabelValues("orders")), testutil.ToFloat64(m.gauges[queueUnhandled].WithLabelValues("mail")); orders != 1 || mail != 0 {
		t.Errorf("unhandled: got orders %v, mail %v, want 1 and 0", orders, mail)
	}
	m.ForgetQueue("mail")
	if n := testutil.CollectAndCount(m.gauges[shardsUnowned]) + testutil.CollectAndCount(m.gauges[queueUnhandled]); n != 2 {
		t.Errorf("got %d series once mail is deleted, want those of orders", n)
	}
	m.NoUnowned()
	if n := testutil.CollectAndCount(m.gauges[shardsUnowned]) + testutil.CollectAndCount(m.gauges[queueUnhandled]); n != 0 {
		t.Errorf("got %d series of a node that does not lead, want none", n)
	}
}

// The time runs on between two scrapes though nothing is renewed, and not below zero.
func TestLeaseRemaining(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	want := func(seconds string) {
		t.Helper()
		text := headOf(leaseRemaining) + "lowkiq_lease_remaining_seconds " + seconds + "\n"
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
	before := testutil.CollectAndCount(m.counters[fenced])
	for _, op := range []string{"pop", "ack", "nack", "bury", "note", "release"} {
		m.Fenced(op)
	}
	if after := testutil.CollectAndCount(m.counters[fenced]); before == 0 || after != before {
		t.Errorf("got %d series before and %d after the first refusals, want all of them before", before, after)
	}
}

// headOf is the head of a metric in the text format.
func headOf(m *Metric) string {
	return "# HELP " + m.Name + " " + m.Help + "\n# TYPE " + m.Name + " " + string(m.Type) + "\n"
}

func TestShards(t *testing.T) {
	owned := map[string]Figures{
		"orders": {Lag: 1500 * time.Millisecond, Jobs: map[string]int{"ready": 2, "retry": 1}, Failed: 3, Morgue: 4, Outgoing: 9, Unlogged: 7},
		"mail":   {Jobs: map[string]int{"ready": 0}},
	}
	s := &Shards{Timeout: time.Second, Read: func(ctx context.Context) (map[string]Figures, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a scrape has no deadline")
		}
		return owned, nil
	}}
	want := `
` + headOf(journalDropped) + `lowkiq_journal_dropped_lines{queue="mail"} 0
lowkiq_journal_dropped_lines{queue="orders"} 7
` + headOf(morgue) + `lowkiq_morgue_payloads{queue="mail"} 0
lowkiq_morgue_payloads{queue="orders"} 4
` + headOf(outgoing) + `lowkiq_outgoing_messages{queue="mail"} 0
lowkiq_outgoing_messages{queue="orders"} 9
` + headOf(jobsFailed) + `lowkiq_queue_jobs_failed{queue="mail"} 0
lowkiq_queue_jobs_failed{queue="orders"} 3
` + headOf(jobs) + `lowkiq_queue_jobs{queue="mail",state="ready"} 0
lowkiq_queue_jobs{queue="orders",state="ready"} 2
lowkiq_queue_jobs{queue="orders",state="retry"} 1
` + headOf(lag) + `lowkiq_queue_lag_seconds{queue="mail"} 0
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
	push := Pushed(registry)("orders", func(_ context.Context, jobs []lowkiq.Push) ([]protocol.Result, error) {
		if len(jobs) == 1 {
			return nil, refused
		}
		return []protocol.Result{{}, {Merged: true}, {Err: refused}}, refused
	})
	for _, n := range []int{3, 1, 3} {
		if _, err := push(t.Context(), make([]lowkiq.Push, n)); !errors.Is(err, refused) {
			t.Errorf("got %v, want the error of the push", err)
		}
	}
	want := headOf(pushed) + "lowkiq_jobs_pushed_total{queue=\"orders\"} 4\n"
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
` + headOf(callsWaiting) + `lowkiq_calls_waiting 4
` + headOf(children) + `lowkiq_children{queue="orders"} 2
` + headOf(childrenBusy) + `lowkiq_children_busy{queue="orders"} 1
` + headOf(logDropped) + `lowkiq_log_dropped_lines_total 5
` + headOf(slots) + `lowkiq_slots 8
` + headOf(slotsBusy) + `lowkiq_slots_busy 3
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
		{"handler", all["orders"].Handler, "{map[-160:2 0:1 8:1 9:1 211:1] 86400005}"},
		{"wait", all["orders"].Wait, "{map[16:1] 4}"},
		{"nothing yet", all["mail"].Handler, "{map[] 0}"},
	} {
		if got := fmt.Sprintf("{%v %.0f}", c.got.Counts, c.got.Sum); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
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
	h := newHistograms(handlerSeconds).forQueue("orders")
	for i := 0; b.Loop(); i++ {
		h.Observe(time.Duration(i%1000) * 130 * time.Microsecond)
	}
}
