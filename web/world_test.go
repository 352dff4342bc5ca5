package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
)

// world is a node's HTTP face, with a cluster name of its own in Redis.
type world struct {
	t       testing.TB
	client  *protocol.Client
	orders  *protocol.Queue
	handler http.Handler
	node    *fakeNode
}

var worlds atomic.Int64

// newWorld builds the handler over the Redis at url. Queue orders has one shard and,
// after fill, jobs in every state; queue mail has three and none.
func newWorld(t testing.TB, url string, change ...func(*Config)) *world {
	t.Helper()
	name := "web-" + time.Unix(worlds.Add(1), 0).UTC().Format("150405")
	producer, err := queue.Open(queue.Config{Redis: url, Cluster: name, Timeout: time.Minute})
	must(t, err)
	client := producer.Protocol()
	client.DB().Slow = nil // rests make a search on a busy machine end before it has looked at all
	t.Cleanup(func() { must(t, client.Close()) })
	w := &world{t: t, client: client, node: &fakeNode{producer: producer, client: client}}
	cfg := Config{Cluster: w.node, Version: "v1.2.3", Names: []string{"example.com"}, Log: slog.New(slog.DiscardHandler)} // httptest.NewRequest's
	for _, f := range change {
		f(&cfg)
	}
	w.handler, err = New(w.node, cfg)
	must(t, err)
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeNode is in a cluster with n1, which gets requests, and n2, which does not.
type fakeNode struct {
	Node     // what no test asks
	producer *queue.Client
	client   *protocol.Client
	handled  status.Handled
	notReady error
	away     error            // of Status
	state    status.NodeState // of n1; default Live
	alone    bool             // in no cluster
	told     atomic.Int32     // handlers to stop
	ending   func() error     // before one is; nil: nothing
	mayBegin []string
	drains   bool
}

// Then has a rule that names the queue mail.
func (n *fakeNode) Then() map[string]rules.Then {
	return map[string]rules.Then{"orders": {Dead: "mail"}}
}

// Attach does not run the pages.
func (n *fakeNode) Attach(func() (string, error), func(context.Context) error) error { return nil }

func (n *fakeNode) Client() *queue.Client { return n.producer }

func (n *fakeNode) Metrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lowkiq_test"}, func() float64 { return 7 }))
	return r
}

func (n *fakeNode) Ready() error { return n.notReady }

func (n *fakeNode) Status(context.Context) (status.Status, error) {
	return status.Status{
		Cluster: "default", Generation: status.Generation{Record: "01J", Index: 42}, Leader: "n1",
		Nodes: []status.Node{{Name: "n1", Instance: "n1/01J.1", State: cmp.Or(n.state, status.Live), LeaseAge: 0.25, Voter: true, Shards: 4, HTTP: "127.0.0.1:7948", Version: "0.1.0"}},
	}, n.away
}

func (n *fakeNode) Shards(ctx context.Context) ([]status.Shard, error) {
	_, err := n.client.Time(ctx)
	return []status.Shard{{Queue: "orders", Assigned: "n1", Owner: "n1/01J.1", Fence: 7, State: status.Owned, Lag: 1.5}}, err
}

func (n *fakeNode) MayBegin(context.Context, string) ([]string, error) { return n.mayBegin, nil }

// Owners is for the pages, which no test here has.
func (n *fakeNode) Owners(context.Context) (status.Owners, error) { return nil, nil }

func (n *fakeNode) Members() ([]status.Member, error) {
	if n.alone {
		return nil, status.ErrNoCluster
	}
	return []status.Member{{Node: "n1", Instance: "n1/01J.1", Boot: "01J", State: "alive", Address: "127.0.0.1:7946", Since: 1763600000}}, nil
}

func (n *fakeNode) Plan(ctx context.Context, add, remove []string) ([]status.Move, error) {
	_, err := n.client.Time(ctx)
	switch {
	case n.alone:
		return nil, status.ErrNoCluster
	case len(remove) > 0:
		return nil, fmt.Errorf("%w %q (known: n1)", status.ErrUnknownNode, remove[0])
	case len(add) == 0:
		return nil, err
	}
	return []status.Move{{Queue: "orders", From: "n1", To: add[0], Reason: "owner above its share"}}, err
}

func (n *fakeNode) Why(ctx context.Context, q *protocol.Queue, id string) (status.Why, error) {
	_, err := n.client.Time(ctx)
	due := 12.5
	return status.Why{ID: id, Queue: q.Name, Shard: q.Of(id).Index, State: "scheduled", Reason: "it is due later", Due: &due}, err
}

// Cancel knows of one id that runs, and of one whose owner does not answer.
func (n *fakeNode) Cancel(ctx context.Context, _ *protocol.Queue, id string, _ protocol.Cancellation) error {
	_, err := n.client.Time(ctx)
	if n.ending != nil {
		err = n.ending()
	}
	switch {
	case err != nil:
		return err
	case id == "w1":
		n.told.Add(1)
		return nil
	case id == "frozen":
		return fmt.Errorf("%q, which n2 has: %w", id, status.ErrNoAnswer)
	}
	return fmt.Errorf("%q: %w", id, status.ErrNotRunning)
}

func (n *fakeNode) Handled(ctx context.Context) (status.Handled, error) {
	_, err := n.client.Time(ctx)
	return n.handled, err
}

// DrainProgress does what was asked at once.
func (n *fakeNode) DrainProgress(context.Context, string) (status.DrainProgress, error) {
	return status.DrainProgress{Drains: n.drains}, nil
}

func (n *fakeNode) RedisFull() string { return "" }

func (n *fakeNode) RedisRefuses() string { return "" }

func (n *fakeNode) LocateOrCancel(string, lowkiq.Shard, string, *protocol.Cancellation) (where protocol.Whereabouts, ok bool) {
	return where, false
}

