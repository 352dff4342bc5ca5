package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/demo"
)

type demoCommand struct{}

func (*demoCommand) Help() string {
	return `A real stream of events is pushed over HTTP while a worker process handles it, on an embedded Redis (miniredis: for trying only). Half-way the worker is killed with SIGKILL and restarted. A history of all handler calls is judged at the end: every event handled, per-id order kept, no id handled twice at once. It takes less than a minute and leaves nothing behind.

    lowkiq-node demo

The exit code is 0 only if the verdict is good.`
}

// Run shows the demo and exits by its verdict.
func (*demoCommand) Run(s *streams) error {
	self, err := os.Executable()
	if err != nil {
		return fail(exitFailed, "demo: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	screen := newScreen(s.out)
	verdict, err := demo.Run(ctx, demo.Config{
		Worker: func(w demo.WorkerConfig) []string {
			return []string{self, "demo-worker", "--redis", w.Redis, "--http", w.HTTP, "--history", w.History}
		},
		Say: screen.say, Progress: screen.progress,
	})
	screen.end()
	switch {
	case ctx.Err() != nil:
		return fail(exitInterrupted, "demo: interrupted")
	case err != nil:
		return fail(exitFailed, "demo: no verdict: %w", err)
	}
	fmt.Fprint(s.out, demo.Words(verdict))
	if !verdict.OK() {
		return fail(exitFailed, "demo: promises were broken")
	}
	return nil
}

// screen shows the demo: with a bar on a terminal, else in lines.
type screen struct {
	out   *os.File
	bar   *bar
	lines bool
	shown int // handled payloads of the last line
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, lines: !terminal(out), bar: newBar(out, demo.Payloads, "handled")}
}

func (s *screen) say(format string, args ...any) {
	s.bar.clear()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *screen) progress(handled int) {
	s.bar.at(handled)
	if s.lines && handled >= s.shown+demo.Payloads/10 {
		s.shown = handled
		s.say("handled %5d of %d (%d %%)", handled, demo.Payloads, 100*handled/demo.Payloads)
	}
}

func (s *screen) end() { s.bar.clear() }

// demoWorkerCommand is the demo's worker process.
type demoWorkerCommand struct {
	Redis   string `required:""`
	HTTP    string `name:"http" required:""`
	History string `required:""`
}

// Run works until standard input ends.
func (c *demoWorkerCommand) Run(s *streams) error {
	// Ctrl-C at a terminal reaches the worker too; ending it is the demo's business.
	signal.Ignore(os.Interrupt)
	err := demo.Work(demo.WorkerConfig{
		Redis: c.Redis, HTTP: c.HTTP, History: c.History, Parent: s.in, Handled: io.Writer(s.out),
		Log: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return fail(exitFailed, "demo-worker: %w", err)
	}
	return nil
}
