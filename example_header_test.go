package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
)

// A push says more than its data: the handler gets it beside the payload. Headers are no part of
// what makes payloads equal: the one that waits keeps its own.
func ExampleHeader() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "headers"})
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "invoices"}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			for _, payload := range job.Payloads {
				fmt.Printf("%s: %s for tenant %s, %s\n", job.ID, payload.Data, payload.Header.Get("tenant"), payload.Header)
			}
		}
		stop() // an example ends; a worker would go on
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	invoices, err := n.Client().Register(ctx, lowkiq.Queue{Name: "invoices", Shards: 4})
	if err != nil {
		log.Fatal(err)
	}
	results, err := invoices.Push(ctx,
		lowkiq.Push{ID: "17", Payload: []byte("print"), Header: map[string]string{"tag": "vip", "tenant": "acme"}},
		lowkiq.Push{ID: "17", Payload: []byte("print"), Header: map[string]string{"tag": "again"}},
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("merged:", results[1].Merged)
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// merged: true
	// 17: print for tenant acme, {"tag":"vip","tenant":"acme"}
}
