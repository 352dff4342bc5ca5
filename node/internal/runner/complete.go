package runner

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// What follows a handler call: acks, nacks, burials.

// done queues acks: the next pop takes them along, or the flush timer sends them.
func (r *Runner) done(number int64, jobs []lowkiq.Job) {
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
	r.acks[last].Rest = r.close(number, len(jobs))
}

// close notes that Redis needs nothing more for n jobs of a flight but their acks. It
// says whether that was the rest of the flight. mu is held.
func (r *Runner) close(number int64, n int) (ended bool) {
	if r.open[number] -= n; r.open[number] > 0 {
		return false
	}
	delete(r.open, number)
	if number == r.quarantine {
		r.change(quarantineEnds)
	}
	return true
}

func (r *Runner) takeAcks() []queue.Acks {
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
func (r *Runner) returnAcks(acks []queue.Acks) {
	if len(acks) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks = append(acks, r.acks...)
	if !r.stops() {
		r.flush.Reset(100 * time.Millisecond)
	}
}

// acknowledged counts acks that Redis has taken.
func (r *Runner) acknowledged(acks []queue.Acks) {
	n := 0
	for _, a := range acks {
		n += len(a.IDs)
	}
	if n > 0 {
		r.queue.Metrics.Processed.Add(float64(n))
		r.process.Worked("ack", r.Shard)
	}
}

// flightEnded looks for work if an id in quarantine waits for flights to end: one of them
// may have ended by an answer that no pop took along. A pop that is on its way may not
// have seen it either.
func (r *Runner) flightEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.change(flightEnds) {
		r.look()
	}
}

// flushAcks sends acks that no pop took along in time.
func (r *Runner) flushAcks() {
	acks := r.beginFlush()
	if len(acks) == 0 {
		return
	}
	defer r.endFlush()
	_, err := r.claim.Ack(r.process.IO, acks...)
	switch {
	case err == nil:
		r.acknowledged(acks)
		r.flightEnded()
	case errors.Is(err, lowkiq.ErrFenced):
		r.lose("ack", err)
	default:
		r.process.Trouble("ack", r.Shard, err)
		r.returnAcks(acks)
	}
}

// beginFlush takes the acks to send, none if another flush runs.
func (r *Runner) beginFlush() []queue.Acks {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flushing != nil || len(r.acks) == 0 {
		return nil
	}
	r.flushing = make(chan struct{})
	acks := r.acks
	r.acks = nil
	return acks
}

func (r *Runner) endFlush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.flushing)
	r.flushing = nil
	if len(r.acks) > 0 && !r.stops() {
		r.flush.Reset(ackDelay)
	}
}

// lastAcks are all acks that Redis may not have, once no lane and no flush runs.
func (r *Runner) lastAcks() []queue.Acks {
	acks := r.takeAcks() // a flush that begins from now on finds none
	r.mu.Lock()
	flushing := r.flushing
	r.mu.Unlock()
	if flushing != nil {
		<-flushing
	}
	return append(r.takeAcks(), acks...)
}

// settle deals with a batch that did not succeed as a whole.
func (r *Runner) settle(batch *lowkiq.Batch, answer error) {
	all := r.verdicts(batch, answer)
	r.logFailure(batch, answer, all)
	if len(all.done) > 0 {
		r.done(batch.Flight, all.done)
	}
	nacks, burials := all.nacks, all.burials
	ok := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) }) &&
		r.send("bury", len(burials), func(ctx context.Context) error { return second(r.claim.Bury(ctx, burials...)) })
	if !ok {
		return
	}
	r.failed(nacks, len(burials))
	for _, v := range all.exhausted {
		r.tell(v)
	}
	r.mu.Lock()
	r.close(batch.Flight, len(nacks)+len(burials))
	r.mu.Unlock()
	r.flightEnded()
}

// verdicts decides with the user's rules. If these panic, the failure says so, and the
// default rules decide: a worker must not die of what a handler says.
func (r *Runner) verdicts(batch *lowkiq.Batch, answer error) (all outcome) {
	defer func() {
		if value := recover(); value != nil {
			rules := r.queue.Rules
			rules.RetryIn, rules.FormatError = DefaultRetryIn, error.Error
			all = outcomeOf(batch, decide(&rules, batch, &PanicError{value, debug.Stack()}))
		}
	}()
	return outcomeOf(batch, decide(&r.queue.Rules, batch, answer))
}

// tell calls RetriesExhausted.
func (r *Runner) tell(v exhausted) {
	if r.queue.Rules.RetriesExhausted == nil {
		return
	}
	defer func() {
		if value := recover(); value != nil {
			r.process.Log.Error("retries_exhausted panicked", "shard", r.Shard, "panic", value, "stack", string(debug.Stack()))
		}
	}()
	r.queue.Rules.RetriesExhausted(v.job, v.err)
}

// failed counts failures and sets the timer for the earliest retry.
func (r *Runner) failed(nacks []queue.Nack, buried int) {
	failures := buried
	r.mu.Lock()
	for _, n := range nacks {
		if n.Kind == queue.Retry {
			failures++
		}
		r.schedule(n.Delay)
	}
	r.mu.Unlock()
	r.queue.Metrics.Failed.Add(float64(failures))
	r.queue.Metrics.Buried.Add(float64(buried))
}

func second[T any](_ T, err error) error { return err }

// send repeats an operation until Redis has done it. It gives up when the claim is lost, or
// refused and the shard is to be released anyhow; the jobs are recovered with the shard then.
func (r *Runner) send(op string, n int, do func(context.Context) error) bool {
	if n == 0 {
		return true
	}
	for wait := NewBackoff(); ; {
		err := do(r.process.IO)
		if err == nil {
			r.process.Worked(op, r.Shard)
			return true
		}
		if errors.Is(err, lowkiq.ErrFenced) {
			r.lose(op, err)
			return false
		}
		if r.process.Trouble(op, r.Shard, err) && r.ends() || wait.Sleep(r.work) != nil {
			return false
		}
	}
}

// The kinds of lines that the log has of handlers that fail.
const (
	batchFailed   = "batch failed"
	jobsBuried    = "jobs buried"
	handlerPanics = "handler panicked"
)

// logFailure tells what became of a batch that did not succeed.
func (r *Runner) logFailure(batch *lowkiq.Batch, answer error, all outcome) {
	var failed []queue.Nack
	for _, n := range all.nacks {
		if n.Kind == queue.Retry {
			failed = append(failed, n)
		}
	}
	var panicked *PanicError
	if errors.As(answer, &panicked) {
		if left, ok := r.process.MayLog(batch.Shard.Queue, handlerPanics); ok {
			r.process.Log.Error(handlerPanics, "shard", batch.Shard, "flight", batch.Flight, "panic", panicked.Value,
				"stack", string(panicked.Stack), "left_out", left)
		}
	}
	if len(failed) > 0 {
		r.warnFailure(batchFailed, batch, len(failed), failed[0].ID, failed[0].Error)
	}
	if len(all.burials) > 0 {
		r.warnFailure(jobsBuried, batch, len(all.burials), all.burials[0].ID, all.burials[0].Error)
	}
}

func (r *Runner) warnFailure(kind string, batch *lowkiq.Batch, jobs int, id, text string) {
	if left, ok := r.process.MayLog(batch.Shard.Queue, kind); ok {
		r.process.Log.Warn(kind, "shard", batch.Shard, "flight", batch.Flight, "jobs", jobs, "of", len(batch.Jobs),
			"id", id, "err", queue.Gist(text), "left_out", left)
	}
}
