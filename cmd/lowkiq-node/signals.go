package main

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
)

// underSignals returns a context that ends with the first signal of stopSignals. When limit is over
// from then on, the process ends, whatever hangs; that holds after stop, too. A second SIGINT ends it at
// once. The signals that ask for stacks print those of all goroutines. A write to a pipe whose other end
// is closed is an error and nothing else. stop ends the watching.
//
// SIGABRT, and what the kernel sends for faults of a program, are left to Go: they are crashes.
// What else may come, SIGUSR1 say, ends no Go program.
func underSignals(stacks io.Writer, limit time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, slices.Concat(stopSignals(), stackSignals())...)
	broken := make(chan os.Signal, 1) // of which nobody reads: each write may send one
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
				w.obey(sig)
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

// stopSignals end a node, which drains, and commands that say how far they came. Started with nohup
// they live on without their terminal.
func stopSignals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return drainSignals
	}
	return append(slices.Clone(drainSignals), syscall.SIGHUP)
}

// untilInterrupted returns a context that the first SIGINT ends, or one of the other signals. A
// second one ends a command at once that cannot heed the first.
func untilInterrupted(more ...os.Signal) (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), append([]os.Signal{os.Interrupt}, more...)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// watch does what signals ask for. Nothing that it waits for can hang.
type watch struct {
	cancel  func()
	stacks  io.Writer
	writing atomic.Bool   // stacks are being written
	limit   time.Duration // from the first signal that ends the node to the end of the process
	told    bool          // there was such a signal
}

func (w *watch) obey(sig os.Signal) {
	if slices.Contains(stackSignals(), sig) && !w.writing.Swap(true) {
		go func() {
			defer w.writing.Store(false)
			w.stacks.Write(allStacks()) //nolint:errcheck // stderr
		}()
	}
	switch {
	case !slices.Contains(stopSignals(), sig):
	case !w.told:
		w.told = true
		time.AfterFunc(w.limit, func() { os.Exit(exitStuck) })
		w.cancel()
	case sig == os.Interrupt:
		os.Exit(exitInterrupted)
	}
}

// allStacks are the stacks of all goroutines, however many.
func allStacks() []byte {
	for size := 1 << 20; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, true); n < size {
			return append(text[:n], '\n')
		}
	}
}
