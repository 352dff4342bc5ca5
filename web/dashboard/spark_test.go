package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A queue remembers the rates of an hour by minute, and an idle queue remembers nothing.
func TestSpark(t *testing.T) {
	t.Parallel()
	began := time.Unix(1763600010, 0)
	before := &figures{At: began}
	var processed, failed int64
	for reading := range 2*3600/15 + 1 {
		now := &figures{At: began.Add(time.Duration(reading) * 15 * time.Second)}
		processed += 15 * int64(reading%8)
		if reading > 400 {
			failed += 15
		}
		now.Sum = protocol.Stats{Processed: processed, Failed: failed}
		if reading > 0 {
			now.Rate = now.rateSince(before)
			now.remember(before)
		}
		before = now
	}
	if n := len(before.Past); n != 60 {
		t.Errorf("got %d points after two hours, want a point for each minute of an hour", n)
	}
	s := before.Spark()
	if s.Peak.Processed < 4 || s.Peak.Processed > 6 || s.Peak.Failed != 1 || s.Processed[:2] != "M1" || s.Failed == "" {
		t.Errorf("got %+v, want lines of 1.5 to 5.5 processed and 1 failed per second", s)
	}
	for i := range 2*3600/15 + 10 {
		now := &figures{At: before.At.Add(15 * time.Second), Sum: before.Sum}
		now.Rate = now.rateSince(before)
		now.remember(before)
		if before = now; i == 20 && before.Spark().Processed == "" {
			t.Error("got no line five minutes after the last job, want one")
		}
	}
	if before.Past != nil || before.Spark() != (spark{}) {
		t.Errorf("got %v after two hours without a job, want nothing", before.Past)
	}
}

// The overview draws the last hour of each queue that had jobs.
func TestOverviewDrawsQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for i := range 3 {
		f := *w.pages.sampler.latest().queue("orders")
		f.At = time.Now().Add(time.Duration(i) * time.Minute)
		f.Sum.Processed += 120
		w.pages.sampler.learnFigures(&f)
	}
	f := w.pages.sampler.latest().queue("orders")
	expect(t, w.get("/"), 200, `<svg class="spark"`, fmt.Sprintf(`aria-label="The last hour: at most %s processed per second, and 0 failed"`, perSecond(f.Spark().Peak.Processed)))
	expect(t, w.get("/?q=mail"), 200, `<td class="zero">–</td>`)
}
