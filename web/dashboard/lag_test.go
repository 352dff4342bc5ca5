package dashboard

import (
	"regexp"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Beside each red lag is the sentence of why: at the totals, in the row of the queue, on its page, and in the rows of its shards.
func TestRedLagHasItsSentence(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	late := time.Now().Add(-2 * time.Hour)
	mail, err := w.client.Queue(t.Context(), "mail")
	must(t, err)
	for shard := range 3 { // n1 has the first shard, n2 the second, and nobody the third
		for i := 0; ; i++ {
			if id := string(rune('a' + i)); mail.Of(id).Index == shard {
				_, err := mail.Push(t.Context(), lowkiq.Push{ID: id, PerformAt: late})
				must(t, err)
				break
			}
		}
	}
	w.settle("orders", "mail")
	expect(t, w.get("/"), 200, `<a href="./queues/mail">mail</a> lags by 2 h 0 m: no live node handles it`, `<span class="cause">no live node handles it`)
	page := w.get("/queues/mail")
	expect(t, page, 200, "<li>no live node handles it", `<span class="cause">no live node owns it</span>`)
	red := regexp.MustCompile(`(?s)<tr>.*?</tr>`)
	rows := 0
	for _, row := range red.FindAllString(page.Body.String(), -1) {
		if regexp.MustCompile(`class="bad">2 h`).MatchString(row) {
			rows++
			if !regexp.MustCompile(`class="cause">no live node`).MatchString(row) {
				t.Errorf("got row %s, want a sentence beside its lag", row)
			}
		}
	}
	if rows != 3 {
		t.Errorf("got %d red lags, want 3", rows)
	}
}
