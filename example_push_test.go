package lowkiq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// A program that only pushes. Each job has an answer of its own, once it is stored.
func ExamplePush() {
	ctx := context.Background()
	client, err := queue.Open(queue.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "pushes"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	orders, err := client.Register(ctx, lowkiq.Queue{Name: "orders", Shards: 16})
	if err != nil {
		log.Fatal(err)
	}
	first := 1.0
	results, err := orders.Push(ctx,
		lowkiq.Push{ID: "order-1", Payload: []byte("paid")},
		lowkiq.Push{ID: "order-1", Payload: []byte("paid")},                                         // waits already
		lowkiq.Push{ID: "order-1", Payload: []byte("created"), Score: &first},                       // before the others of its id
		lowkiq.Push{ID: "order-2", Payload: []byte("remind"), PerformAt: time.Now().Add(time.Hour)}, // later
		lowkiq.Push{ID: "order-3", Payload: bytes.Repeat([]byte("x"), lowkiq.MaxPayloadBytes+1)},
	)
	fmt.Println("a job was refused:", errors.Is(err, queue.ErrPayloadSize))
	for i, result := range results {
		fmt.Printf("%d stored %t, merged %t\n", i+1, result.Err == nil, result.Merged)
	}
	// Output:
	// a job was refused: true
	// 1 stored true, merged false
	// 2 stored true, merged true
	// 3 stored true, merged false
	// 4 stored true, merged false
	// 5 stored false, merged false
}
