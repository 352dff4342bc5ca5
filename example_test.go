package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
)

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
	_, err = orders.Push(ctx,
		lowkiq.Push{ID: "order-1", Payload: []byte("paid")},
		lowkiq.Push{ID: "order-1", Payload: []byte("shipped")})
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			for _, p := range job.Payloads {
				fmt.Printf("%s: %s\n", job.ID, p.Data)
			}
		}
		stop() // an example ends; a worker would go on
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
