package otel_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/otel"
	"github.com/lowkiq/lowkiq/queue"
)

// An order is pushed, and its handler pushes a mail. All of it is one trace.
func Example() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	exporter := tracetest.NewInMemoryExporter() // a program has an exporter that sends spans, such as otlptracegrpc
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))

	// The producer.
	client, err := queue.Open(queue.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "traces", Middlewares: []queue.Middleware{otel.Push(provider)}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, name := range []string{"orders", "mails"} {
		if _, err := client.Register(ctx, lowkiq.Queue{Name: name, Shards: 4}); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := client.Push(ctx, "orders", lowkiq.Push{ID: "order-1", Payload: []byte("paid")}); err != nil {
		log.Fatal(err)
	}

	// The node. Its handler pushes with the context that it gets.
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "traces"})
	if err != nil {
		log.Fatal(err)
	}
	traced := []node.Middleware{otel.Handle(provider)}
	err = n.Handle(node.QueueConfig{Name: "orders", Middlewares: traced}, lowkiq.HandlerFunc(func(ctx context.Context, _ *lowkiq.Batch) error {
		_, err := client.Push(ctx, "mails", lowkiq.Push{ID: "ann", Payload: []byte("receipt")})
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "mails", Middlewares: traced}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		stop() // an example ends; a worker would go on
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	printTraces(exporter.GetSpans())
	// Output:
	// push orders
	//   handle orders
	//     push mails
	//       handle mails
}

// A handler call that gets payloads of several pushes begins a trace, which has a link to each push.
func ExampleHandle() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "links"})
	if err != nil {
		log.Fatal(err)
	}
	rules := node.QueueConfig{
		Name:            "orders",
		Middlewares:     []node.Middleware{otel.Handle(provider)},
		PushMiddlewares: []queue.Middleware{otel.Push(provider)},
	}
	err = n.Handle(rules, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		stop() // an example ends; a worker would go on
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	orders, err := n.Client().Register(ctx, lowkiq.Queue{Name: "orders", Shards: 4})
	if err != nil {
		log.Fatal(err)
	}
	for _, payload := range []string{"paid", "sent"} {
		if _, err := orders.Push(ctx, lowkiq.Push{ID: "order-1", Payload: []byte(payload)}); err != nil {
			log.Fatal(err)
		}
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	printTraces(exporter.GetSpans())
	// Output:
	// push orders
	// push orders
	// handle orders, 2 links
}

// printTraces prints spans below their parents, in the order of their ends.
func printTraces(spans tracetest.SpanStubs) {
	var print func(parent string, depth int)
	print = func(parent string, depth int) {
		for _, span := range spans {
			above := ""
			if span.Parent.IsValid() {
				above = span.Parent.SpanID().String()
			}
			if above != parent {
				continue
			}
			links := ""
			if len(span.Links) > 1 {
				links = fmt.Sprintf(", %d links", len(span.Links))
			}
			fmt.Println(strings.Repeat("  ", depth) + span.Name + links)
			print(span.SpanContext.SpanID().String(), depth+1)
		}
	}
	print("", 0)
}
