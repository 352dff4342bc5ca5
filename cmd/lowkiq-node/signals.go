package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// underSignals returns a context that the first SIGINT or SIGTERM ends. A second SIGINT
// ends the process at once; the signal that asks for stacks prints those of all
// goroutines and nothing else. stop ends the watching.
func underSignals(stacks io.Writer) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append([]os.Signal{os.Interrupt, syscall.SIGTERM}, stackSignals()...)...)
	var once sync.Once
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case sig := <-signals:
				obey(sig, ctx, cancel, stacks)
			}
		}
	}()
	return ctx, func() {
		once.Do(func() {
			signal.Stop(signals)
			close(over)
			<-ended
			cancel()
		})
	}
}

// untilInterrupted returns a context that the first SIGINT ends, or one of the other signals. A
// second one ends a command at once that cannot heed the first.
func untilInterrupted(more ...os.Signal) (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), append(more, os.Interrupt)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func obey(sig os.Signal, ctx context.Context, cancel func(), stacks io.Writer) {
	switch {
	case sig == os.Interrupt && ctx.Err() != nil:
		os.Exit(exitInterrupted)
	case sig == os.Interrupt, sig == syscall.SIGTERM:
		cancel()
	default:
		stacks.Write(allStacks()) //nolint:errcheck // stderr
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
