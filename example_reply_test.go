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

// One program asks, a handler elsewhere answers. If the answer takes longer than the caller waits, it can be had
// later, by its token.
func ExampleReply() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "replies"})
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "quotes"}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			batch.Answer(job.ID).Result([]byte(`{"price":42}`))
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	client := n.Client() // queue.Open makes one in a program that handles nothing
	if _, err := client.Register(ctx, lowkiq.Queue{Name: "quotes", Shards: 4}); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()

	waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	reply, err := client.Call(waiting, "quotes", lowkiq.Push{ID: "acme", Payload: []byte(`{"pieces":7}`)})
	if reply.State == lowkiq.ReplyPending { // ask again later, in any program
		reply, err = client.Reply(ctx, "quotes", reply.ID, reply.Token)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s%s\n", reply.State, reply.Result, reply.Error)

	stop() // an example ends; a worker would go on
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// done: {"price":42}
}
