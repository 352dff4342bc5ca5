package dashboard

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/days"
)

// What a queue did is drawn and listed, for each choice of how much; what cannot be read is said to be left out.
func TestDaysPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	page := func(query string) *httptest.ResponseRecorder { return w.get("/queues/orders/days" + query) }
	expect(t, page(""), 200, "No process counted anything of this queue in 14 days", `aria-current="page">Days`)
	now, err := w.client.Time(t.Context())
	must(t, err)
	today, hour := now.UTC().Format("2006-01-02"), now.UTC().Format("2006-01-02T15")
	for _, period := range []string{today, hour} {
		_, err = w.client.DB().Do(t.Context(), "write", "HSET", w.client.DB().Keys.Day("orders", period), "processed", 12345, "failed", 100,
			"retried", 7, "buried", 3, "pushed", 777, "run:0", 4, "run:sum", 2, "run:squares", 1, "wait:0", 4, "wait:sum", 2, "wait:squares", 1)
		must(t, err)
	}
	expect(t, w.get("/queues/orders"), 200, "<title>"+today+": 12,345 done, 100 failed</title>", `href="./queues/orders/days">14 days</a>`)
	expect(t, page(""), 200, "<title>"+today+": 12,345 done, 100 failed</title>", ">"+today+"</th><td>777</td><td>12,345</td>", "500 ms")
	expect(t, page("?days=92"), 200, "<title>"+today+": 12,345 done", now.UTC().AddDate(0, 0, -91).Format("2006-01-02"))
	expect(t, page("?hours=48"), 200, "<title>"+hour+": 12,345 done", `">Hour</th>`)
	_, err = w.client.DB().Do(t.Context(), "write", "HSET", w.client.DB().Keys.Day("orders", today), "retried", "no figure")
	must(t, err)
	expect(t, page(""), 200, "Some of these figures cannot be read")
	expect(t, page("?days=3"), 400, "must be days=92, hours=48 or empty")
	expect(t, w.get("/queues/nowhere/days"), 404)
}

// The longest bar has all of the height, the others their share; a period of which nothing was counted has none.
func TestBarsOfDays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 30, 0, 0, time.UTC)
	b := daysBody{Now: daySpans()[0]}
	b.drawChart([]days.Day{{Period: "2026-02-28", Figures: days.Figures{Processed: 50, Failed: 50}}, {Period: "2026-03-01", Figures: days.Figures{Processed: 25}}}, now)
	if len(b.Bars) != 14 || b.Bars[0].Period != "2026-02-16" || b.Bars[0].DoneHeight != "0.00" || b.Top != 100 {
		t.Errorf("got %+v", b)
	}
	full, last := b.Bars[12], b.Bars[13]
	if full.Period != "2026-02-28" || full.DoneY != "50.00" || full.DoneHeight != "50.00" || full.FailedY != "0.00" || full.FailedHeight != "50.00" {
		t.Errorf("got %+v", full)
	}
	if last.DoneY != "75.00" || last.DoneHeight != "25.00" || last.FailedHeight != "0.00" || b.Rows[0].Period != "2026-03-01" || !strings.HasPrefix(last.X, "93.") {
		t.Errorf("got %+v", last)
	}
}
