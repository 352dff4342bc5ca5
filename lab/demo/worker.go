package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// The demo's queue.
const (
	queueName   = "history"
	queueShards = 16
	workTime    = 10 * time.Millisecond // the duration of a handler call
	leaseTTL    = 3 * time.Second
)

// apiLine begins the line where a worker reports the address of its API.
const apiLine = "api "

// WorkerConfig are the settings of a worker process.
type WorkerConfig struct {
	Name    string    // the name of the node
	Redis   string    // URL
	History string    // the file for the history of its handler calls
	Parent  io.Reader // ends when the parent is gone
	Told    io.Writer // receives a line with the address, then a line with the number of payloads after each handler call
	Log     *slog.Logger
}

// RunWorker runs a node of the cluster until ctx ends, and then drains it. It ends the process when Parent ends, because
// Redis has ended as well and a drain has no use.
func RunWorker(ctx context.Context, cfg WorkerConfig) error {
	writer, err := judge.Open(cfg.History)
	if err != nil {
		return err
	}
	defer writer.Close()
	go func() {
		io.Copy(io.Discard, cfg.Parent) //nolint:errcheck // only its end matters
		os.Exit(1)
	}()
	n, err := node.New(node.Config{
		Name: cfg.Name, Redis: cfg.Redis, Bind: "127.0.0.1:0", TTL: leaseTTL, Concurrency: 8, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	work := judge.Wrap(writer, lowkiq.HandlerFunc(pretendWork))
	// Jobs do not cause crashes here, so no job must be buried for a crash.
	rules := node.QueueConfig{Name: queueName, Shards: queueShards, Rules: rules.Rules{MaxCrashes: -1}}
	if err := n.Handle(rules, countHandled(work, cfg.Told)); err != nil {
		return err
	}
	if err := web.Serve(n, web.Config{Pages: dashboard.New, Log: cfg.Log}); err != nil {
		return err
	}
	running, ended := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		tellAddress(running, n, cfg.Told)
	}()
	err = n.Run(ctx)
	ended()
	<-told
	return err
}

// tellAddress waits for the API and writes its address.
func tellAddress(ctx context.Context, n *node.Node, w io.Writer) {
	for n.URL() == "" {
		if sleep.For(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
	fmt.Fprintf(w, "%s%s\n", apiLine, n.URL())
}

// pretendWork is a handler that takes a moment, so that a kill meets jobs in flight.
func pretendWork(ctx context.Context, _ *lowkiq.Batch) error { return sleep.For(ctx, workTime) }

// countHandled writes the number of payloads of each successful batch to w, a number per line.
func countHandled(h lowkiq.Handler, w io.Writer) lowkiq.Handler {
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
