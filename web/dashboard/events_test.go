package dashboard

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// listen opens a stream of events at a real server.
func listen(t *testing.T, ctx context.Context, base, of string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events?of="+of, nil)
	must(t, err)
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// nextEvent reads one event.
func nextEvent(t *testing.T, lines *bufio.Scanner) (name, data string) {
	t.Helper()
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case lines.Text() == "" && name != "":
			return name, data
		case key == "event":
			name = value
		case key == "data":
			data += value + "\n"
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return "", ""
}

func TestEventsKeepAPageLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	server := httptest.NewServer(w.pages)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	answer := listen(t, ctx, server.URL, "/queues/mail")
	if got := answer.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("got Content-Type %q, want text/event-stream", got)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for _, want := range []string{"figures", "shards", "trouble"} {
		if name, _ := nextEvent(t, lines); name != want {
			t.Errorf("got event %q first, want %q", name, want)
		}
	}
	must(t, w.client.Registry().Pause(ctx, "mail"))
	for {
		if name, data := nextEvent(t, lines); name == "figures" && strings.Contains(data, "it is paused") {
			break
		}
	}
	cancel()
}

func TestEventsOfEveryLivePage(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	server := httptest.NewServer(w.pages)
	t.Cleanup(server.Close)
	for of, want := range map[string]string{"/": "totals", "/%3Fq%3Dmail": "totals", "/shards": "map", "/nodes": "nodes", "/watch": "trouble", "/queues/orders": "figures"} {
		lines := bufio.NewScanner(listen(t, t.Context(), server.URL, of).Body)
		lines.Buffer(nil, 1<<20)
		if name, _ := nextEvent(t, lines); name != want {
			t.Errorf("%s: got event %q first, want %q", of, name, want)
		}
	}
	for _, of := range []string{"", "/redis", "/queues/orders/jobs", "http://example.com/", "%2Fqueues%2F%7B"} {
		expect(t, w.get("/events?of="+of), 404, "Nothing is here", "must be the path of a live page")
	}
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range maxStreams {
		w.pages.streams <- struct{}{}
	}
	answer := w.get("/events?of=/")
	expect(t, answer, 503, "100 pages are live already")
	if answer.Header().Get("Retry-After") == "" {
		t.Error("got no Retry-After")
	}
}

// A stream ends with the session that opened it, which cannot open another one then.
func TestStreamsEndWithTheSession(t *testing.T) {
	t.Parallel()
	producer, err := queue.Open(queue.Config{Redis: "redis://127.0.0.1:1/0"}) // nobody asks it
	must(t, err)
	t.Cleanup(func() { must(t, producer.Close()) })
	w := &world{t: t, producer: producer, client: producer.Protocol()}
	w.pages, err = newDashboard(fakeNode{w: w}, web.Config{Cluster: fakeNode{w: w}, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	node := w.node(auth.Tokens{Read: []string{readToken}})
	src := &fakeSource{entries: oneQueue(3), takes: time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		w.pages.sampler = s
		ask := func(session *http.Cookie) *httptest.ResponseRecorder {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			answer := httptest.NewRecorder()
			node.ServeHTTP(answer, withSession(by("/events?of=/", ""), session).WithContext(ctx))
			return answer
		}
		began, session := time.Now(), logIn(t, node)
		life := time.Duration(session.MaxAge) * time.Second
		time.Sleep(life - time.Minute)
		if body := ask(session).Body.String(); strings.Count(body, "event: totals\n") < 25 {
			t.Errorf("got %d figures in the session's last minute, want one every two seconds", strings.Count(body, "event: totals\n"))
		}
		if took := time.Since(began); took < life || took > life+web.StreamBeat {
			t.Errorf("got the end of the stream after %s, want it after the session's %s", took, life)
		}
		if n := len(w.pages.streams); n != 0 {
			t.Errorf("got %d slots taken after the end, want 0", n)
		}
		if again := ask(session); again.Code != http.StatusUnauthorized {
			t.Errorf("got %d when it was opened again, want 401", again.Code)
		}
	})
}

func TestEventFormat(t *testing.T) {
	t.Parallel()
	answer := httptest.NewRecorder()
	out := &eventWriter{web.NewEventStream(answer), map[string]string{}}
	must(t, out.event("totals", "<p>a</p>\r\n\n<p>b</p>"))
	must(t, out.event("totals", "<p>a</p>\r\n\n<p>b</p>")) // no news
	must(t, out.Comment("still here"))
	if got, want := answer.Body.String(), "event: totals\ndata: <p>a</p>\ndata: \ndata: <p>b</p>\n\n: still here\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
