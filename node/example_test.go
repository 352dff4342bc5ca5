package node_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

func handle(_ context.Context, batch *lowkiq.Batch) error {
	for _, job := range batch.Jobs {
		fmt.Println(job.ID, len(job.Payloads))
	}
	return nil
}

// A program that handles jobs, and drains when it is told to end. It takes part in no cluster and
// serves no API: a second such program stands by.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0"})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Handle(node.QueueConfig{Name: "orders", Rules: rules.Rules{BatchSize: 100}}, lowkiq.HandlerFunc(handle)); err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func split(shards []lowkiq.Shard) (own []lowkiq.Shard) {
	for _, s := range shards {
		if s.Queue == "mail" || s.Index >= 8 {
			own = append(own, s)
		}
	}
	return own
}

// A static node, which works on the shards that its program chooses.
func Example_splitter() {
	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0", Splitter: split})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Handle(node.QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(handle)); err != nil {
		log.Fatal(err)
	}
	if err := n.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// A node of a cluster, with the API, the metrics and the dashboard. Without Pages it serves, and
// the program links, no dashboard.
func Example_dashboard() {
	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0", Bind: "127.0.0.1:7946"})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Handle(node.QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(handle)); err != nil {
		log.Fatal(err)
	}
	if err := web.Serve(n, web.Config{Address: "127.0.0.1:7948", Pages: dashboard.New}); err != nil {
		log.Fatal(err)
	}
	if err := n.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
