package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

// A page of a queue shows what happens in it, that of all queues what happens in any; what people have written is text.
func TestTicker(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	server := httptest.NewServer(w.pages)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := events.NewPublisher(events.Into(w.client.DB()))
	p.Want("", "orders", "mail")
	go p.Run(ctx) //nolint:errcheck // nil
	go func() {
		for at := time.Now(); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) { // until the streams have begun
			p.Runs("n1/1.1", "mail", 0, []journal.Run{{ID: "of-mail", Verdict: journal.Done, Ran: journal.Ran{Due: at, Popped: at}}})
			p.Runs("n1/1.1", "orders", 0, []journal.Run{{ID: hostile, Verdict: journal.Failed, RetryCount: 2, Error: "no <b>stock</b>", Ran: journal.Ran{Due: at, Popped: at, Began: at, Took: time.Second}}})
			p.Recovered("n1/1.1", "orders", 3, events.Recovery{At: at, Jobs: 7, Crashes: 1, From: "n2/<1>.1"})
			_ = changes.In(w.client.DB()).Add(ctx, changes.Line{Action: "requeue", Queue: "orders", Target: "<t>", IDs: []string{"1", "2", "3", "4"}, Why: "<why>"})
		}
	}()
	for of, wanted := range map[string][]string{
		"/queues/orders": {"failed</span>", "no &lt;b&gt;stock", "attempt 3,</span> <span class=\"soft\">took 1.0 s</span>", "recovered</span>", "7 jobs of <bdi>n2</bdi>, 1 payload buried", "requeue</span>", "&lt;why&gt;"},
		"/watch":         {"of-mail", `<a href="./queues/orders">orders</a>`, "recovered</span>"},
	} {
		lines := bufio.NewScanner(listen(t, ctx, server.URL, of).Body)
		lines.Buffer(nil, 1<<20)
		for len(wanted) > 0 {
			name, data := nextEvent(t, lines)
			if name != "ticker" {
				continue
			}
			if strings.Contains(data, "<b>stock") || of != "/watch" && strings.Contains(data, "of-mail") || strings.Count(data, "<tr>") > tickerLines+1 {
				t.Fatalf("%s: got %s", of, data)
			}
			for len(wanted) > 0 && strings.Contains(data, wanted[0]) {
				wanted = wanted[1:]
			}
		}
	}
	expect(t, w.get("/watch"), 200, "Nothing has happened since this page was opened", `data-live="./events?of=%2Fwatch"`)
	cancel()
}

func TestTickerSaysWhatWasMissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all ticker
	all.add(events.Event{Kind: events.Missed, Missed: 1}, time.Now())
	all.add(events.Event{Kind: events.Missed}, time.Now())
	answer := httptest.NewRecorder()
	must(t, w.pages.sendTicker(&all, &eventWriter{web.NewEventStream(answer), map[string]string{}}))
	if got := answer.Body.String(); !strings.Contains(got, "1 event<") || !strings.Contains(got, "nobody knows how many") {
		t.Errorf("got %s", got)
	}
}

// Who has permits of a queue with a limit is shown with its rules.
func TestPermitsAreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	_, err := w.client.Leases().Take(t.Context(), "n1/01J.1", []byte("{}"), []byte("{}"), time.Minute)
	must(t, err)
	_, err = w.client.Permits("orders").Ask(t.Context(), protocol.PermitRequest{Instance: "n1/01J.1", Number: 1, Limit: 5, Wanted: 3})
	must(t, err)
	expect(t, w.get("/queues/orders/rules"), 200, "Instances with permits", `<th scope="row">n1</th><td class="id break">n1/01J.1</td><td class="num" data-name="permits">3</td>`, "No limit is set any more")
	if sent := w.post("/queues/orders/rules", "revision", "0", "rule", "limit", "value", "{rate: 10/s, concurrency: 5}"); sent.Code != 303 {
		t.Fatalf("got %d; %s", sent.Code, sent.Body)
	}
	expect(t, w.get("/queues/orders/rules?key=limit"), 200, "3 of 5 permits are taken.", `name="value" value="{concurrency: 5, rate: 10/s}"`)
}

// So are groups with a limit: who has ids of them in calls, which wait, and which a handler holds back.
func TestGroupsAreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	if strings.Contains(w.get("/queues/orders/rules").Body.String(), "Groups whose ids run") {
		t.Error("got a section about groups, and there are none")
	}
	_, err := w.client.Leases().Take(t.Context(), "n1/01J.1", []byte("{}"), []byte("{}"), time.Minute)
	must(t, err)
	ask := protocol.GroupRequest{Instance: "n1/01J.1", Number: 1, Limit: rules.Limit{Concurrency: 2}, Groups: []protocol.GroupWant{
		{Group: "acme<b>:", New: 5, Spacing: time.Minute}, {Group: "held:", New: 1, Stop: time.Hour, Spacing: time.Minute},
	}}
	_, err = w.client.AskGroups(t.Context(), "orders", &ask)
	must(t, err)
	expect(t, w.get("/queues/orders/rules"), 200, "Groups whose ids run", `<span class="id">acme&lt;b&gt;:</span>`, `<span data-name="held">2</span> on <span title="n1/01J.1">n1</span>`,
		`<span class="id">held:</span>`, "in 59 m")
	ask.Number, ask.Groups = 2, nil
	for i := range groupsShown {
		ask.Groups = append(ask.Groups, protocol.GroupWant{Group: fmt.Sprint("g", i, ":"), New: 1})
	}
	_, err = w.client.AskGroups(t.Context(), "orders", &ask)
	must(t, err)
	expect(t, w.get("/queues/orders/rules"), 200, "there are others", `<span class="id">g49:</span>`)
}
