package otel_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/otel"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// world has a Redis, a producer with spans and the exporter that gets all spans.
type world struct {
	t        *testing.T
	ctx      context.Context
	redis    string
	exporter *tracetest.InMemoryExporter
	provider *sdk.TracerProvider
	client   *queue.Client
	queues   []node.QueueConfig
	handlers []lowkiq.Handler
}

// newRecorder returns a world without a Redis, for middlewares that are called directly.
func newRecorder() *world {
	w := &world{exporter: tracetest.NewInMemoryExporter()}
	w.provider = sdk.NewTracerProvider(sdk.WithSyncer(w.exporter))
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	w := newRecorder()
	w.t, w.ctx, w.redis = t, ctx, redistest.Start(t).URL()
	client, err := queue.Open(queue.Config{Redis: w.redis, Middlewares: []queue.Middleware{otel.Push(w.provider)}})
	if err != nil {
		t.Fatal(err)
	}
	w.client = client
	t.Cleanup(func() {
		client.Close()
		_ = w.provider.Shutdown(context.WithoutCancel(ctx))
		cancel()
	})
	return w
}

// addQueue registers a queue of a single shard, which run handles with spans.
func (w *world) addQueue(name string, handler lowkiq.HandlerFunc) {
	w.t.Helper()
	if _, err := w.client.Register(w.ctx, lowkiq.Queue{Name: name, Shards: 1}); err != nil {
		w.t.Fatal(err)
	}
	w.queues = append(w.queues, node.QueueConfig{
		Name: name, Rules: rules.Rules{BatchSize: 10, MaxRetryCount: 5}, RetryFunc: func(int) time.Duration { return time.Millisecond },
		Middlewares: []node.Middleware{otel.Handle(w.provider)},
	})
	w.handlers = append(w.handlers, handler)
}

// push pushes jobs that must be stored.
func (w *world) push(ctx context.Context, name string, jobs ...lowkiq.Push) {
	w.t.Helper()
	if _, err := w.client.Push(ctx, name, jobs...); err != nil {
		w.t.Fatal(err)
	}
}

// run runs a node until over is closed and the calls that run then have ended.
func (w *world) run(over <-chan struct{}) {
	w.t.Helper()
	n, err := node.New(node.Config{Name: "n", Redis: w.redis})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, cfg := range w.queues {
		if err := n.Handle(cfg, w.handlers[i]); err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	go func() {
		select {
		case <-over:
		case <-ctx.Done():
		}
		stop()
	}()
	if err := n.Run(ctx); err != nil {
		w.t.Fatal(err)
	}
	select {
	case <-over:
	default:
		w.t.Fatal("the node has stopped early")
	}
}

// spans returns the ended spans of a name, in the order of their ends.
func (w *world) spans(name string) (found tracetest.SpanStubs) {
	for _, span := range w.exporter.GetSpans() {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// span returns the only span of a name.
func (w *world) span(name string) tracetest.SpanStub {
	w.t.Helper()
	found := w.spans(name)
	if len(found) != 1 {
		w.t.Fatalf("got %d spans %q, want one of %d", len(found), name, len(w.exporter.GetSpans()))
	}
	return found[0]
}

// valuesOf returns attributes as texts.
func valuesOf(attributes []attribute.KeyValue) map[string]string {
	values := map[string]string{}
	for _, a := range attributes {
		values[string(a.Key)] = a.Value.String()
	}
	return values
}

// linksOf returns the spans to which a span has links, with the ids of their attributes.
func linksOf(span tracetest.SpanStub) (to []trace.SpanID, ids []string) {
	for _, link := range span.Links {
		to = append(to, link.SpanContext.SpanID())
		ids = append(ids, valuesOf(link.Attributes)["messaging.lowkiq.id"])
	}
	return to, ids
}
