// Command lowkiq-demo shows that it works: a real stream of events flows through a cluster of node
// processes on an embedded Redis while one is killed, one added and one drained, and a verdict says
// whether every promise was kept. Package internal/demo does it; this command prints it.
//
// Each node is a process of its own: this program again, as "lowkiq-demo worker".
//
// Exit codes: 0 the verdict is good, 1 it is bad or there is none, 64 usage, 130 interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/lowkiq/lowkiq/internal/demo"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 64
	exitInterrupted = 130
)

const usage = `Usage: lowkiq-demo

A real stream of events is pushed over HTTP into a cluster of three node
processes, on an embedded Redis (miniredis: for trying only). While jobs flow,
one node is killed with SIGKILL, one is added, and one is drained with SIGTERM.
A history of all handler calls is judged at the end: every event handled,
per-id order kept, no id handled twice at once. It takes about half a minute,
at most one, and leaves nothing behind.

Exit codes: 0 the verdict is good, 1 it is bad or there is none, 64 usage,
130 interrupted.
`

func main() { os.Exit(run(os.Args[1:])) }

// run shows the demo, or is one of its node processes, and returns the exit code.
func run(args []string) int {
	if runtime.GOOS == "windows" {
		return report(exitUsage, errors.New("it does not work on Windows: nodes need a Unix, as WSL or a Linux container is one"))
	}
	if len(args) > 0 && args[0] == "worker" {
		return work(args[1:])
	}
	flags := flag.NewFlagSet("lowkiq-demo", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	limit := flags.Duration("limit", 50*time.Second, "") // longer for machines that do other things as well
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		return report(exitUsage, fmt.Errorf("unexpected argument %s", flags.Arg(0)))
	}
	return show(*limit)
}

// show runs the demo and decides the exit code by its verdict.
func show(limit time.Duration) int {
	self, err := os.Executable()
	if err != nil {
		return report(exitFailed, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	screen := newScreen(os.Stdout)
	outcome, err := demo.Run(ctx, demo.Config{
		Worker: func(w demo.WorkerConfig) []string { return []string{self, "worker", w.Name, w.Redis, w.History} },
		Limit:  limit, Say: screen.Say, Show: screen.Show,
	})
	screen.Clear()
	switch {
	case ctx.Err() != nil:
		return report(exitInterrupted, errors.New("interrupted"))
	case err != nil:
		return report(exitFailed, fmt.Errorf("no verdict: %w", err))
	}
	fmt.Print(outcome.Words())
	if !outcome.OK() {
		return report(exitFailed, errors.New("promises were broken"))
	}
	return exitOK
}

func newScreen(out *os.File) *demo.Screen {
	screen := &demo.Screen{Out: out}
	if term.IsTerminal(int(out.Fd())) {
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

// work is one of the demo's node processes; its arguments are the node's name, the URL of Redis and
// the file for the history. It works until SIGTERM, or until standard input ends.
func work(args []string) int {
	if len(args) != 3 {
		return report(exitUsage, errors.New("worker is for the demo itself: want NAME REDIS HISTORY"))
	}
	signal.Ignore(os.Interrupt) // Ctrl-C at a terminal reaches this process too; the demo ends it
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := demo.Work(ctx, demo.WorkerConfig{
		Name: args[0], Redis: args[1], History: args[2], Parent: os.Stdin, Told: os.Stdout,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return report(exitFailed, fmt.Errorf("worker: %w", err))
	}
	return exitOK
}

func report(code int, err error) int {
	fmt.Fprintln(os.Stderr, "lowkiq-demo:", err)
	return code
}
