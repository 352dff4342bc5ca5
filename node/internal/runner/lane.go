package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// NewQueue completes what the runners of a queue share.
func NewQueue(q Queue) *Queue {
	if q.Concurrency > 0 {
		q.calls = NewSlots(q.Concurrency)
	}
	return &q
}

// Reserve waits for what a handler needs for a call and may be short of, such as a free process.
// with returns the call's context, which says what was set aside; leave gives it back if no call has used
// it. An error that is not the context's is the answer to the batch.
type Reserve func(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error)

// turn is what a lane holds for its handler calls. It is taken in an order in which nobody
// holds what others could use: first a call of the queue's concurrency, then a process of the
// handler, then a slot of the node. So a queue whose processes are all busy takes no slot.
type turn struct {
	r     *Runner
	call  bool // one of the queue's calls
	slot  bool // one of the node's slots
	with  func(context.Context) context.Context
	leave func() // gives back what was reserved; nil: nothing is

	// For people; see runner.whereabouts.
	ids   []string                    // of the batch at hand; guarded by the runner's mu
	stage atomic.Pointer[queue.Stage] // what the batch waits for
	began atomic.Int64                // Now() of its handler call; 0: there was none yet
}

// The stages of a batch that has no handler yet.
var (
	stageBehind, stageCall     = queue.Behind, queue.ForCall
	stageProcess, stageForSlot = queue.ForProcess, queue.ForSlot
)

// ready reports whether the turn holds all that a call needs.
func (t *turn) ready() bool { return t.slot && t.r.queue.Reserve == nil }

// take waits for what a call needs. ok is false if the batch is not to be handled now, because
// the queue is paused or the runner stops; an error is the handler's answer to it.
func (t *turn) take(batch *lowkiq.Batch) (ok bool, err error) {
	r := t.r
	ctx, ok := r.mayWait()
	if !ok {
		return false, nil
	}
	due := r.urgency(batch)
	var began time.Time
	stage := &stageCall
	if r.queue.Reserve != nil {
		stage = &stageProcess
		began = time.Now() // a queue's calls are no more than its processes: who waits for one waits for a process
	}
	t.stage.Store(stage)
	if r.queue.calls != nil && !t.call {
		if r.queue.calls.take(ctx, &r.queue.all, due) != nil {
			return false, nil
		}
		t.call = true
	}
	if r.queue.Reserve != nil {
		if t.with, t.leave, err = r.queue.Reserve(ctx); err == nil {
			r.queue.ProcessWait.Observe(time.Since(began))
		} else {
			t.with, t.leave = nil, nil
			if ctx.Err() != nil {
				return false, nil
			}
			return false, err
		}
	}
	if !t.slot {
		t.stage.Store(&stageForSlot)
		if r.process.Slots.take(ctx, &r.queue.share, due) != nil {
			return false, nil
		}
		t.slot = true
	}
	return true, nil
}

// context is that of a call with what was reserved for it.
func (t *turn) context(ctx context.Context) context.Context {
	if t.with == nil {
		return ctx
	}
	return t.with(ctx)
}

// unreserve gives back what was reserved and no call has used.
func (t *turn) unreserve() {
	if t.leave != nil {
		t.leave()
		t.with, t.leave = nil, nil
	}
}

func (t *turn) giveSlot() {
	if t.slot {
		t.r.process.Slots.give(&t.r.queue.share)
		t.slot = false
	}
}

// give gives everything back.
func (t *turn) give() {
	t.unreserve()
	t.giveSlot()
	if t.call {
		t.r.queue.calls.give(&t.r.queue.all)
		t.call = false
	}
}

// pass lets others go on after a batch, if some wait.
func (t *turn) pass() {
	t.unreserve()
	if t.call && t.r.queue.calls.contended() {
		t.give()
	}
	if t.r.queue.Reserve != nil || t.slot && t.r.process.Slots.contended() {
		t.giveSlot()
	}
}

// mayWait returns the context of waiting for a turn, which ends when the queue is paused or the
// runner stops; ok is false if that is so already.
func (r *Runner) mayWait() (ctx context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stops() || r.halted() {
		return nil, false
	}
	if r.wait == nil {
		r.wait, r.endWait = context.WithCancel(r.work)
	}
	return r.wait, true
}

// halted reports whether the queue is paused and this runner can give back what it has popped.
// An id on probation stays: only an answer of its handler may end that. mu is held.
func (r *Runner) halted() bool { return r.queue.Paused.Load() && r.phase != quarantined }

// interrupt ends the waiting for turns. mu is held.
func (r *Runner) interrupt() {
	if r.wait != nil {
		r.endWait()
		r.wait, r.endWait = nil, nil
	}
}

// Pause gives back what is popped and with no handler, after the queue was paused.
func (r *Runner) Pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stops() || !r.halted() {
		return
	}
	r.interrupt()
	if len(r.buffer) > 0 {
		r.lanes++ // what this one does is part of the shard's work: its release waits for it
		r.process.Lanes.Go(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.giveBack()
			r.endLane(nil)
		})
	}
}

// giveBack puts what waits in the buffer back to the head of the shard's line, no retry spent.
// mu is held, and let go meanwhile.
func (r *Runner) giveBack() {
	buffer := r.buffer
	r.buffer = nil
	var nacks []queue.Nack
	for i := len(buffer) - 1; i >= 0; i-- { // the last one back is the first in line
		for j := len(buffer[i].jobs) - 1; j >= 0; j-- {
			nacks = append(nacks, queue.Nack{Flight: buffer[i].number, ID: buffer[i].jobs[j].ID, Kind: queue.Return})
		}
	}
	r.mu.Unlock()
	sent := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) })
	r.mu.Lock()
	if sent {
		for _, n := range nacks {
			r.close(n.Flight, 1)
		}
	}
}
