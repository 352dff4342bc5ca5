package otel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/otel"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
)

func job(id, payload string) lowkiq.Push { return lowkiq.Push{ID: id, Payload: []byte(payload)} }

// A follow-up belongs to the handler call that answered with it, with a push middleware in the node and without. So its
// handler call is part of the same trace.
func TestTraceThroughFollowUps(t *testing.T) {
	t.Parallel()
	w, over := newWorld(t), make(chan struct{})
	w.addQueue("orders", func(_ context.Context, batch *lowkiq.Batch) error {
		batch.Answer("order-1").Then("mails", lowkiq.Push{ID: "ann", Payload: []byte("receipt"), Header: map[string]string{"tag": "vip"}}).
			Then("stock", lowkiq.Push{ID: "own", Header: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}})
		return nil
	})
	if _, err := w.client.Register(w.ctx, lowkiq.Queue{Name: "stock", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	var header lowkiq.Header
	w.addQueue("mails", func(_ context.Context, batch *lowkiq.Batch) error {
		header = batch.Jobs[0].Payloads[0].Header
		close(over)
		return nil
	})
	ctx, root := w.provider.Tracer("test").Start(w.ctx, "request")
	w.push(ctx, "orders", job("order-1", "paid"))
	root.End()
	w.run(over)
	orders, mails := w.span("handle orders"), w.span("handle mails")
	if got, want := mails.SpanContext.TraceID(), root.SpanContext().TraceID(); got != want {
		t.Errorf("the follow-up is of trace %s, want %s", got, want)
	}
	if got, want := mails.Parent.SpanID(), orders.SpanContext.SpanID(); got != want {
		t.Errorf("the parent of the follow-up's call is %s, want the handler call %s", got, want)
	}
	if header.Get("tag") != "vip" || header.Get("hops") != "1" {
		t.Errorf("got the headers %s, want those of the handler as well", header)
	}
	stock, err := w.client.Queue(w.ctx, "stock")
	if err != nil {
		t.Fatal(err)
	}
	if found, ok, err := browse.Of(stock.Protocol()).Job(w.ctx, "own"); err != nil || !ok || !strings.Contains(string(found.Payloads[0].Header), "00f067aa0ba902b7") {
		t.Errorf("got %v, %v, %v, want a follow-up with its own trace", found, ok, err)
	}
}

// A push, its handler call, the push of the handler and the call of the next queue are one trace.
func TestTraceThroughQueues(t *testing.T) {
	t.Parallel()
	w, over := newWorld(t), make(chan struct{})
	w.addQueue("orders", func(ctx context.Context, batch *lowkiq.Batch) error {
		_, err := w.client.Push(ctx, "mails", job("ann", "receipt"))
		return err
	})
	w.addQueue("mails", func(context.Context, *lowkiq.Batch) error {
		close(over)
		return nil
	})
	ctx, root := w.provider.Tracer("test").Start(w.ctx, "request")
	w.push(ctx, "orders", job("order-1", "paid"))
	root.End()
	w.run(over)

	parent := root.SpanContext()
	for _, want := range []struct {
		name   string
		kind   trace.SpanKind
		values map[string]string
	}{
		{"push orders", trace.SpanKindProducer, map[string]string{"messaging.operation.name": "push", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.lowkiq.id": "order-1"}},
		{"handle orders", trace.SpanKindConsumer, map[string]string{"messaging.operation.name": "handle", "messaging.operation.type": "process",
			"messaging.destination.name": "orders", "messaging.destination.partition.id": "0", "messaging.lowkiq.id": "order-1", "messaging.lowkiq.attempt": "1"}},
		{"push mails", trace.SpanKindProducer, map[string]string{"messaging.operation.name": "push", "messaging.operation.type": "send",
			"messaging.destination.name": "mails", "messaging.lowkiq.id": "ann"}},
		{"handle mails", trace.SpanKindConsumer, map[string]string{"messaging.operation.name": "handle", "messaging.operation.type": "process",
			"messaging.destination.name": "mails", "messaging.destination.partition.id": "0", "messaging.lowkiq.id": "ann", "messaging.lowkiq.attempt": "1"}},
	} {
		got := w.span(want.name)
		want.values["messaging.system"] = "lowkiq"
		if values := valuesOf(got.Attributes); !maps.Equal(values, want.values) {
			t.Errorf("%s: got the attributes %v, want %v", want.name, values, want.values)
		}
		if got.SpanKind != want.kind || got.Status.Code != codes.Unset {
			t.Errorf("%s: got a span of kind %s with status %v, want %s without a status", want.name, got.SpanKind, got.Status, want.kind)
		}
		if got.Parent.TraceID() != parent.TraceID() || got.Parent.SpanID() != parent.SpanID() {
			t.Errorf("%s: got the parent %v, want %v", want.name, got.Parent, parent)
		}
		if links, _ := linksOf(got); want.kind == trace.SpanKindConsumer && !slices.Equal(links, []trace.SpanID{parent.SpanID()}) {
			t.Errorf("%s: got links to %v, want one to its push %v", want.name, links, parent.SpanID())
		}
		if scope := got.InstrumentationScope; scope.Name != "github.com/lowkiq/lowkiq/otel" || !strings.HasSuffix(scope.SchemaURL, "/1.43.0") {
			t.Errorf("%s: got the scope %+v", want.name, scope)
		}
		parent = got.SpanContext
	}
}

// Payloads that come together have a link each. Payloads that merged in the queue have the link of the first.
func TestLinksOfABatch(t *testing.T) {
	t.Parallel()
	w, over := newWorld(t), make(chan struct{})
	w.addQueue("orders", func(context.Context, *lowkiq.Batch) error {
		close(over)
		return nil
	})
	w.push(w.ctx, "orders", job("a", "1"))
	w.push(w.ctx, "orders", job("a", "2"), job("b", "3"), job("b", "4"))
	w.push(w.ctx, "orders", job("a", "2")) // merges
	w.run(over)

	pushes, call := w.spans("push orders"), w.span("handle orders")
	first, second := pushes[0].SpanContext.SpanID(), pushes[1].SpanContext.SpanID()
	links, ids := linksOf(call)
	if !slices.Equal(links, []trace.SpanID{first, second, second, second}) || !slices.Equal(ids, []string{"a", "a", "b", "b"}) {
		t.Errorf("got links to %v with ids %v, want %v and 3 times %v, with ids a, a, b, b", links, ids, first, second)
	}
	if call.Parent.IsValid() {
		t.Errorf("got the parent %v, want none: the call belongs to two pushes", call.Parent)
	}
	values := valuesOf(call.Attributes)
	if _, alone := values["messaging.lowkiq.id"]; alone || values["messaging.batch.message_count"] != "4" || values["messaging.lowkiq.attempt"] != "" {
		t.Errorf("got the attributes %v, want a count of 4 payloads, no id and no attempt", values)
	}
	if values := valuesOf(pushes[1].Attributes); values["messaging.batch.message_count"] != "3" || values["messaging.lowkiq.merged"] != "" {
		t.Errorf("push of 3 jobs: got the attributes %v", values)
	}
	if values := valuesOf(pushes[2].Attributes); values["messaging.lowkiq.merged"] != "1" {
		t.Errorf("push that merged: got the attributes %v, want 1 merged job", values)
	}
}

// Each retry is another call in the trace of the push.
func TestRetries(t *testing.T) {
	t.Parallel()
	w, over := newWorld(t), make(chan struct{})
	answers := []error{
		fmt.Errorf("shop: %w", errors.New("out of order")),
		lowkiq.Postpone{After: time.Millisecond, Reason: "busy"},
		nil,
	}
	calls := 0
	w.addQueue("orders", func(context.Context, *lowkiq.Batch) error {
		calls++
		switch calls {
		case 1:
			panic("out of paper")
		case 1 + len(answers):
			close(over)
		}
		return answers[calls-2]
	})
	w.push(w.ctx, "orders", job("a", "1"))
	w.run(over)

	push, got := w.span("push orders"), w.spans("handle orders")
	if len(got) != 1+len(answers) {
		t.Fatalf("got %d calls, want %d", len(got), 1+len(answers))
	}
	for i, want := range []struct {
		code                                   codes.Code
		text, kind, attempt, failed, postponed string
	}{
		{codes.Error, "the handler panicked", "panic", "1", "", ""},
		{codes.Error, "shop: out of order", "*errors.errorString", "2", "1", ""},
		{codes.Unset, "", "", "3", "", "1"},
		{codes.Unset, "", "", "3", "", ""}, // a postponed job has not failed
	} {
		values := valuesOf(got[i].Attributes)
		if got[i].Status.Code != want.code || got[i].Status.Description != want.text || values["error.type"] != want.kind || values["messaging.lowkiq.attempt"] != want.attempt ||
			values["messaging.lowkiq.failed"] != want.failed || values["messaging.lowkiq.postponed"] != want.postponed {
			t.Errorf("call %d: got the status %v and the attributes %v, want %+v", i+1, got[i].Status, values, want)
		}
		if got[i].Parent.SpanID() != push.SpanContext.SpanID() || got[i].Parent.TraceID() != push.SpanContext.TraceID() {
			t.Errorf("call %d: got the parent %v, want the push %v", i+1, got[i].Parent, push.SpanContext)
		}
	}
}

// Answers about jobs of a batch, counted as a node counts them.
func TestAnswers(t *testing.T) {
	t.Parallel()
	broken, later := errors.New("broken"), lowkiq.Postpone{After: time.Second}
	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: "orders"}, 1, 1, []lowkiq.Job{
		{ID: "a", Payloads: make([]lowkiq.Payload, 1)}, {ID: "b", Payloads: make([]lowkiq.Payload, 2)}, {ID: "c", Payloads: make([]lowkiq.Payload, 1)},
	})
	for name, c := range map[string]struct {
		answer            error
		failed, postponed string
	}{
		"done":                          {nil, "", ""},
		"failed":                        {broken, "3", ""},
		"a job failed":                  {lowkiq.Failed{"a": broken}, "1", ""},
		"without an error":              {lowkiq.Failed{"a": nil}, "1", ""},
		"nobody failed":                 {lowkiq.Failed{}, "", ""},
		"postponed":                     {&later, "", "3"},
		"throttled":                     {fmt.Errorf("shop: %w", lowkiq.Throttle{For: time.Second}), "", "3"},
		"buried":                        {lowkiq.Bury{Reason: "no address"}, "3", ""},
		"each its own":                  {fmt.Errorf("some: %w", lowkiq.Failed{"a": broken, "b": later, "c": lowkiq.Throttle{}}), "1", "2"},
		"a job and something else":      {errors.Join(lowkiq.Failed{"a": later}, broken), "3", ""},
		"an id that is not in the call": {lowkiq.Failed{"a": later, "z": later}, "3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRecorder()
			handler := otel.Handle(w.provider)(lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return c.answer }))
			got := handler.Handle(t.Context(), batch)
			if fmt.Sprint(got) != fmt.Sprint(c.answer) {
				t.Errorf("got the answer %v, want it unchanged", got)
			}
			span := w.exporter.GetSpans()[0]
			values := valuesOf(span.Attributes)
			if values["messaging.lowkiq.failed"] != c.failed || values["messaging.lowkiq.postponed"] != c.postponed {
				t.Errorf("got %v, want %q failed and %q postponed", values, c.failed, c.postponed)
			}
			if isError := span.Status.Code == codes.Error; isError != (c.failed != "") || isError != (values["error.type"] != "") {
				t.Errorf("got the status %v and %v with %q failed jobs", span.Status, values, c.failed)
			}
		})
	}
}

