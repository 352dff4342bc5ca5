package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
)

// TestEventStream checks that published events and changes come as described, and none of another queue.
func TestEventStream(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	server := httptest.NewServer(w.handler)
	t.Cleanup(server.Close)
	client := server.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/events?queue=orders", nil)
	must(t, err)
	r.Host = "example.com"
	answer, err := client.Do(r)
	must(t, err)
	defer answer.Body.Close()
	if got := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("got %s, %q; want a stream", answer.Status, got)
	}
	p := events.NewPublisher(events.Into(w.client.DB()))
	p.Want("orders", "mail")
	go p.Run(ctx) //nolint:errcheck // nil
	go func() {   // until the stream has begun
		for at := time.UnixMicro(1_700_000_000_000_000); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			p.Runs("n1/1.1", "mail", 0, []journal.Run{{ID: "m", Verdict: journal.Done, Ran: journal.Ran{Due: at, Popped: at}}})
			p.Runs("n1/1.1", "orders", 3, []journal.Run{{ID: "a", Verdict: journal.Failed, Error: "no stock", Ran: journal.Ran{Due: at, Popped: at}}})
			p.Recovered("n1/1.1", "orders", 3, events.Recovery{At: at, Jobs: 7, From: "n2/1.1"})
			_ = changes.In(w.client.DB()).Add(ctx, changes.Line{Action: "pause", Queue: "orders"})
		}
	}()
	seen := map[string]bool{}
	lines := bufio.NewScanner(answer.Body)
	for len(seen) < 3 && lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var value any
		must(t, json.Unmarshal([]byte(data), &value))
		must(t, described(t).check(map[string]any{"$ref": "#/components/schemas/Event"}, value, "event"))
		var e Event
		must(t, json.Unmarshal([]byte(data), &e))
		switch {
		case e.Queue != "orders" && e.Event != events.Missed:
			t.Errorf("got %s", data)
		case e.Run != nil && (e.Run.Verdict != journal.Failed || e.Run.Error != "no stock" || e.Run.Node != "n1" || e.Run.Shard != 3):
			t.Errorf("got %s", data)
		case e.Recovered != nil && (e.Recovered.Jobs != 7 || e.Recovered.Node != "n1" || e.Recovered.From != "n2/1.1"):
			t.Errorf("got %s", data)
		case e.Event != events.Missed:
			seen[string(e.Event)] = true
		}
	}
	if len(seen) < 3 {
		t.Errorf("got %v, %v; want runs, recoveries and changes", seen, lines.Err())
	}
}

// TestEventsTogether checks that waiting events are sent at once, up to a bound, and only the requested events. Events
// that cannot be written count as missed.
func TestEventsTogether(t *testing.T) {
	t.Parallel()
	const all = 1000
	waiting := make(chan events.Event, all)
	for n := range all {
		waiting <- events.Event{Kind: events.Ran, Queue: []string{"orders", "mails"}[n%2], Run: &journal.Run{ID: fmt.Sprint("id", n), Verdict: journal.Done}}
	}
	filter, next := &events.Filter{Queue: "orders"}, 0
	for len(waiting) > 0 {
		first := <-waiting
		text := joinEvents(&first, waiting, filter)
		if len(text) > bytesTogether+1024 || len(waiting) > 0 && len(text) < bytesTogether {
			t.Fatalf("%d bytes, and %d events wait: want about %d, or all", len(text), len(waiting), bytesTogether)
		}
		for _, one := range strings.SplitAfter(text, "\n\n") {
			if one == "" {
				continue
			}
			if !strings.Contains(one, fmt.Sprintf(`"id":"id%d"`, next)) {
				t.Fatalf("got %s, want that of id%d", one, next)
			}
			next += 2
		}
	}
	if next != all {
		t.Errorf("got events up to id%d, want %d", next, all)
	}
	bad := &events.Event{Kind: events.Changed, Queue: "orders", Change: &changes.Line{New: json.RawMessage("{")}}
	if text := joinEvents(bad, waiting, filter); !strings.Contains(text, `"missed":1`) {
		t.Errorf("got %q, want that one was missed", text)
	}
}

// TestEventStreamsLeaveRoom checks that as many streams as allowed can be open at once, and that pushes get through
// beside them.
func TestEventStreamsLeaveRoom(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	server := httptest.NewServer(w.handler)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(method, path, body string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(body))
		must(t, err)
		r.Host = "example.com"
		answer, err := server.Client().Do(r)
		must(t, err)
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	for n := range maxEventStreams {
		if answer := ask("GET", "/api/v1/events?queue=orders", ""); answer.StatusCode != 200 {
			t.Fatalf("stream %d: got %s, want %d at once", n+1, answer.Status, maxEventStreams)
		}
	}
	if answer := ask("GET", "/api/v1/events?queue=orders", ""); answer.StatusCode != 503 || answer.Header.Get("Retry-After") != "30" {
		t.Errorf("one stream more: got %s, again after %s s; want 503, 30", answer.Status, answer.Header.Get("Retry-After"))
	}
	if answer := ask("POST", ordersPath+"jobs", `{"id":"beside","payload":"`+strings.Repeat("x", 512<<10)+`"}`); answer.StatusCode != 200 {
		t.Errorf("a push beside the streams: got %s, want 200", answer.Status)
	}
}
