package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// The page of a queue that lags says which group floods it, and what its limit does about it.
func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fillQueueOnly()
	const evil = "<b>evil</b>:"
	late := time.Now().Add(-time.Hour)
	var jobs []lowkiq.Push
	for group, n := range map[string]int{"acme:": 60, evil: 30, "": 10} {
		for i := range n {
			jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint(group, i), PerformAt: late})
		}
	}
	for i := range floodRows {
		jobs = append(jobs, lowkiq.Push{ID: fmt.Sprintf("small-%d:x", i), PerformAt: late})
	}
	w.push(jobs...)
	_, err := w.client.Leases().Take(t.Context(), "n1/01J.1", []byte("{}"), []byte("{}"), time.Minute)
	must(t, err)
	_, err = w.client.AskGroups(t.Context(), "orders", &protocol.GroupRequest{
		Instance: "n1/01J.1", Number: 1, Limit: rules.Limit{Concurrency: 1}, Groups: []protocol.GroupWant{{Group: "acme:", Busy: 1, Stop: time.Hour}}})
	must(t, err)
	page := w.get("/queues/orders")
	expect(t, page, 200, "Groups that wait", "all 108 waiting jobs", "10 jobs are in no group", "2 other groups have fewer",
		`>acme:</a></th><td class="num" data-name="waiting">60</td><td class="num" data-name="share">56 %</td><td class="num" data-name="in calls">1</td>`, ">in 59 m", `href="./queues/orders/rules?hold=acme%3a#holds"`,
		`>&lt;b&gt;evil&lt;/b&gt;:</a></th><td class="num" data-name="waiting">30</td>`)
	if body := page.Body.String(); strings.Index(body, ">acme:</a>") > strings.Index(body, "evil&lt;") {
		t.Error("got the smaller group first, want the largest")
	}
	expect(t, w.get("/queues/orders/rules?hold=acme:"), 200, `name="prefix" value="acme:"`)
}

// A queue that does not lag, and a queue whose ids are in no groups, have no such list.
func TestNoFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	w.push(lowkiq.Push{ID: "late", PerformAt: time.Now().Add(-time.Hour)})
	if body := w.get("/queues/orders").Body.String(); strings.Contains(body, "Groups that wait") {
		t.Error("got groups, want none")
	}
}