// A push that fails says so, and the handler of the other jobs still has its trace.
func TestRefusedPush(t *testing.T) {
	t.Parallel()
	w, over := newWorld(t), make(chan struct{})
	w.addQueue("orders", func(context.Context, *lowkiq.Batch) error {
		close(over)
		return nil
	})
	results, err := w.client.Push(w.ctx, "orders", job("", "1"), job("a", "2"))
	if !errors.Is(err, queue.ErrID) || len(results) != 2 || results[1].Err != nil {
		t.Fatalf("got %v, %v, want the second job stored", results, err)
	}
	w.run(over)
	push, call := w.span("push orders"), w.span("handle orders")
	if values := valuesOf(push.Attributes); push.Status.Code != codes.Error || push.Status.Description != err.Error() || values["messaging.lowkiq.failed"] != "1" || values["error.type"] == "" {
		t.Errorf("got the status %v and the attributes %v, want %v for 1 job", push.Status, values, err)
	}
	if call.Parent.SpanID() != push.SpanContext.SpanID() {
		t.Errorf("got the parent %v, want the push %v", call.Parent, push.SpanContext)
	}
}

// Headers of the sender stay, whatever they say.
func TestHeaders(t *testing.T) {
	t.Parallel()
	const own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	long := strings.Repeat("x", lowkiq.MaxHeaderBytes-20)
	for name, c := range map[string]struct {
		push    lowkiq.Push
		parent  string // span, "" stands for none, and "push" for the push
		traced  bool   // the stored payload has a trace
		without bool   // pushed by a client without the middleware
	}{
		"none":                     {job("a", "1"), "push", true, false},
		"other headers":            {lowkiq.Push{ID: "a", Header: map[string]string{"tenant": "acme"}}, "push", true, false},
		"a state without a parent": {lowkiq.Push{ID: "a", Header: map[string]string{"tracestate": "a=1"}}, "push", true, false},
		"the sender's own trace":   {lowkiq.Push{ID: "a", Header: map[string]string{"traceparent": own}}, "00f067aa0ba902b7", true, false},
		"a broken trace":           {lowkiq.Push{ID: "a", Header: map[string]string{"traceparent": "00-1"}}, "", true, false},
		"no room in the headers":   {lowkiq.Push{ID: "a", Header: map[string]string{"tenant": long}}, "", false, false},
		"no room in the payload":   {job("a", strings.Repeat("x", lowkiq.MaxPayloadBytes)), "", false, false},
		"no middleware":            {job("a", "1"), "", false, true},
		"no middleware, a trace":   {lowkiq.Push{ID: "a", Header: map[string]string{"traceparent": own}}, "00f067aa0ba902b7", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, over := newWorld(t), make(chan struct{})
			var header lowkiq.Header
			w.addQueue("orders", func(_ context.Context, batch *lowkiq.Batch) error {
				header = batch.Jobs[0].Payloads[0].Header
				close(over)
				return nil
			})
			client := w.client
			if c.without {
				plain, err := queue.Open(queue.Config{Redis: w.redis})
				if err != nil {
					t.Fatal(err)
				}
				defer plain.Close()
				client = plain
			}
			given := maps.Clone(c.push.Header)
			if _, err := client.Push(w.ctx, "orders", c.push); err != nil {
				t.Fatal(err)
			}
			w.run(over)
			if !maps.Equal(c.push.Header, given) {
				t.Errorf("the caller's map is now %v", c.push.Header)
			}
			for name, value := range given {
				if name != "tracestate" && header.Get(name) != value {
					t.Errorf("got the header %s=%.100q, want %.100q", name, header.Get(name), value)
				}
			}
			if traced := header.Get("traceparent") != ""; traced != c.traced {
				t.Errorf("got the headers %.200s, want a trace: %t", header, c.traced)
			}
			call := w.span("handle orders")
			want := c.parent
			if want == "push" {
				want = w.span("push orders").SpanContext.SpanID().String()
			}
			parent := ""
			if call.Parent.IsValid() {
				parent = call.Parent.SpanID().String()
			}
			if parent != want || len(call.Links) != min(1, len(want)) {
				t.Errorf("got the parent %q and %d links, want %q, which has a link", parent, len(call.Links), want)
			}
			if c.without || c.push.Header["traceparent"] != own {
				return
			}
			if links, ids := linksOf(w.span("push orders")); len(links) != 1 || links[0].String() != want || ids[0] != "a" {
				t.Errorf("push: got links to %v, want one to the sender's trace", links)
			}
		})
	}
}