func (n *fakeNode) Drain(ctx context.Context, node string, on bool) (string, error) {
	_, err := n.client.Time(ctx)
	switch node {
	case "n1":
		n.drains = on
		return "n1/01J.1", err
	case "n2":
		return "", fmt.Errorf("drain n2/01K.1: %w", status.ErrNotHeard)
	}
	return "", fmt.Errorf("%w %q (known: n1, n2)", status.ErrUnknownNode, node)
}

// fill registers the queues and puts jobs into every state.
func (w *world) fill() *world {
	w.t.Helper()
	ctx := w.t.Context()
	var err error
	w.orders, err = w.client.Register(ctx, lowkiq.Queue{Name: "orders", Shards: 1})
	must(w.t, err)
	_, err = w.client.Register(ctx, lowkiq.Queue{Name: "mail", Shards: 3})
	must(w.t, err)
	w.push(job("f1"), job("f2"), job("b1"), job("d1"), job("w1"))
	claim, err := w.orders.Shard(0).Claim(ctx, "n1/01J.1", protocol.Fresh, protocol.Owner{})
	must(w.t, err)
	popped, err := claim.Pop(ctx, protocol.PopRequest{IDs: 5, Bytes: 1 << 20})
	must(w.t, err)
	_, err = claim.Nack(ctx,
		protocol.Nack{Flight: popped.Flight, ID: "f1", Kind: protocol.Retry, RetryCount: 3, Delay: time.Hour, Error: "no stock"},
		protocol.Nack{Flight: popped.Flight, ID: "f2", Kind: protocol.Retry, RetryCount: 0, Delay: 2 * time.Hour, Error: "no price"})
	must(w.t, err)
	_, err = claim.Bury(ctx,
		protocol.Burial{Flight: popped.Flight, ID: "b1", Policy: protocol.Block, RetryCount: 25, Error: "stuck"},
		protocol.Burial{Flight: popped.Flight, ID: "d1", Policy: protocol.Bury, RetryCount: 25, Error: "dead"})
	must(w.t, err)
	w.push(job("d2"))
	_, err = browse.Of(w.orders).Bury(ctx, browse.Anywhere, "d2")
	must(w.t, err)
	scheduled := job("s1")
	scheduled.PerformAt, scheduled.Header = time.Unix(4102444800, 0), map[string]string{"tag": "vip,new"}
	w.push(job("r1"), job("r2"), scheduled, job("a/b"), job("\xff"))
	book := recurring.Of(w.client)
	must(w.t, book.Declare(ctx, map[string]recurring.Spec{"report": {Cron: "0 6 * * 1-5", Zone: "Europe/Berlin", Queue: "mail", Payload: []byte(`{"day":"{tick}"}`)}}, time.Unix(1763600000, 0), "boot"))
	must(w.t, book.Add(ctx, "sync", recurring.Spec{Every: recurring.Duration(24 * time.Hour), Queue: "mail", ID: "all"}))
	written, err := w.client.Time(ctx)
	must(w.t, err)
	for now := written; now.UnixMilli() == written.UnixMilli(); { // a journal tells of milliseconds that are over
		now, err = w.client.Time(ctx)
		must(w.t, err)
	}
	return w
}

func job(id string) lowkiq.Push { return lowkiq.Push{ID: id, Payload: []byte(`{"n":1}`)} }

func (w *world) push(jobs ...lowkiq.Push) {
	w.t.Helper()
	_, err := w.orders.Push(w.t.Context(), jobs...)
	must(w.t, err)
}

// do sends a request; headers are pairs. The answer, and a body that is taken, have to be as
// openapi.yaml says.
func (w *world) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body)).WithContext(w.t.Context())
	if strings.HasSuffix(r.URL.Path, "/note") {
		r.Header.Set("Lowkiq-Fence", "1")
		r.Header.Set("Lowkiq-Flight", "1")
	}
	if method == http.MethodPatch {
		r.Header.Set("If-Match", "*")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	land(w.t, answer, r)
	w.keepsDescription(r, body, answer)
	return answer
}

// land makes the Location of an answer absolute, as a browser does.
func land(t testing.TB, answer *httptest.ResponseRecorder, r *http.Request) {
	if to := answer.Header().Get("Location"); to != "" {
		at, err := r.URL.Parse(to)
		must(t, err)
		answer.Header().Set("Location", at.String())
	}
}

// shared is the Redis of a test and its parallel subtests.
func shared(t *testing.T) string {
	t.Helper()
	t.Parallel()
	return redistest.Start(t).URL()
}

var errNotReady = errors.New("lease not held")

// expect checks the status and that the body has all parts.
func expect(t *testing.T, answer *httptest.ResponseRecorder, status int, parts ...string) {
	t.Helper()
	body := answer.Body.String()
	if answer.Code != status {
		t.Fatalf("got status %d, want %d; body %s", answer.Code, status, body)
	}
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("got body %s, want %s in it", body, part)
		}
	}
	if status >= 400 && answer.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("got Content-Type %q, want application/problem+json", answer.Header().Get("Content-Type"))
	}
}

// pagesOf makes pages of a function.
func pagesOf(serve http.HandlerFunc) func(Node, Config) (Pages, error) {
	return func(Node, Config) (Pages, error) { return somePages{serve}, nil }
}

type somePages struct{ http.Handler }

func (somePages) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Rules: the node's file has a batch size for orders.
func (n *fakeNode) Rules(queue string) map[string]rules.Base {
	if queue != "orders" {
		return nil
	}
	return map[string]rules.Base{"batch_size": {Value: 3, From: "node.yaml:5:17"}, "shards": {Value: 1, From: "default"}}
}

func (n *fakeNode) Name() string { return "n1" }
