package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

// OrderChanged is a payload, stored as JSON.
type OrderChanged struct{ State string }

// A program that pushes jobs and handles them. The payloads of an id are handled in
// order, never two at once, however many such programs run.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL")})
	if err != nil {
		log.Fatal(err)
	}
	orders, err := n.Client().Register(ctx, lowkiq.Queue{Name: "orders", Shards: 16})
	if err != nil {
		log.Fatal(err)
	}
	push := queue.NewTyped[OrderChanged](orders)
	if err := push.Push(ctx, "order-1", OrderChanged{"paid"}); err != nil {
		log.Fatal(err)
	}
	if err := push.Push(ctx, "order-1", OrderChanged{"shipped"}); err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "orders"}, lowkiq.Each(func(_ context.Context, id string, order OrderChanged) error {
		fmt.Printf("%s: %s\n", id, order.State)
		if order.State == "shipped" {
			stop() // an example ends; a worker would go on
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order-1: paid
	// order-1: shipped
}
