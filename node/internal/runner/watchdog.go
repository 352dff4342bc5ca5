package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// The handler call.

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// errNoLease says that a handler was not called, because the lease had ended by then.
var errNoLease = errors.New("the lease has ended")

// handle calls the handler for one batch and settles its jobs.
func (r *Runner) handle(batch *lowkiq.Batch, t *turn) {
	start, began := r.process.Now(), time.Now() // two clocks: the first is a system call
	t.began.Store(int64(start))
	now := r.process.RedisTime(start)
	jobs := batch.Jobs // a handler may cut its batch to pieces
	for i := range jobs {
		r.queue.Metrics.Wait.Observe(now.Sub(jobs[i].PerformAt))
	}
	answer, cause := r.call(batch, t)
	batch.Jobs = jobs
	if answer == errNoLease { // for good: its jobs go back with the release
		r.unstart(batch)
		r.Stop()
		return
	}
	took := time.Since(began)
	r.queue.Metrics.Handler.Observe(took)
	r.measure(took, len(jobs))
	if answer == nil {
		r.done(batch.Flight, jobs)
		return
	}
	if cause != nil && !errors.Is(cause, lowkiq.ErrTimeout) {
		r.stopped(batch, answer)
		return
	}
	t.give()
	r.settle(batch, answer)
}

// stopped deals with a batch whose handler was told to stop. What is in flight goes back
// with the release, no retry spent; what the handler says it has done is done.
func (r *Runner) stopped(batch *lowkiq.Batch, answer error) {
	if failed, _ := named(answer); failed == nil {
		return
	}
	var done []lowkiq.Job
	for i, err := range perJob(batch.Jobs, answer) {
		if err == nil {
			done = append(done, batch.Jobs[i])
		}
	}
	if len(done) > 0 {
		r.done(batch.Flight, done)
	}
}

// call runs the handler. cause says why its context ended, if it did.
func (r *Runner) call(batch *lowkiq.Batch, t *turn) (answer, cause error) {
	ctx, cancel := context.WithCancelCause(t.context(r.work))
	defer cancel(nil)
	if timeout := r.queue.Rules.HandlerTimeout; timeout > 0 {
		w := r.watch(timeout, cancel)
		defer w.stop()
	}
	r.calls.Add(1)
	defer r.calls.Add(-1)
	answer = r.guarded(ctx, batch, t)
	cause = context.Cause(ctx)
	if failed, _ := named(answer); failed == nil && errors.Is(cause, lowkiq.ErrTimeout) {
		answer = errors.Join(fmt.Errorf("%w: %s", lowkiq.ErrTimeout, r.queue.Rules.HandlerTimeout), answer)
	}
	return answer, cause
}

func (r *Runner) guarded(ctx context.Context, batch *lowkiq.Batch, t *turn) (answer error) {
	returned := false
	jobs := batch.Jobs
	defer func() {
		if value := recover(); value != nil {
			answer = &PanicError{value, debug.Stack()}
		} else if !returned {
			// runtime.Goexit: this goroutine is lost, its work must not be.
			batch.Jobs = jobs
			r.process.Lanes.Go(func() { r.exited(batch, t) })
		}
	}()
	// Last of all, so that a process that is frozen has next to no chance to be so between this look and the
	// call (I1: see design.md on what remains).
	if !r.process.MayWork() {
		returned = true
		return errNoLease
	}
	answer = r.queue.Handler.Handle(ctx, batch)
	returned = true
	return answer
}

// exited settles the batch of a handler that ended its goroutine, and replaces the lane.
func (r *Runner) exited(batch *lowkiq.Batch, t *turn) {
	t.give()
	if r.work.Err() == nil {
		r.settle(batch, errors.New("handler called runtime.Goexit"))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLane(t)
	if !r.stops() {
		r.startLane()
	}
}

// overdueAfter is how long after its timeout a handler may take to return before
// people are told.
const overdueAfter = 30 * time.Second

// callWatch cancels a call at its timeout and reports one that ignores it.
type callWatch struct {
	r       *Runner
	timeout time.Duration
	cancel  context.CancelCauseFunc

	mu        sync.Mutex
	timer     *time.Timer // guarded by mu
	cancelled bool        // guarded by mu
	over      bool        // the call has returned; guarded by mu
}

func (r *Runner) watch(timeout time.Duration, cancel context.CancelCauseFunc) *callWatch {
	w, used := r.watches.Get().(*callWatch)
	if !used {
		w = &callWatch{r: r, timeout: timeout}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel, w.over = cancel, false
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
		w.r.watches.Put(w)
	}
}

// ring is the timer's end: first the timeout, then that of patience.
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
		w.r.queue.Metrics.Overdue.Inc()
		w.r.process.Log.Error("handler has not returned after its timeout",
			"shard", w.r.Shard, "timeout", w.timeout, "stacks", string(Stacks()))
	}
}

// measure keeps a running mean of handler time per job.
func (r *Runner) measure(took time.Duration, jobs int) {
	sample := max(took/time.Duration(jobs), time.Nanosecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.perJob == 0 {
		r.perJob = sample
		return
	}
	r.perJob += (sample - r.perJob) / 4
}

// Stacks are those of all goroutines.
func Stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
