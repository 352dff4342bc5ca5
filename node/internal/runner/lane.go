package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// Reserve waits for what a handler needs for a call and may be short of, such as a free process.
// with returns the call's context, which says what was set aside; leave gives it back if no call
// has used it. An error that is not the context's is the answer to the batch.
type Reserve func(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error)

// turn is what a lane holds for its handler calls. It is taken in an order in which no lane that
// waits holds what others could use: first a call of the queue's concurrency, then a process of the
// handler, then a slot of the node. So a queue whose processes are all busy takes no slot.
type turn struct {
	queue  *Queue
	slots  *Slots
	call   *Slots // of which it has one of the queue's calls; nil: it has none
	slot   bool   // one of the node's slots
	with   func(context.Context) context.Context
	leave  func() // gives back what was reserved; nil: nothing is
	called bool   // the lane has called a handler: it was not woken for what it pops next
	waits  bool   // the lane waits for what it lacks; guarded by the runner's mu

	popped time.Time    // when the flight of the batch at hand was, by Redis's clock
	place  int          // of the batch's first job among those of the flight
	clock  stamps       // of the lane's calls
	notes  notes        // of the call
	groups []string     // of the ids of the batch at hand that were granted: leaveGroups
	waiter *groupWaiter // the lane waits for a permit of a group; guarded by the runner's mu
	// admitted is when that was asked, Now().
	admitted time.Duration
	paced    bool // it is to ask for the queue's rate: unpace
	refused  bool // the rate did not let the batch at hand begin

	// For people; see state.whereabouts.
	ids   []string                    // of the batch at hand; guarded by the runner's mu
	ends  ends                        // what can end its handler call
	stage atomic.Pointer[queue.Stage] // what the batch waits for
	began atomic.Int64                // Now() of its handler call; 0: the lane is in none
}

// The stages of a batch that has no handler yet.
var (
	stageBehind, stageCall       = queue.Behind, queue.ForCall
	stageProcess, stageForSlot   = queue.ForProcess, queue.ForSlot
	stageForPermit, stageForRate = queue.ForPermit, queue.ForRate
	stageForGroup                = queue.ForGroup
)

// ready reports whether the turn holds all that a call needs.
func (t *turn) ready() bool {
	return t.slot && t.queue.Reserve == nil && (t.call != nil || t.queue.calls() == nil) && t.queue.rules().Limit.Rate.N == 0
}

// takePaced is take for a queue with a rate.
func (t *turn) takePaced(ctx context.Context, due time.Time) (ok bool, err error) {
	t.stage.Store(&stageForRate)
	refused := t.refused
	t.refused = false
	t.give() // of the call before: whoever's turn it is may need it
	if t.queue.live.pacer.begin(ctx, refused) != nil {
		return false, nil
	}
	t.paced = true
	return t.take(ctx, due)
}

// take waits for what a call needs. ok is false if the batch is not to be handled now, because
// the queue is paused or the runner stops; an error is the handler's answer to it.
func (t *turn) take(ctx context.Context, due time.Time) (ok bool, err error) {
	q := t.queue
	var began time.Time
	stage, limited := &stageCall, q.rules().Limit.Concurrency > 0
	if q.Reserve != nil {
		stage = &stageProcess
		began = time.Now() // a queue's calls are no more than its processes: who waits for one waits for a process
	}
	if limited {
		stage = &stageForPermit
	}
	t.stage.Store(stage)
	if calls := q.calls(); calls != nil && t.call == nil {
		t.giveSlot() // of a time without a bound
		if calls.take(ctx, &q.all, due) != nil {
			return false, nil
		}
		t.call = calls
	}
	if q.Reserve != nil {
		t.stage.Store(&stageProcess)
		if limited {
			began = time.Now() // until then it has waited for a permit
		}
		if t.with, t.leave, err = q.Reserve(ctx); err == nil {
			q.ProcessWait.Observe(time.Since(began))
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
		if t.slots.take(ctx, &q.share, due) != nil {
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
		t.slots.give(&t.queue.share)
		t.slot = false
	}
}

// give gives everything back.
func (t *turn) give() {
	t.unreserve()
	t.giveSlot()
	if t.call != nil {
		t.call.give(&t.queue.all)
		t.call = nil
	}
}

// pass lets others go on after a batch, if some wait.
func (t *turn) pass() {
	t.unreserve()
	if t.call != nil && t.call.contended() {
		t.give()
	}
	if t.queue.Reserve != nil || t.slot && t.slots.contended() {
		t.giveSlot()
	}
}
