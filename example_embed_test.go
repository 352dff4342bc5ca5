package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A node in a program that has other things to do: it logs where the program logs, its readiness is
// a part of the program's, and a SIGTERM to the program drains it.
func Example_embedded() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, os.Interrupt)
	defer stop()
	n, err := node.New(node.Config{
		Redis:           os.Getenv("REDIS_URL"),
		Cluster:         "embedded",
		Concurrency:     10,               // handler calls at once
		ShutdownTimeout: 10 * time.Second, // for those that run when ctx ends
		Log:             slog.New(slog.DiscardHandler),
		// Bind: "10.0.0.1:7946" would share the shards with the other nodes of the cluster.
	})
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "orders", Shards: 4, Rules: rules.Rules{BatchSize: 100}}, lowkiq.HandlerFunc(
		func(context.Context, *lowkiq.Batch) error { return nil }))
	if err != nil {
		log.Fatal(err)
	}
	ready := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := n.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	fmt.Println("before:", answer(ready))

	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	for answer(ready) != http.StatusOK { // as a load balancer would ask
		select {
		case err := <-ended:
			log.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Println("while it runs:", answer(ready))

	stop() // or SIGTERM
	fmt.Println("drained, error:", <-ended)
	// Output:
	// before: 503
	// while it runs: 200
	// drained, error: <nil>
}

func answer(h http.Handler) int {
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, httptest.NewRequest("GET", "/readyz", nil))
	return recorder.Code
}
