// Package signals answers one question: what do signals make a command do?
//
// [UntilInterrupted] is for commands that end soon, and [UntilStopped] for nodes.
package signals

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
)

// UntilStopped returns a context that ends with the first signal of [StopSignals]. The process ends at the latest limit
// after that signal, whatever hangs, also if stop was called. A second SIGINT ends the process at once. The signals that ask
// for stacks print the stacks of all goroutines. A write to a closed pipe is an ordinary error. stop ends the handling of
// signals.
//
// Go handles SIGABRT, and the signals that the kernel sends for faults of a program, because they are crashes. No other
// signal, such as SIGUSR1, ends a Go program.
func UntilStopped(stacks io.Writer, limit time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, slices.Concat(StopSignals(), stackSignals())...)
	broken := make(chan os.Signal, 1) // nobody reads it: each write to a closed pipe may send a signal
	signal.Notify(broken, syscall.SIGPIPE)
	w := &watch{cancel: cancel, stacks: stacks, limit: limit}
	var once sync.Once
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case sig := <-signals:
				w.handleSignal(sig)
			}
		}
	}()
	return ctx, func() {
		once.Do(func() {
			signal.Stop(signals)
			signal.Stop(broken)
			close(over)
			<-ended
			cancel()
		})
	}
}

// StopSignals returns the signals that end a node, which drains, and commands that report how far they came. A process that
// was started with nohup outlives its terminal.
func StopSignals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return drainSignals
	}
	return append(slices.Clone(drainSignals), syscall.SIGHUP)
}

// UntilInterrupted returns a context that the first SIGINT, or another of the given signals, ends. A second signal ends the
// process at once, because a command may be unable to heed the first.
func UntilInterrupted(more ...os.Signal) (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), append([]os.Signal{os.Interrupt}, more...)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// watch handles signals. It waits for nothing that can hang.
type watch struct {
	cancel  func()
	stacks  io.Writer
	writing atomic.Bool   // stacks are being written
	limit   time.Duration // from the first signal that ends the node to the end of the process
	told    bool          // such a signal has come
}

func (w *watch) handleSignal(sig os.Signal) {
	if slices.Contains(stackSignals(), sig) && !w.writing.Swap(true) {
		go func() {
			defer w.writing.Store(false)
			w.stacks.Write(allStacks()) //nolint:errcheck // stderr
		}()
	}
	switch {
	case !slices.Contains(StopSignals(), sig):
	case !w.told:
		w.told = true
		time.AfterFunc(w.limit, func() { os.Exit(exit.Stuck) })
		w.cancel()
	case sig == os.Interrupt:
		os.Exit(exit.Interrupted)
	}
}

// allStacks returns the stacks of all goroutines, however many there are.
func allStacks() []byte {
	for size := 1 << 20; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, true); n < size {
			return append(text[:n], '\n')
		}
	}
}
