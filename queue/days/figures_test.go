package days

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/internal/tally"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/browse"
)

func reading(m *metrics.Metrics) Figures {
	b := m.Totals()["orders"].Handler
	return Figures{Run: Durations{browse.Histogram{Counts: b.Counts, Sum: b.Sum}, b.Squares}, Processed: m.Totals()["orders"].Processed}
}

// TestFigures: parts of a day add up to what was observed, by mean, deviation and percentiles.
func TestFigures(t *testing.T) {
	t.Parallel()
	m := metrics.New(prometheus.NewRegistry())
	q := m.Queue("orders")
	var parts Figures
	before := Figures{}
	for i := range 1000 {
		q.Handler.Observe(time.Duration(i+1) * time.Millisecond)
		q.Processed.Inc()
		if i%100 == 99 {
			now := reading(m)
			text, err := json.Marshal(now.Since(before))
			if err != nil {
				t.Fatal(err)
			}
			var part Figures
			if err := json.Unmarshal(text, &part); err != nil {
				t.Fatal(err)
			}
			parts, before = parts.Add(part), now
		}
	}
	near := func(what string, got, want, off float64) {
		t.Helper()
		if math.Abs(got-want) > off*want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	if parts.Run.Count() != 1000 || parts.Processed != 1000 {
		t.Errorf("got %d runs, %d processed, want 1000", parts.Run.Count(), parts.Processed)
	}
	near("mean", parts.Run.Mean(), .5005, 1e-9)
	near("deviation", parts.Run.Deviation(), math.Sqrt((1000*1000-1)/12.)/1000, 1e-9)
	near("p50", parts.Run.Percentile(.5), .5, .09)
	near("p95", parts.Run.Percentile(.95), .95, .09)
	near("p99", parts.Run.Percentile(.99), .99, .09)
	if empty := (Durations{}); empty.Mean() != 0 || empty.Deviation() != 0 || empty.Percentile(.5) != 0 {
		t.Error("of nothing all is 0")
	}
}

// TestUnreadablePartsAreLeftOut: and said.
func TestUnreadablePartsAreLeftOut(t *testing.T) {
	t.Parallel()
	good := `1 5 {"run":{"n":{"3":2},"s":1,"q":1},"wait":{"n":{},"s":0,"q":0},"processed":2}`
	var d Day
	some := d.add(tally.FieldsOf(map[string]string{"a": good, "b": "1 5 {", "c": `1 5 {"run":{"n":{"9999":1}}}`, "d": good, "e": "7 5", "f": "?", "joined": good[4:]}))
	if !some || d.Unreadable != 3 || d.Figures.Processed != 6 || d.Figures.Run.Count() != 6 {
		t.Errorf("got %v, %+v", some, d)
	}
	if d := (Day{}); d.add(tally.FieldsOf(map[string]string{"a": "7 5"})) {
		t.Error("a mark is no figure")
	}
}
