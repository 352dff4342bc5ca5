package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/node"
)

// The demo's queue.
const (
	queueName   = "history"
	queueShards = 16
	workTime    = time.Millisecond // of one handler call
)

// WorkerConfig says what a worker process works on.
type WorkerConfig struct {
	Redis   string    // URL
	HTTP    string    // address of its API
	History string    // file for what its handlers do
	Parent  io.Reader // ends when the parent wants the worker to end, or is gone
	Handled io.Writer // gets a line with a number of payloads after each handler call
	Log     *slog.Logger
}

// Work runs a node until Parent ends.
func Work(cfg WorkerConfig) error {
	writer, err := history.Open(cfg.History)
	if err != nil {
		return err
	}
	defer writer.Close()
	n, err := node.New(node.Config{
		Name: "demo", Redis: cfg.Redis, HTTP: cfg.HTTP, Concurrency: 8, ShutdownTimeout: 2 * time.Second, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	work := history.Wrap(writer, lowkiq.HandlerFunc(pretend))
	// A crash is no fault of the jobs here: none is to be buried for it.
	rules := node.QueueConfig{Name: queueName, Shards: queueShards, MaxCrashes: -1}
	if err := n.Handle(rules, counted(work, cfg.Handled)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, cfg.Parent) //nolint:errcheck // its end is all that matters
		cancel()
		// Without a parent there is no Redis either: do not wait for it for long.
		time.AfterFunc(10*time.Second, func() { os.Exit(1) })
	}()
	return n.Run(ctx)
}

// pretend is a handler that takes a moment, so that the kill finds work in flight.
func pretend(ctx context.Context, _ *lowkiq.Batch) error {
	timer := time.NewTimer(workTime)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

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
