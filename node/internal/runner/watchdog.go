package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
)

// caller makes a shard's handler calls.
type caller struct {
	shard   lowkiq.Shard
	queue   *Queue
	process *Process
	exited  func(*lowkiq.Batch, *turn) // runs when a handler has ended its goroutine
	running atomic.Int64               // calls
	watches sync.Pool                  // of *callWatch: a timer for each call would be half of what a call costs
}

// call runs the handler. cause says why its context ended, if it did.
func (c *caller) call(ctx context.Context, batch *lowkiq.Batch, t *turn) (answer, cause error) {
	ctx, cancel := context.WithCancelCause(t.context(ctx))
	defer cancel(nil)
	timeout := c.queue.rules().HandlerTimeout
	if timeout > 0 {
		w := c.watch(timeout, cancel)
		defer w.stop()
	}
	stuck := c.queue.rules().StuckAfter
	if stuck > 0 {
		defer t.notes.watch(stuck, cancel)()
	}
	t.ends.begin(cancel)
	defer t.ends.end()
	c.running.Add(1)
	defer c.running.Add(-1)
	answer = c.guarded(ctx, batch, t)
	cause = context.Cause(ctx)
	if cause == nil && answer != nil && !c.process.MayWork() {
		cause = lowkiq.ErrLeaseLost // the cancel is on its way: what fails now may have failed for that
	}
	if failed, _ := named(answer); failed == nil {
		switch {
		case errors.Is(cause, lowkiq.ErrTimeout):
			answer = errors.Join(fmt.Errorf("%w: %s", lowkiq.ErrTimeout, timeout), answer)
		case errors.Is(cause, lowkiq.ErrStuck):
			answer = errors.Join(fmt.Errorf("%w: it has noted nothing for %s", lowkiq.ErrStuck, stuck), answer)
		}
	}
	return answer, cause
}

// guarded is the call itself, whose panic is an answer.
func (c *caller) guarded(ctx context.Context, batch *lowkiq.Batch, t *turn) (answer error) {
	returned := false
	jobs := batch.Jobs
	defer func() {
		if value := recover(); value != nil {
			answer = &PanicError{value, debug.Stack()}
		} else if !returned {
			// runtime.Goexit: this goroutine is lost, its work must not be.
			batch.Jobs = jobs
			c.process.Lanes.Go(func() { c.exited(batch, t) })
		}
	}()
	// Last of all, so that a process that is frozen has next to no chance to be so between this
	// look and the call (I1: see design.md on what remains).
	if !c.process.MayWork() {
		returned = true
		return errNoLease
	}
	answer = c.queue.Handler.Handle(ctx, batch)
	returned = true
	return answer
}

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// errNoLease says that a handler was not called, because the lease had ended by then.
var errNoLease = errors.New("the lease has ended")

// overdueAfter is how long after its timeout a handler may take to return before
// people are told.
const overdueAfter = 30 * time.Second

// callWatch cancels a call at its timeout and reports one that ignores it.
type callWatch struct {
	c *caller

	mu        sync.Mutex
	timeout   time.Duration           // of this call, as the rules can change; guarded by mu
	cancel    context.CancelCauseFunc // guarded by mu
	timer     *time.Timer             // guarded by mu
	cancelled bool                    // guarded by mu
	over      bool                    // the call has returned; guarded by mu
}

func (c *caller) watch(timeout time.Duration, cancel context.CancelCauseFunc) *callWatch {
	w, used := c.watches.Get().(*callWatch)
	if !used {
		w = &callWatch{c: c}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeout, w.cancel, w.over = timeout, cancel, false
	if used {
		w.timer.Reset(timeout)
	} else {
		w.timer = time.AfterFunc(timeout, w.ring)
	}
	return w
}

// stop ends the watch. One whose timer has not rung can serve the next call.
func (w *callWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.cancel = true, nil
	if w.timer.Stop() && !w.cancelled {
		w.c.watches.Put(w)
	}
}

// ring is the timer's end: first the timeout's, then overdueAfter's.
func (w *callWatch) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case !w.cancelled:
		w.cancelled = true
		w.cancel(lowkiq.ErrTimeout)
		w.timer.Reset(overdueAfter)
	default:
		w.c.queue.Metrics.Overdue.Inc()
		w.c.process.Log.Error("handler has not returned after its timeout",
			"shard", w.c.shard, "timeout", w.timeout, "stacks", string(Stacks()))
	}
}

// Stacks are those of all goroutines.
func Stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
