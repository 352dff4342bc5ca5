package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The page of a queue shows follow-ups that wait, by target with the age of the oldest, and drops the oldest.
func TestWaitingFollowUps(t *testing.T) {
	w := newWorld(t).fill()
	if answer := w.get("/queues/orders"); answer.Code != 200 || strings.Contains(answer.Body.String(), "Follow-ups that wait") {
		t.Errorf("got %d, %s, want no section without follow-ups", answer.Code, answer.Body)
	}
	q, err := w.client.Queue(t.Context(), "orders")
	must(t, err)
	old, db := time.Now().Add(-2*time.Hour).UnixMicro(), w.client.DB().ForTests()
	for i, to := range []string{"mail", "mail", "<alerts>"} {
		must(t, db.XAdd(t.Context(), &redis.XAddArgs{Stream: q.Shard(0).Keys().Out, ID: fmt.Sprint(old+int64(i), "-0"),
			Values: []any{"q", to, "i", "u", "p", "12345", "s", "", "a", "", "e", ""}}).Err())
	}
	expect(t, w.get("/queues/orders"), 200, "Follow-ups that wait", `href="./queues/mail">mail</a></th><td class="num" data-name="waiting">2</td>`, "&lt;alerts&gt;", "2 h 0 m ago", `action="./queues/orders/outgoing"`)
	for _, form := range [][]string{{"drop", "0", "confirmed", "1"}, {"drop", "all", "confirmed", "1"}, {"drop", "1"}} {
		if answer := w.post("/queues/orders/outgoing", form...); answer.Code != http.StatusBadRequest {
			t.Errorf("%v: got %d, want 400", form, answer.Code)
		}
	}
	if answer := w.post("/queues/orders/outgoing", "drop", "2", "confirmed", "1"); answer.Code != http.StatusSeeOther {
		t.Errorf("got %d, %s, want 303", answer.Code, answer.Body)
	}
	first, waiting, err := q.Outgoing(t.Context(), 10)
	must(t, err)
	if waiting != 1 || first[0].Queue != "<alerts>" {
		t.Errorf("got %d that wait, %v, want the last", waiting, first)
	}
}
