package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

// Middlewares wrap each handler call of a queue, and each push to it.
func Example_middleware() {
	loggedCall := func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
			err := next.Handle(ctx, batch)
			fmt.Printf("%s: handled %d job, error: %v\n", batch.Shard.Queue, len(batch.Jobs), err)
			return err
		})
	}
	loggedPush := func(name string, next queue.Pusher) queue.Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
			results, err := next(ctx, jobs)
			fmt.Printf("%s: pushed %d job, error: %v\n", name, len(jobs), err)
			return results, err // one for each job
		}
	}

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "middlewares"})
	if err != nil {
		log.Fatal(err)
	}
	rules := node.QueueConfig{
		Name:            "mails",
		Middlewares:     []node.Middleware{loggedCall},
		PushMiddlewares: []queue.Middleware{loggedPush},
	}
	err = n.Handle(rules, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		stop() // an example ends; a worker would go on
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	mails, err := n.Client().Register(ctx, lowkiq.Queue{Name: "mails", Shards: 4})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := mails.Push(ctx, lowkiq.Push{ID: "ann", Payload: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// mails: pushed 1 job, error: <nil>
	// mails: handled 1 job, error: <nil>
}
