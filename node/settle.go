package node

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// What follows a handler call: acks, nacks, burials.

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// handle calls the handler for one batch and settles its jobs.
func (r *runner) handle(batch *lowkiq.Batch, held *bool) {
	if !r.in.mayWork() {
		r.unstart(batch)
		return
	}
	start := sinceBoot()
	now := r.in.redisNow()
	for i := range batch.Jobs {
		r.on.metrics.Wait.Observe(max(0, now.Sub(batch.Jobs[i].PerformAt)).Seconds())
	}
	answer, cause := r.call(batch)
	took := sinceBoot() - start
	r.on.metrics.Handler.Observe(took.Seconds())
	r.measure(took, len(batch.Jobs))
	if answer == nil {
		r.done(batch.Flight, batch.Jobs)
		return
	}
	if cause != nil && !errors.Is(cause, lowkiq.ErrTimeout) {
		return // told to stop: what is in flight goes back with the release, no retry spent
	}
	if *held {
		r.in.slots.give()
		*held = false
	}
	r.settle(batch, answer)
}

// call runs the handler. cause says why its context ended, if it did.
func (r *runner) call(batch *lowkiq.Batch) (answer, cause error) {
	ctx, cancel := context.WithCancelCause(r.work)
	defer cancel(nil)
	if timeout := r.on.rules.HandlerTimeout; timeout > 0 {
		watch := r.watch(batch, timeout, cancel)
		defer watch.Stop()
	}
	r.in.calls.Add(1)
	defer r.in.calls.Add(-1)
	answer = r.guarded(ctx, batch)
	cause = context.Cause(ctx)
	if errors.Is(cause, lowkiq.ErrTimeout) {
		answer = errors.Join(fmt.Errorf("%w: %s", lowkiq.ErrTimeout, r.on.rules.HandlerTimeout), answer)
	}
	return answer, cause
}

func (r *runner) guarded(ctx context.Context, batch *lowkiq.Batch) (answer error) {
	returned := false
	defer func() {
		if value := recover(); value != nil {
			answer = &PanicError{value, debug.Stack()}
		} else if !returned {
			// runtime.Goexit: this goroutine is lost, its work must not be.
			go r.exited(batch)
		}
	}()
	answer = r.on.handler.Handle(ctx, batch)
	returned = true
	return answer
}

// exited settles the batch of a handler that ended its goroutine, and replaces the lane.
func (r *runner) exited(batch *lowkiq.Batch) {
	r.in.slots.give()
	r.settle(batch, errors.New("handler called runtime.Goexit"))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLane()
	if !r.stopping {
		r.startLane()
	}
}

// overdueAfter is how long after its timeout a handler may take to return before
// people are told.
const overdueAfter = 30 * time.Second

// watch cancels a call at its timeout and reports one that ignores it.
func (r *runner) watch(batch *lowkiq.Batch, timeout time.Duration, cancel context.CancelCauseFunc) *time.Timer {
	cancelled := false
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(timeout, func() {
		<-ready
		if !cancelled {
			cancelled = true
			cancel(lowkiq.ErrTimeout)
			timer.Reset(overdueAfter)
			return
		}
		r.on.metrics.Overdue.Inc()
		r.in.log.Error("handler has not returned after its timeout", "shard", r.claim.Shard, "timeout", timeout, "stacks", string(stacks()))
	})
	close(ready)
	return timer
}

// measure keeps a running mean of handler time per job.
func (r *runner) measure(took time.Duration, jobs int) {
	sample := max(took/time.Duration(jobs), time.Nanosecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.perJob == 0 {
		r.perJob = sample
		return
	}
	r.perJob += (sample - r.perJob) / 4
}

// done queues acks: the next pop takes them along, or the flush timer sends them.
func (r *runner) done(number int64, jobs []lowkiq.Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.acks) - 1
	if last < 0 || r.acks[last].Flight != number {
		if last < 0 {
			r.flush.Reset(ackDelay)
		}
		r.acks = append(r.acks, queue.Acks{Flight: number, IDs: make([]string, 0, len(jobs))})
		last++
	}
	for i := range jobs {
		r.acks[last].IDs = append(r.acks[last].IDs, jobs[i].ID)
	}
	r.alone = false
}

