package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/judge"
	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// The demo's queue.
const (
	queueName   = "history"
	queueShards = 16
	workTime    = 10 * time.Millisecond // of one handler call
	leaseTTL    = 3 * time.Second
)

// apiLine begins the line in which a worker tells the address of its API.
const apiLine = "api "

// WorkerConfig says what a worker process works on.
type WorkerConfig struct {
	Name    string    // of the node
	Redis   string    // URL
	History string    // file for what its handlers do
	Parent  io.Reader // ends when the parent is gone
	Told    io.Writer // gets a line with its address, then one with a number of payloads after each handler call
	Log     *slog.Logger
}

// Work runs a node of the cluster until ctx ends; then it drains. It ends the process
// when Parent ends: Redis has ended with it, and there is nothing to drain for.
func Work(ctx context.Context, cfg WorkerConfig) error {
	writer, err := judge.Open(cfg.History)
	if err != nil {
		return err
	}
	defer writer.Close()
	go func() {
		io.Copy(io.Discard, cfg.Parent) //nolint:errcheck // its end is all that matters
		os.Exit(1)
	}()
	n, err := node.New(node.Config{
		Name: cfg.Name, Redis: cfg.Redis, Bind: "127.0.0.1:0", TTL: leaseTTL, Concurrency: 8, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	work := judge.Wrap(writer, lowkiq.HandlerFunc(pretend))
	// A crash is no fault of the jobs here: none is to be buried for it.
	rules := node.QueueConfig{Name: queueName, Shards: queueShards, MaxCrashes: -1}
	if err := n.Handle(rules, counted(work, cfg.Told)); err != nil {
		return err
	}
	if err := web.Serve(n, web.Config{Pages: dashboard.New, Log: cfg.Log}); err != nil {
		return err
	}
	running, ended := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		tell(running, n, cfg.Told)
	}()
	err = n.Run(ctx)
	ended()
	<-told
	return err
}

// tell waits for the API, and tells its address.
func tell(ctx context.Context, n *node.Node, w io.Writer) {
	for n.URL() == "" {
		if pause.For(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
	fmt.Fprintf(w, "%s%s\n", apiLine, n.URL())
}

// pretend is a handler that takes a moment, so that the kill finds work in flight.
func pretend(ctx context.Context, _ *lowkiq.Batch) error { return pause.For(ctx, workTime) }

func counted(h lowkiq.Handler, w io.Writer) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		if err := h.Handle(ctx, batch); err != nil {
			return err
		}
		payloads := 0
		for _, job := range batch.Jobs {
			payloads += len(job.Payloads)
		}
		fmt.Fprintf(w, "%d\n", payloads)
		return nil
	})
}
