package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/lowkiq/lowkiq/internal/demo"
)

type demoCommand struct {
	Limit time.Duration `hidden:"" default:"50s"` // for machines that do other things as well
}

func (*demoCommand) Help() string {
	return `A real stream of events is pushed over HTTP into a cluster of three node processes, on an embedded Redis (miniredis: for trying only). While jobs flow, one node is killed with SIGKILL, one is added, and one is drained with SIGTERM. A history of all handler calls is judged at the end: every event handled, per-id order kept, no id handled twice at once. It takes about half a minute, at most one, and leaves nothing behind.

    lowkiq-node demo

The exit code is 0 only if the verdict is good.

` + exitHelp
}

// Run shows the demo and exits by its verdict.
func (c *demoCommand) Run(s *streams) error {
	self, err := os.Executable()
	if err != nil {
		return fail(exitFailed, "demo: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	screen := newScreen(s.out)
	outcome, err := demo.Run(ctx, demo.Config{
		Worker: func(w demo.WorkerConfig) []string {
			return []string{self, "demo-worker", "--name", w.Name, "--redis", w.Redis, "--history", w.History}
		},
		Limit: c.Limit, Say: screen.Say, Show: screen.Show,
	})
	screen.Clear()
	switch {
	case ctx.Err() != nil:
		return fail(exitInterrupted, "demo: interrupted")
	case err != nil:
		return fail(exitFailed, "demo: no verdict: %w", err)
	}
	fmt.Fprint(s.out, outcome.Words())
	if !outcome.OK() {
		return fail(exitFailed, "demo: promises were broken")
	}
	return nil
}

func newScreen(out *os.File) *demo.Screen {
	screen := &demo.Screen{Out: out}
	if terminal(out) {
		screen.Columns = func() int {
			columns, _, err := term.GetSize(int(out.Fd()))
			if err != nil {
				return 80
			}
			return columns
		}
	}
	return screen
}

// demoWorkerCommand is one of the demo's node processes.
type demoWorkerCommand struct {
	Name    string `required:""`
	Redis   string `required:""`
	History string `required:""`
}

// Run works until SIGTERM, or until standard input ends.
func (c *demoWorkerCommand) Run(s *streams) error {
	// Ctrl-C at a terminal reaches the worker too; ending it is the demo's business.
	signal.Ignore(os.Interrupt)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := demo.Work(ctx, demo.WorkerConfig{
		Name: c.Name, Redis: c.Redis, History: c.History, Parent: s.in, Told: s.out,
		Log: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return fail(exitFailed, "demo-worker: %w", err)
	}
	return nil
}
