package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Reserve waits for a resource that a handler needs for a call, such as a free process. with returns the
// call's context, which carries the resource. leave returns the resource if no call has used it. An error
// that is not the context's is the answer to the batch.
type Reserve func(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error)

// lane is a goroutine of a runner, with its batch and the resources that it holds for handler calls: a slot of the queue's
// limit, a process of the handler, and a slot of the node. It acquires them in this order, so that a lane that waits holds
// nothing that other lanes could use. For example, a queue takes no slot of the node while all its processes are busy.
type lane struct {
	queue *Queue
	call  Slots // slots of the queue's limit, if the lane holds one of them; otherwise nil
	slot  bool  // the lane holds one of the node's slots
	with  func(context.Context) context.Context
	leave func() // returns the reserved resource; nil if nothing is reserved
	waits bool   // the lane waits for resources; guarded by the runner's mu

	// State of the batch.
	popped time.Time // time of its pop, by Redis's clock
	place  int       // place of its first job in the flight
	notes  notes     // of its call
	// groups are the groups that have let its ids begin. leaveGroups must follow. While the lane waits for resources, the
	// timer of keepGroupsWaiting calls it.
	groups   []string
	admitted time.Duration // time when the groups were asked, by Now
	atRate   bool          // the lane may ask for the queue's rate; leaveRate must follow
	refused  bool          // the rate has refused the batch

	clock callClock // of the lane's calls

	// For state.locateID and Runner.Cancel.
	ids       []string                       // of the batch; guarded by the runner's mu
	canceller canceller                      // cancels its call
	stage     atomic.Pointer[protocol.Stage] // resource that the batch waits for
	began     atomic.Int64                   // time when the handler call began, by Now; 0 outside calls
}

// The stages of a batch before its call.
var (
	stageBehind, stageCall       = protocol.Behind, protocol.ForCall
	stageProcess, stageForSlot   = protocol.ForProcess, protocol.ForSlot
	stageForPermit, stageForRate = protocol.ForPermit, protocol.ForRate
)

// hasAll reports whether the lane holds all resources of a call, so that it need not wait.
func (l *lane) hasAll() bool {
	return l.slot && l.queue.Reserve == nil && (l.call != nil || l.queue.callSlots() == nil) && l.queue.rules().Limit.Rate.N == 0
}

// acquireAtRate does the same as acquire for a queue with a rate. It first waits until the lane may ask for the rate.
func (l *lane) acquireAtRate(ctx context.Context, due time.Time) (ok bool, err error) {
	l.stage.Store(&stageForRate)
	refused := l.refused
	l.refused = false
	l.release() // the lane that may ask next may need the resources
	if l.queue.Limits.AwaitRate(ctx, refused) != nil {
		return false, nil
	}
	l.atRate = true
	return l.acquire(ctx, due)
}

// acquire waits for the resources of a call. ok is false if the queue is paused or the runner stops, and
// then err is the answer to the batch, if it is not nil.
func (l *lane) acquire(ctx context.Context, due time.Time) (ok bool, err error) {
	q := l.queue
	var began time.Time
	stage, limited := &stageCall, q.rules().Limit.Concurrency > 0
	if q.Reserve != nil {
		stage = &stageProcess
		began = time.Now() // such a queue has as many slots as processes, so a wait for a slot is a wait for a process
	}
	if limited {
		stage = &stageForPermit
	}
	l.stage.Store(stage)
	if calls := q.callSlots(); calls != nil && l.call == nil {
		l.releaseSlot() // the lane has held it since before the queue had a limit
		if calls.Acquire(ctx, due) != nil {
			return false, nil
		}
		l.call = calls
	}
	if q.Reserve != nil {
		l.stage.Store(&stageProcess)
		if limited {
			began = time.Now() // the wait so far was a wait for a permit
		}
		if l.with, l.leave, err = q.Reserve(ctx); err == nil {
			q.ProcessWait.Observe(time.Since(began))
		} else {
			l.with, l.leave = nil, nil
			if ctx.Err() != nil {
				return false, nil
			}
			return false, err
		}
	}
	if !l.slot {
		l.stage.Store(&stageForSlot)
		if q.Slots.Acquire(ctx, due) != nil {
			return false, nil
		}
		l.slot = true
	}
	return true, nil
}

// callContext returns the context of a call, which carries the reserved resource.
func (l *lane) callContext(ctx context.Context) context.Context {
	if l.with == nil {
		return ctx
	}
	return l.with(ctx)
}

// leaveReserved returns a reserved resource that no call has used.
func (l *lane) leaveReserved() {
	if l.leave != nil {
		l.leave()
		l.with, l.leave = nil, nil
	}
}

func (l *lane) releaseSlot() {
	if l.slot {
		l.queue.Slots.Release()
		l.slot = false
	}
}

// release returns all resources.
func (l *lane) release() {
	l.leaveReserved()
	l.releaseSlot()
	if l.call != nil {
		l.call.Release()
		l.call = nil
	}
}

// yield returns resources after a batch, if other lanes wait for them.
func (l *lane) yield() {
	l.leaveReserved()
	if l.call != nil && l.call.Contended() {
		l.release()
	}
	if l.queue.Reserve != nil || l.slot && l.queue.Slots.Contended() {
		l.releaseSlot()
	}
}
