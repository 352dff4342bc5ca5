package dashboard

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

// world is the pages of a node, with a cluster of its own in Redis.
type world struct {
	t        testing.TB
	redis    *redistest.Server
	producer *queue.Client
	client   *protocol.Client
	pages    *Dashboard
	orders   *protocol.Queue
	drains   atomic.Int64 // how often a drain was asked for
}

// hostile is an id that would break a page that does not escape it.
const hostile = `x"'><script>alert(1)</script>`

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, redis: redistest.Start(t)}
	var err error
	w.producer, err = queue.Open(queue.Config{Redis: w.redis.URL(), Cluster: "shop", Timeout: time.Minute})
	must(t, err)
	w.client = w.producer.Protocol()
	w.client.DB().Slow = nil // a script that a busy machine holds up for half a second would be rested for longer than a page may take
	t.Cleanup(func() { must(t, w.client.Close()) })
	w.pages, err = newDashboard(fakeNode{w: w}, web.Config{Cluster: fakeNode{w: w}, Version: "v1.2.3", Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	w.pages.answerTimeout = time.Minute
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.pages.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeNode is in a cluster with n1, which gets requests, and others, which do not.
type fakeNode struct {
	web.Node // what no test asks
	w        *world
}

// Attach leaves the pages to newWorld, which runs them.
func (n fakeNode) Attach(func() (string, error), func(context.Context) error) error { return nil }

func (n fakeNode) Client() *queue.Client { return n.w.producer }

func (n fakeNode) Metrics() prometheus.Gatherer { return prometheus.NewRegistry() }

func (n fakeNode) Status(ctx context.Context) (status.Status, error) {
	_, err := n.w.client.Time(ctx)
	return status.Status{
		Cluster: "shop", Generation: status.Generation{Record: "1763600000000", Index: 42}, Leader: "n1",
		Warnings: []string{"node n4 of another <host> cannot be reached"},
		Nodes: []status.Node{
			{Name: "n1", Instance: "n1/01J.1", State: status.Live, LeaseAge: 0.25, Voter: true, Shards: 4, HTTP: "http://127.0.0.1:7948", Version: "0.2.0",
				Since: 1763600000.5, Applied: 42, Load: &status.Load{CPU: 1.5, Memory: 300 << 20, Slots: 8, Busy: 8}},
			{Name: "n2", Instance: "n2/01K.1", State: status.Draining, LeaseAge: 0.5, Shards: 1, HTTP: "javascript:alert(1)", Applied: 40},
			{Name: "n3", Instance: "n3/01L.1", State: status.Gone},
			{Name: "n5", Instance: "n5/01N.1", State: status.Live, Static: "0 of 3"},
		},
	}, err
}

func (n fakeNode) MayBegin(context.Context, string) ([]string, error) { return nil, nil }

func (n fakeNode) Shards(context.Context) ([]status.Shard, error) { return nil, nil }

// Owners gives all shards to n1.
func (n fakeNode) Owners(context.Context) (status.Owners, error) {
	return func(s lowkiq.Shard, holder string) (string, status.ShardState) {
		switch {
		case nodeOf(holder) == "n1":
			return "n1", status.Owned
		case holder != "":
			return "n1", status.Leaving
		case s.Index == 2:
			return "n1", status.Claiming
		}
		return "", status.Unowned
	}, nil
}

func (n fakeNode) Members() ([]status.Member, error) {
	return []status.Member{
		{Node: "n1", Instance: "n1/01J.1", Boot: "01J", State: "alive", Address: "127.0.0.1:7946", Since: 1763600000},
		{Node: "n9", Instance: "n9/01M.1", Boot: "01M", State: "dead", Address: "127.0.0.1:7996", Since: 1763600000},
	}, nil
}

func (n fakeNode) Plan(_ context.Context, add, remove []string) ([]status.Move, error) {
	if len(remove) > 0 {
		return nil, fmt.Errorf("%w %q (known: n1)", status.ErrUnknownNode, remove[0])
	}
	var moves []status.Move
	for i, name := range add {
		moves = append(moves, status.Move{Queue: "orders", Index: i, From: "n1", To: name, Reason: "owner above its share"})
	}
	return moves, nil
}

func (n fakeNode) Why(_ context.Context, _ *protocol.Queue, id string) (status.Why, error) {
	due := 12.5
	return status.Why{State: "scheduled", Reason: "the reason of " + id, Due: &due}, nil
}

// Cancel knows of one id that runs.
func (n fakeNode) Cancel(_ context.Context, _ *protocol.Queue, id string, _ protocol.Cancellation) error {
	if id == "w1" {
		return nil
	}
	return fmt.Errorf("%q: %w", id, status.ErrNotRunning)
}

func (n fakeNode) Handled(context.Context) (status.Handled, error) {
	return status.Handled{{Node: "n1", Name: "n1/01J.1", Queues: map[string]int{"orders": 4}}}, nil
}

// DrainProgress does what was asked at once.
func (n fakeNode) DrainProgress(context.Context, string) (status.DrainProgress, error) {
	return status.DrainProgress{Drains: n.w.drains.Load()%2 == 1}, nil
}

func (n fakeNode) RedisFull() string { return "" }

func (n fakeNode) RedisRefuses() string { return "" }

func (n fakeNode) LocateOrCancel(string, lowkiq.Shard, string, *protocol.Cancellation) (where protocol.Whereabouts, ok bool) {
	return where, false
}

func (n fakeNode) Drain(_ context.Context, node string, _ bool) (string, error) {
	n.w.drains.Add(1)
	if node == "n1" {
		return "n1/01J.1", nil
	}
	return "", fmt.Errorf("drain %s: %w", node, status.ErrNotHeard)
}

// fill puts jobs of queue orders into every state; queue mail has none, but owners.
func (w *world) fill() *world {
	w.t.Helper()
	ctx := w.t.Context()
	w.fillQueueOnly()
	mail, err := w.client.Register(ctx, lowkiq.Queue{Name: "mail", Shards: 5})
	must(w.t, err)
	for i, instance := range []string{"n1/01J.1", "n2/01K.1"} {
		_, err = mail.Shard(i).Claim(ctx, instance, protocol.Fresh, protocol.Owner{})
		must(w.t, err)
	}
	w.push(job("f1"), job("f2"), job("b1"), job("d1"), job("d3"), job("w1"))
	claim, err := w.orders.Shard(0).Claim(ctx, "n1/01J.1", protocol.Fresh, protocol.Owner{})
	must(w.t, err)
	popped, err := claim.Pop(ctx, protocol.PopRequest{IDs: 6, Bytes: 1 << 20})
	must(w.t, err)
	must(w.t, claim.Note(ctx, protocol.Note{Flight: popped.Flight, ID: "w1", Note: lowkiq.Note{Progress: .4, Log: "page <12>", State: []byte(`{"page":"<b>"}`)}}))
	_, err = claim.Nack(ctx,
		protocol.Nack{Flight: popped.Flight, ID: "f1", Kind: protocol.Retry, RetryCount: 3, Delay: time.Hour, Error: "no stock for 17\nsecond <line>"},
		protocol.Nack{Flight: popped.Flight, ID: "f2", Kind: protocol.Retry, RetryCount: 0, Delay: 2 * time.Hour, Error: "no price"})
	must(w.t, err)
	_, err = claim.Bury(ctx,
		protocol.Burial{Flight: popped.Flight, ID: "b1", Policy: protocol.Block, RetryCount: 25, Error: "stuck"},
		protocol.Burial{Flight: popped.Flight, ID: "d1", Policy: protocol.Bury, RetryCount: 25, Error: "no <b>stock</b> for 18"},
		protocol.Burial{Flight: popped.Flight, ID: "d3", Policy: protocol.Bury, RetryCount: 25, Error: "no <b>stock</b> for 19"})
	must(w.t, err)
	w.push(job("d2"))
	_, err = browse.Of(w.orders).Bury(ctx, browse.Anywhere, "d2")
	must(w.t, err)
	scheduled := job("s1")
	scheduled.PerformAt = time.Unix(4102444800, 0)
	binary, long := job("\xff\n"), job("long")
	binary.Payload, long.Payload = []byte{0, 1, 2, 255}, []byte(`"`+strings.Repeat("ä", 20_000)+`"`)
	evil := job(hostile)
	evil.Payload = []byte(`</pre><img src=x onerror=alert(1)>`)
	w.push(job("r1"), job("r2"), scheduled, job("a/b"), binary, long, evil)
	book := recurring.Of(w.client)
	must(w.t, book.Declare(ctx, map[string]recurring.Spec{"report": {Cron: "0 6 * * 1-5", Zone: "Europe/Berlin", Queue: "mail", ID: hostile, Payload: []byte(`{"day":"</pre><b>{tick}"}`)}}, time.Unix(1763600000, 0), "boot"))
	must(w.t, book.Add(ctx, "sync", recurring.Spec{Every: recurring.Duration(24 * time.Hour), Jitter: recurring.Duration(time.Minute), Queue: "mail", Header: map[string]string{"tag": "vip"}}))
	w.settle("orders", "mail")
	return w
}

// settle waits until the pages have figures of the queues, for a machine that is busy.
func (w *world) settle(queues ...string) {
	w.t.Helper()
	for _, name := range queues { // a sweep may have begun before they were filled
		f, err := w.pages.source.figures(w.t.Context(), name)
		must(w.t, err)
		w.pages.sampler.learnFigures(f)
	}
	for {
		now, change := w.pages.sampler.registerWatcher("")
		missing := slices.ContainsFunc(queues, func(name string) bool { f := now.queue(name); return f == nil || f.At.IsZero() })
		if hasFigures(now) && !missing {
			return
		}
		select {
		case <-change:
		case <-w.t.Context().Done():
			w.t.Fatal("the figures never came")
		}
	}
}

// fillQueueOnly registers queue orders, with one shard.
func (w *world) fillQueueOnly() {
	w.t.Helper()
	var err error
	w.orders, err = w.client.Register(w.t.Context(), lowkiq.Queue{Name: "orders", Shards: 1})
	must(w.t, err)
}

func job(id string) lowkiq.Push { return lowkiq.Push{ID: id, Payload: []byte(`{"n":1}`)} }

func (w *world) push(jobs ...lowkiq.Push) {
	w.t.Helper()
	results, err := w.orders.Push(w.t.Context(), jobs...)
	must(w.t, err)
	for _, r := range results {
		must(w.t, r.Err)
	}
}

func (w *world) do(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	w.pages.ServeHTTP(answer, r.WithContext(w.t.Context()))
	land(answer, r)
	return answer
}

// land makes the Location of an answer absolute, as a browser does.
func land(answer *httptest.ResponseRecorder, r *http.Request) {
	if to := answer.Header().Get("Location"); to != "" {
		answer.Header().Set("Location", r.URL.ResolveReference(mustURL(to)).String())
	}
}

func (w *world) get(target string) *httptest.ResponseRecorder {
	return w.do(httptest.NewRequest(http.MethodGet, target, nil))
}

// post sends a form; fields are pairs.
func (w *world) post(target string, fields ...string) *httptest.ResponseRecorder {
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return w.do(r)
}

// expect checks a page: its status, that it is sound, and that it has all parts.
func expect(t *testing.T, answer *httptest.ResponseRecorder, status int, parts ...string) {
	t.Helper()
	body := answer.Body.String()
	if answer.Code != status {
		t.Fatalf("got status %d, want %d; body %s", answer.Code, status, body)
	}
	for _, objection := range objections(body) {
		t.Errorf("page: %s", objection)
	}
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("got page %s, want %q in it", body, part)
		}
	}
}

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}

func (n fakeNode) Name() string { return "n1" }

// Rules: the node's file has a batch size for orders.
func (n fakeNode) Rules(queue string) map[string]rules.Base {
	if queue != "orders" {
		return nil
	}
	return map[string]rules.Base{"batch_size": {Value: 3, From: "node.yaml:5:17"}, "shards": {Value: 1, From: "default"}}
}
