package days

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/internal/store/daycounts"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestFigures checks that the durations of two processes, in two additions each, add up in mean,
// deviation and percentiles.
func TestFigures(t *testing.T) {
	t.Parallel()
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now, err := c.Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := daycounts.Counts{}
	m := metrics.New(prometheus.NewRegistry())
	q := m.Queue("orders")
	for i := range 1000 {
		q.Handler.Observe(time.Duration(i+1) * time.Millisecond)
		q.Processed.Inc()
		if i%250 != 249 {
			continue
		}
		totals := m.Totals()["orders"]
		all := daycounts.Counts{daycounts.Processed: float64(totals.Processed)}
		all.SetDurations(daycounts.Run, totals.Handler.Counts, totals.Handler.Sum, totals.Handler.Squares)
		added := daycounts.Counts{}
		for name, n := range all {
			added[name] = n - before[name]
		}
		before = all
		addition := &daycounts.Addition{Queue: "orders", Period: now.UTC().Format(redisdb.Hours), Counts: added}
		if err := daycounts.Into(c.DB())(t.Context(), []*daycounts.Addition{addition})[0]; err != nil {
			t.Fatal(err)
		}
	}
	found, err := Read(t.Context(), c, Hours, 2, "orders")
	if err != nil || len(found) != 1 || found[0].Unreadable > 0 {
		t.Fatalf("got %+v, %v", found, err)
	}
	got := found[0].Figures
	near := func(what string, got, want, off float64) {
		t.Helper()
		if math.Abs(got-want) > off*want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	if got.Run.Count() != 1000 || got.Processed != 1000 {
		t.Errorf("got %d runs, %d processed, want 1000", got.Run.Count(), got.Processed)
	}
	near("mean", got.Run.Mean(), .5005, 1e-9)
	near("deviation", got.Run.Deviation(), math.Sqrt((1000*1000-1)/12.)/1000, 1e-9)
	near("p50", got.Run.Percentile(.5), .5, .09)
	near("p95", got.Run.Percentile(.95), .95, .09)
	near("p99", got.Run.Percentile(.99), .99, .09)
	if empty := (Durations{}); empty.Mean() != 0 || empty.Deviation() != 0 || empty.Percentile(.5) != 0 {
		t.Error("of nothing all is 0")
	}
}

// TestUnreadableCountsAreLeftOut checks that unreadable counts are left out and that their number
// is reported.
func TestUnreadableCountsAreLeftOut(t *testing.T) {
	t.Parallel()
	f, unreadable := parseFigures(map[string]string{
		"processed": "6", "run:3": "2", "run:-160": "1", "run:sum": "1.5", "run:squares": "2.25", // sound
		"failed": "-1", "retried": "nan", "buried": "x", "unheard": "1", "run:9999": "1", "run:": "1", "wait": "1", "wait:1": "1e30",
	})
	if unreadable != 8 || f.Processed != 6 || f.Run.Count() != 3 || f.Run.Sum != 1.5 || f.Run.Squares != 2.25 || f.Wait.Count() != 0 || f.Failed != 0 {
		t.Errorf("got %d unreadable, %+v", unreadable, f)
	}
}
