package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

// TestPushThroughNodeObeysRules checks that pushes through a node, by its client or its API, follow the queue's rules. They are
// stored encoded, handled decoded, and have the same limits.
func TestPushThroughNodeObeysRules(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	got := make(chan string, 10)
	text := base64.StdEncoding
	pushed := queue.PushRules{Push: rules.Push{PayloadBytes: 20}, Codec: queue.Codec{
		Name:   "base64",
		Encode: func(p []byte) ([]byte, error) { return text.AppendEncode(nil, p), nil },
		Decode: func(p []byte) ([]byte, error) { return text.AppendDecode(nil, p) },
	}}
	n := startQueues(t, Config{Redis: server.URL()}, func(n *Node) error {
		handle := func(_ context.Context, b *lowkiq.Batch) error {
			for _, p := range b.Jobs[0].Payloads {
				got <- b.Jobs[0].ID + " " + string(p.Data)
			}
			return nil
		}
		return errors.Join(n.Handle(QueueConfig{Name: "orders", Shards: 1, Codec: pushed.Codec, Rules: rules.Rules{Push: pushed.Push}}, lowkiq.HandlerFunc(handle)), web.Serve(n, web.Config{}))
	}).serving()
	const secret = `"4711"`
	if err := n.Client().Protocol().Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	n.renew()
	answer, err := http.Post(n.URL()+"/api/v1/queues/orders/jobs", "application/json", strings.NewReader(
		`[{"id":"http","payload":`+secret+`},{"id":"long","payload":"`+strings.Repeat("x", 16)+`"}]`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || !strings.Contains(string(body), `{"id":"http","ok":true`) || !strings.Contains(string(body), "24 bytes, at most 20") {
		t.Fatalf("got %s, %v, want the first job stored and the second beyond the limit", body, err)
	}
	if _, err := n.Client().Push(t.Context(), "orders", lowkiq.Push{ID: "go", Payload: []byte(secret)}); err != nil {
		t.Fatal(err)
	}
	other, err := protocol.Open(protocol.Config{Redis: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	orders, err := other.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := orders.Push(t.Context(), lowkiq.Push{ID: "plain"}); !errors.Is(err, protocol.ErrCodec) {
		t.Errorf("push without the codec: got %v, want %v", err, protocol.ErrCodec)
	}
	for _, id := range []string{"http", "go"} {
		job, ok, err := browse.Of(orders).Job(t.Context(), id)
		if err != nil || !ok || string(job.Payloads[0].Data) != text.EncodeToString([]byte(secret)) {
			t.Errorf("%s: got %v, %v, %v, want it stored encoded", id, job.Payloads, ok, err)
		}
	}
	if err := n.Client().Protocol().Registry().Resume(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	n.renew()
	for _, id := range []string{"http", "go"} {
		if have := receive(t, "a job", got); have != id+" "+secret {
			t.Errorf("handled: got %s, want %s %s", have, id, secret)
		}
	}
}

// TestShardsAsRegistered checks that a registered queue keeps its shards if the node's rules name no number.
func TestShardsAsRegistered(t *testing.T) {
	t.Parallel()
	for registered, want := range map[int]int{0: 16, 32: 32} {
		server := redistest.Start(t)
		if registered > 0 {
			client, err := protocol.Open(protocol.Config{Redis: server.URL()})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: registered}); err != nil {
				t.Fatal(err)
			}
			client.Close()
		}
		got := make(chan string, 1)
		n := start(t, Config{Redis: server.URL()}, QueueConfig{}, func(_ context.Context, b *lowkiq.Batch) error { got <- b.Jobs[0].ID; return nil }).serving()
		if shards := n.queues.handled["orders"].queue.Load().Shards; shards != want {
			t.Errorf("registered with %d: got %d shards, want %d", registered, shards, want)
		}
		on := n.queues.handled["orders"]
		if kept := on.rulesNow().Journal.PerShard(want).Keep; kept != journal.Default.Keep {
			t.Errorf("registered with %d: a shard keeps %d failures, want %d", registered, kept, journal.Default.Keep)
		}
		if got := n.Rules("orders")["shards"]; got.Value != want || got.From != rules.Registry {
			t.Errorf("registered with %d: the rules tell of %+v shards, want %d, from the registry", registered, got, want)
		}
		if kept := n.Rules("orders")["journal"].Value.(map[string]any)["keep"]; kept != journal.Default.Keep*want {
			t.Errorf("registered with %d: the rules tell of a journal of %v, want %d", registered, kept, journal.Default.Keep*want)
		}
		if _, err := n.Client().Push(t.Context(), "orders", lowkiq.Push{ID: "a"}); err != nil {
			t.Fatal(err)
		}
		receive(t, "the job", got)
	}
}

func TestHalfACodec(t *testing.T) {
	t.Parallel()
	same := func(p []byte) ([]byte, error) { return p, nil }
	for want, push := range map[string]queue.PushRules{
		"does not decode": {Codec: queue.Codec{Name: "same", Encode: same}},
		"does not encode": {Codec: queue.Codec{Name: "same", Decode: same}},
		"max_id_payloads": {Push: rules.Push{Payloads: -1}},
	} {
		n, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		err = n.Handle(QueueConfig{Name: "orders", Codec: push.Codec, Rules: rules.Rules{Push: push.Push}}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		n.Close()
	}
}

// stamp is a middleware that leaves its name.
func stamp(name string, trail *[]string) Middleware {
	return func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
			*trail = append(*trail, name+" sees "+string(b.Jobs[0].Payloads[0].Data))
			defer func() { *trail = append(*trail, name+" ends") }()
			return next.Handle(ctx, b)
		})
	}
}

func TestMiddlewaresAndDecode(t *testing.T) {
	t.Parallel()
	n, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var trail []string
	err = n.Handle(QueueConfig{
		Name:        "orders",
		Middlewares: []Middleware{stamp("outer", &trail), stamp("inner", &trail)},
		Codec: queue.Codec{
			Name:   "bare",
			Encode: func(p []byte) ([]byte, error) { return bytes.TrimPrefix(p, []byte("plain ")), nil },
			Decode: func(p []byte) ([]byte, error) { return append([]byte("plain "), p...), nil },
		},
	}, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
		trail = append(trail, "handler sees "+string(b.Jobs[0].Payloads[0].Data))
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	batch := &lowkiq.Batch{Jobs: []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: []byte("x")}}}}}
	if err := n.queues.handled["orders"].handler.Handle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	want := []string{"outer sees plain x", "inner sees plain x", "handler sees plain x", "inner ends", "outer ends"}
	if !reflect.DeepEqual(trail, want) {
		t.Errorf("got %q, want %q", trail, want)
	}
	if got := string(batch.Jobs[0].Payloads[0].Data); got != "x" {
		t.Errorf("the node's own batch was changed: payload is %q, want x", got)
	}
}
