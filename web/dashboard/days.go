package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/queue/days"
	"github.com/lowkiq/lowkiq/web"
)

// daysBody is the page with a queue's figures of days or hours.
type daysBody struct {
	Queue string
	Tabs  tabs
	Spans []daySpan
	Now   daySpan
	Bars  []dayBar // a bar for each period, oldest first
	Top   uint64   // count of the longest bar
	Rows  []days.Day
	Some  bool // some counts cannot be read
}

// daySpan is a choice of a time span.
type daySpan struct {
	Name, Query string
	Span        days.Span
	N           int
}

func daySpans() []daySpan {
	return []daySpan{{"14 days", "", days.Days, 14}, {"92 days", "days=92", days.Days, days.Kept}, {"48 hours", "hours=48", days.Hours, days.HoursKept}}
}

// dayBar is a period of the chart. Its parts have heights in percent of the chart.
type dayBar struct {
	Period       string
	X, Width     string // percent
	Done, Failed uint64
	DoneY        string
	DoneHeight   string
	FailedY      string
	FailedHeight string
}

func (d *Dashboard) daysPage(r *http.Request) (view, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return view{}, err
	}
	spans := daySpans()
	at := slices.IndexFunc(spans, func(s daySpan) bool { return s.Query == r.URL.RawQuery })
	if at < 0 {
		return view{}, web.NewProblem(http.StatusBadRequest, "%.60q must be days=92, hours=48 or empty.", r.URL.RawQuery)
	}
	b, err := d.daysOf(r.Context(), q.Name, spans[at])
	if err != nil {
		return view{}, err
	}
	b.Tabs, b.Spans = tabs{Queue: q.Name, On: "days"}, spans
	return view{Page: "days", Title: "Days of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
}

// daysOf reads the figures of a queue, and draws them.
func (d *Dashboard) daysOf(ctx context.Context, queue string, span daySpan) (daysBody, error) {
	b := daysBody{Queue: queue, Now: span}
	found, err := days.Read(ctx, d.client, span.Span, span.N, queue)
	if err != nil {
		return b, err
	}
	now, err := d.client.Time(ctx)
	if err != nil {
		return b, err
	}
	b.drawChart(found, now)
	return b, nil
}

// drawChart draws the figures of the periods up to now. A period without counts has a bar of no height, so that
// bars stay at their places.
func (b *daysBody) drawChart(found []days.Day, now time.Time) {
	b.Rows = slices.Clone(found)
	slices.Reverse(b.Rows) // newest first
	by := map[string]days.Day{}
	for _, day := range found {
		by[day.Period] = day
		b.Top = max(b.Top, day.Figures.Processed+day.Figures.Failed)
		b.Some = b.Some || day.Unreadable > 0
	}
	percent := func(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) }
	share := func(n uint64) float64 { return 100 * float64(n) / float64(max(1, b.Top)) }
	step := 100 / float64(b.Now.N)
	for i := range b.Now.N {
		ago := b.Now.N - 1 - i
		at := now.UTC().AddDate(0, 0, -ago)
		if b.Now.Span == days.Hours {
			at = now.UTC().Add(-time.Duration(ago) * time.Hour)
		}
		f := by[at.Format(string(b.Now.Span))].Figures
		done, failed := share(f.Processed), share(f.Failed)
		b.Bars = append(b.Bars, dayBar{
			Period: at.Format(string(b.Now.Span)), Done: f.Processed, Failed: f.Failed, X: percent(float64(i)*step + step/10), Width: percent(step * .8),
			DoneY: percent(100 - done), DoneHeight: percent(done), FailedY: percent(100 - done - failed), FailedHeight: percent(failed),
		})
	}
}