// A span around the call stays the parent.
func TestSpanAroundTheCall(t *testing.T) {
	t.Parallel()
	w := newRecorder()
	header, err := lowkiq.NewHeader(map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"})
	if err != nil {
		t.Fatal(err)
	}
	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: "orders"}, 1, 1, []lowkiq.Job{{ID: "a", RetryCount: -1, Payloads: []lowkiq.Payload{{Header: header}}}})
	ctx, around := w.provider.Tracer("test").Start(t.Context(), "around")
	if err := otel.Handle(w.provider)(lowkiq.HandlerFunc(func(ctx context.Context, _ *lowkiq.Batch) error {
		if !trace.SpanFromContext(ctx).IsRecording() {
			t.Error("the handler has no span")
		}
		return nil
	})).Handle(ctx, batch); err != nil {
		t.Fatal(err)
	}
	span := w.exporter.GetSpans()[0]
	if span.Parent.SpanID() != around.SpanContext().SpanID() || len(span.Links) != 1 || span.Links[0].SpanContext.TraceState().Get("a") != "1" {
		t.Errorf("got the parent %v and links %v, want the span around the call and a link with its state", span.Parent, span.Links)
	}
}

// Without an SDK a trace passes through. The middleware of a nil provider is that of the global provider.
func TestNoSDK(t *testing.T) {
	t.Parallel()
	for name, provider := range map[string]trace.TracerProvider{"none": nil, "noop": noop.NewTracerProvider()} {
		var pushed []lowkiq.Push
		push := otel.Push(provider)("orders", func(_ context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
			pushed = jobs
			return make([]queue.Result, len(jobs)), nil
		})
		w := newRecorder()
		ctx, span := w.provider.Tracer("test").Start(t.Context(), "request")
		for _, ctx := range []context.Context{t.Context(), ctx} {
			if _, err := push(ctx, []lowkiq.Push{job("a", "1")}); err != nil {
				t.Fatal(err)
			}
			want := ""
			if from := trace.SpanContextFromContext(ctx); from.IsValid() {
				want = fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())
			}
			if got := pushed[0].Header["traceparent"]; got != want {
				t.Errorf("%s: got traceparent %q, want %q", name, got, want)
			}
		}
		if results, err := push(t.Context(), nil); len(results) != 0 || err != nil {
			t.Errorf("%s: no jobs: got %v, %v", name, results, err)
		}
	}
}

// An answer of a thousand ids does not become a status of a megabyte.
func TestLongStatus(t *testing.T) {
	t.Parallel()
	w := newRecorder()
	push := otel.Push(w.provider)("orders", func(context.Context, []lowkiq.Push) ([]queue.Result, error) {
		return nil, errors.New(strings.Repeat("ä", 1<<19) + "\xff")
	})
	if _, err := push(t.Context(), []lowkiq.Push{job("a", "1")}); err == nil {
		t.Fatal("got no error")
	}
	if text := w.exporter.GetSpans()[0].Status.Description; len(text) > 2<<10 || !strings.HasPrefix(text, "ää") || strings.ToValidUTF8(text, "") != text {
		t.Errorf("got a description of %d bytes: %.100q", len(text), text)
	}
}

// The module has releases of its own, so it uses nothing that may change between those of lowkiq.
func TestImportsArePublic(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"doc.go", "otel.go", "push.go", "handle.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "/internal/") || strings.Contains(string(text), "/lowkiq/node") {
			t.Errorf("%s imports an internal package, or package node, which producers must not link", file)
		}
	}
}