func (r *runner) takeAcks() []queue.Acks {
	r.mu.Lock()
	defer r.mu.Unlock()
	acks := r.acks
	r.acks = nil
	if acks != nil {
		r.flush.Stop()
	}
	return acks
}

// returnAcks keeps acks whose fate is unknown for the next attempt; Redis ignores those
// it has seen.
func (r *runner) returnAcks(acks []queue.Acks) {
	if len(acks) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks = append(acks, r.acks...)
	r.flush.Reset(100 * time.Millisecond)
}

// acknowledged counts acks that Redis has taken.
func (r *runner) acknowledged(acks []queue.Acks) {
	n := 0
	for _, a := range acks {
		n += len(a.IDs)
	}
	if n > 0 {
		r.on.metrics.Processed.Add(float64(n))
	}
}

// unblock wakes the runner if an id on probation waits for flights to end: one of them
// may have ended by an answer that no pop took along.
func (r *runner) unblock() {
	r.mu.Lock()
	blocked := r.blocked
	r.blocked = false
	r.mu.Unlock()
	if blocked {
		r.wake()
	}
}

// flushAcks sends acks that no pop took along in time.
func (r *runner) flushAcks() {
	acks := r.takeAcks()
	if len(acks) == 0 {
		return
	}
	_, err := r.claim.Ack(r.in.io, acks...)
	switch {
	case err == nil:
		r.acknowledged(acks)
		r.unblock()
	case errors.Is(err, lowkiq.ErrFenced):
		r.lose("ack")
	case r.in.io.Err() != nil:
	default:
		r.in.trouble("ack", r.claim.Shard, err)
		r.returnAcks(acks)
	}
}

// settle deals with a batch that did not succeed as a whole.
func (r *runner) settle(batch *lowkiq.Batch, answer error) {
	var done []lowkiq.Job
	var nacks []queue.Nack
	var burials []queue.Burial
	var exhausted []int
	verdicts := decide(&r.on.rules, r.in.node.cfg.FormatError, batch, answer)
	for i, v := range verdicts {
		switch {
		case v.done:
			done = append(done, batch.Jobs[i])
		case v.exhausts:
			burials = append(burials, v.burial)
			exhausted = append(exhausted, i)
		default:
			nacks = append(nacks, v.nack)
		}
	}
	if len(done) > 0 {
		r.done(batch.Flight, done)
	}
	ok := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) }) &&
		r.send("bury", len(burials), func(ctx context.Context) error { return second(r.claim.Bury(ctx, burials...)) })
	if !ok {
		return
	}
	r.failed(nacks, len(burials))
	for _, i := range exhausted {
		if tell := r.on.rules.RetriesExhausted; tell != nil {
			tell(batch.Jobs[i], verdicts[i].err)
		}
	}
	r.mu.Lock()
	r.alone = false
	r.mu.Unlock()
	r.unblock()
}

// failed counts failures and sets the timer for the earliest retry.
func (r *runner) failed(nacks []queue.Nack, buried int) {
	failures := buried
	r.mu.Lock()
	for _, n := range nacks {
		if n.Kind == queue.Retry {
			failures++
		}
		r.schedule(n.Delay)
	}
	r.mu.Unlock()
	r.on.metrics.Failed.Add(float64(failures))
}

func second[T any](_ T, err error) error { return err }

// send repeats an operation until Redis has answered. It gives up when the claim is
// lost; the jobs are recovered with the shard then.
func (r *runner) send(op string, n int, do func(context.Context) error) bool {
	if n == 0 {
		return true
	}
	for wait := newBackoff(); ; {
		err := do(r.in.io)
		if err == nil {
			return true
		}
		if errors.Is(err, lowkiq.ErrFenced) {
			r.lose(op)
			return false
		}
		r.in.trouble(op, r.claim.Shard, err)
		if wait.sleep(r.work) != nil {
			return false
		}
	}
}
