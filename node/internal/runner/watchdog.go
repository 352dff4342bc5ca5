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
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/verdict"
)

// caller calls the handler for a shard.
type caller struct {
	shard       lowkiq.Shard
	queue       *Queue
	process     *Process
	afterGoexit func(*lowkiq.Batch, *lane) // runs when a handler has ended its goroutine
	running     atomic.Int64               // calls
	watches     sync.Pool                  // of *callWatch: a timer for each call would be half of what a call costs
}

// call calls the handler and returns its answer. cause is the reason if the context of the call has ended.
func (c *caller) call(ctx context.Context, batch *lowkiq.Batch, l *lane) (answer, cause error) {
	ctx, cancel := context.WithCancelCause(l.callContext(ctx))
	defer cancel(nil)
	timeout := c.queue.rules().HandlerTimeout
	if timeout > 0 {
		w := c.watchTimeout(timeout, cancel)
		defer w.stop()
	}
	stuck := c.queue.rules().StuckAfter
	if stuck > 0 {
		defer l.notes.watchSilence(stuck, cancel)()
	}
	l.canceller.beginCall(cancel)
	defer l.canceller.endCall()
	c.running.Add(1)
	defer c.running.Add(-1)
	answer = c.callGuarded(ctx, batch, l)
	cause = context.Cause(ctx)
	if cause == nil && answer != nil && !c.process.MayWork() {
		cause = lowkiq.ErrLeaseLost // its cancel is on its way, and may have made the call fail
	}
	if !verdict.NamesJobs(answer) {
		switch {
		case errors.Is(cause, lowkiq.ErrTimeout):
			answer = errors.Join(fmt.Errorf("%w: %s", lowkiq.ErrTimeout, timeout), answer)
		case errors.Is(cause, lowkiq.ErrStuck):
			answer = errors.Join(fmt.Errorf("%w: no note for %s", lowkiq.ErrStuck, stuck), answer)
		}
	}
	return answer, cause
}

// callGuarded calls the handler. A panic is an answer, too. If the handler ends the goroutine with runtime.Goexit, it
// starts another goroutine, which applies that failure and replaces the lane.
func (c *caller) callGuarded(ctx context.Context, batch *lowkiq.Batch, l *lane) (answer error) {
	returned := false
	jobs := batch.Jobs
	defer func() {
		if value := recover(); value != nil {
			answer = &verdict.PanicError{Value: value, Stack: debug.Stack()}
		} else if !returned {
			// runtime.Goexit ends this goroutine. The batch must not be lost with it.
			batch.Jobs = jobs
			c.process.Lanes.Go(func() { c.afterGoexit(batch, l) })
		}
	}()
	// This is the last check before the call (I1). A process could still be frozen between the check and the call,
	// for so long that its lease ends. docs/design.md says what happens then.
	if !c.process.MayWork() {
		returned = true
		return errNoLease
	}
	answer = c.queue.Handler.Handle(handling.WithCall(ctx, &handling.Call{
		Home: c.queue.Home, Queue: batch.Shard.Queue, Shard: batch.Shard.Index, Lanes: c.queue.rules().ShardConcurrency, Jobs: jobs,
	}), batch)
	if answer != nil { // methods of an error may panic, as with a nil pointer in it, and then that panic is the answer
		_, _ = errors.Is(answer, errNoLease), answer.Error()
	}
	returned = true
	return answer
}

// errNoLease means that the handler was not called, because the lease has ended.
var errNoLease = errors.New("the lease has ended")

// overdueAfter is how soon after its timeout a handler must return. After that the log and a metric report it.
const overdueAfter = 30 * time.Second

// callWatch cancels a call at its timeout, and reports a call that ignores that.
type callWatch struct {
	c *caller

	mu        sync.Mutex
	timeout   time.Duration           // of this call, because the rules can change; guarded by mu
	cancel    context.CancelCauseFunc // guarded by mu
	timer     *time.Timer             // guarded by mu
	cancelled bool                    // guarded by mu
	over      bool                    // the call has returned; guarded by mu
}

// watchTimeout starts to watch a call that has just begun.
func (c *caller) watchTimeout(timeout time.Duration, cancel context.CancelCauseFunc) *callWatch {
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
		w.timer = time.AfterFunc(timeout, w.onTimer)
	}
	return w
}

// stop ends the watch. A watch whose timer was stopped before it ran can serve the next call.
func (w *callWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.cancel = true, nil
	if w.timer.Stop() && !w.cancelled {
		w.c.watches.Put(w)
	}
}

// onTimer runs when the timer ends, first after the timeout, then after overdueAfter.
func (w *callWatch) onTimer() {
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
			"shard", w.c.shard, "timeout", w.timeout, "stacks", string(AllStacks()))
	}
}

// AllStacks returns the stacks of all goroutines, at most 1 MiB.
func AllStacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
