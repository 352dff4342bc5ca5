// Command lowkiq-demo shows that lowkiq works. A real stream of events flows through a cluster of node processes on an
// embedded Redis while a node is killed, another added and another drained. A verdict says whether every promise was kept.
// Package lab/demo does the work, and this command prints it.
//
// Each node is a process that runs this program as "lowkiq-demo worker".
//
// Exit codes: 0 the verdict is good, 1 it is bad or missing, 64 usage, 130 interrupted.
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

	"github.com/lowkiq/lowkiq/lab/demo"
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

// run shows the demo or runs a node of the demo, and returns the exit code.
func run(args []string) int {
	if runtime.GOOS == "windows" {
		return reportError(exitUsage, errors.New("lowkiq-demo does not work on Windows, because a node needs a Unix, such as WSL or a Linux container"))
	}
	if len(args) > 0 && args[0] == "worker" {
		return runNode(args[1:])
	}
	flags := flag.NewFlagSet("lowkiq-demo", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	limit := flags.Duration("limit", 50*time.Second, "") // busy machines need a longer limit
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		return reportError(exitUsage, fmt.Errorf("unexpected argument %s", flags.Arg(0)))
	}
	return showDemo(*limit)
}

// showDemo runs the demo. The exit code depends on its verdict.
func showDemo(limit time.Duration) int {
	self, err := os.Executable()
	if err != nil {
		return reportError(exitFailed, err)
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
		return reportError(exitInterrupted, errors.New("interrupted"))
	case err != nil:
		return reportError(exitFailed, fmt.Errorf("no verdict: %w", err))
	}
	fmt.Print(outcome.Words())
	if !outcome.OK() {
		return reportError(exitFailed, errors.New("promises were broken"))
	}
	return exitOK
}

// newScreen returns a screen, which shows no picture if out is no terminal.
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

// runNode runs a node of the demo. Its arguments are the node's name, the URL of Redis and the file for the history. It
// works until SIGTERM, or until standard input ends.
func runNode(args []string) int {
	if len(args) != 3 {
		return reportError(exitUsage, errors.New("worker is run by the demo itself, with NAME REDIS HISTORY"))
	}
	signal.Ignore(os.Interrupt) // Ctrl-C at a terminal also reaches this process, which the demo ends
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := demo.RunWorker(ctx, demo.WorkerConfig{
		Name: args[0], Redis: args[1], History: args[2], Parent: os.Stdin, Told: os.Stdout,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return reportError(exitFailed, fmt.Errorf("worker: %w", err))
	}
	return exitOK
}

func reportError(code int, err error) int {
	fmt.Fprintln(os.Stderr, "lowkiq-demo:", err)
	return code
}
