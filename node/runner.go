package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// runner works on one claimed shard. It has no goroutine while the shard is idle: a
// wake-up (push, timer, poll) starts a lane, a lane pops and calls the handler until
// nothing is left. Up to shard_concurrency lanes work on different ids at once.
//
// Why no id runs twice at once: Redis gives an id to one flight at a time, a flight's
// jobs are taken from buffer by one lane each, and a lane checks the lease right before
// the call (I1). Why nothing is lost: a job leaves Redis with its ack only (I2).
type runner struct {
	in    *instance
	on    *handled
	claim *queue.Claim
	// work is the context of handler calls; cancelled when the claim or lease is lost,
	// or the shutdown's patience ends.
	work   context.Context
	cancel context.CancelCauseFunc
	slots  *queueSlots

	calls   atomic.Int64 // handler calls that run
	watches sync.Pool    // of *callWatch: a timer for each call would be half of what a call costs

	mu       sync.Mutex
	buffer   []flight           // popped, not started
	acks     []queue.Acks       // done, not acknowledged
	lanes    int                // running lanes
	turns    []*turn            // of these
	popping  bool               // one lane pops
	woken    bool               // something may have become due since the last pop began
	open     map[int64]int      // by flight: jobs that are neither done nor back in Redis
	alone    bool               // the open flight is an id on probation
	slot     bool               // this runner holds the node's probation slot
	stopping bool               // no more pops
	fenced   bool               // Redis refused an operation: the claim is gone
	taken    bool               // and another instance has it; else Redis lost the claim
	astray   bool               // Redis and this runner disagree: release and claim anew
	strange  int64              // a flight in the last pop's answer that nobody here knows; 0 = none
	more     bool               // the last pop left ids in the ready list
	leaving  atomic.Bool        // it is being handed over
	heard    bool               // Redis has confirmed the shard's subscription
	idle     chan struct{}      // closed when stopping and no lane runs
	perJob   time.Duration      // running mean of handler time per job; 0 = unknown
	blocked  bool               // an id on probation waits for the open flights to end
	flushing chan struct{}      // closed when the running flush ends; nil if none runs
	lastWork time.Duration      // sinceBoot of the last job
	nextPoll time.Duration      // sinceBoot of the next safety poll
	pollWait time.Duration      // between safety polls
	timer    *time.Timer        // next scheduled job
	timerAt  time.Duration      // sinceBoot at which timer fires; 0 = not set
	flush    *time.Timer        // acks that no pop has taken along
	wait     context.Context    // of waiting for a turn; nil: nobody has waited yet
	endWait  context.CancelFunc // ends wait
}

// flight is a part of one pop.
type flight struct {
	number int64
	jobs   []lowkiq.Job
}

// Acks wait for the next pop at most this long, so that they are in Redis within 10 ms.
const ackDelay = 7 * time.Millisecond

func newRunner(in *instance, on *handled, claim *queue.Claim) *runner {
	r := &runner{in: in, on: on, claim: claim, idle: make(chan struct{}), open: map[int64]int{}, lastWork: sinceBoot(), slots: in.queues[on.rules.Name]}
	r.work, r.cancel = context.WithCancelCause(in.work)
	r.timer = time.AfterFunc(time.Hour, r.alarm)
	r.timer.Stop()
	r.flush = time.AfterFunc(time.Hour, r.flushAcks)
	r.flush.Stop()
	return r
}

// wake makes the runner look for work.
func (r *runner) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.woken = true
	if r.lanes < r.on.rules.ShardConcurrency && !r.popping && !r.alone && !r.stopping && !r.on.paused.Load() {
		r.startLane()
	}
}

// schedule wakes the runner after d, unless it is woken earlier anyway. mu is held.
func (r *runner) schedule(d time.Duration) {
	if r.stopping {
		return
	}
	// A little later than due, so that rounding cannot make the pop come too early.
	d = delay(d) + time.Millisecond
	if at := sinceBoot() + d; r.timerAt == 0 || at < r.timerAt {
		r.timerAt = at
		r.timer.Reset(d)
	}
}

// alarm is the timer's end.
func (r *runner) alarm() {
	r.mu.Lock()
	r.timerAt = 0
	r.mu.Unlock()
	r.wake()
}

// startLane must be called with mu held.
func (r *runner) startLane() {
	r.lanes++
	t := &turn{r: r}
	r.turns = append(r.turns, t)
	r.in.lanes.Go(func() { r.lane(t) })
}

// lane handles batches until there are none.
func (r *runner) lane(t *turn) {
	for {
		batch, ok := r.next(t)
		if !ok {
			break
		}
		if !t.ready() {
			ok, answer := t.take(batch)
			switch {
			case answer != nil:
				t.give()
				r.settle(batch, answer)
				continue
			case !ok:
				t.give()
				r.unstart(batch)
				continue
			}
		}
		r.handle(batch, t)
		t.pass()
	}
	t.give()
}

// urgency is when the oldest job of a batch was due, zero if its queue is served in turn.
func (r *runner) urgency(batch *lowkiq.Batch) time.Time {
	if r.on.rules.Scheduler == Seq {
		return time.Time{}
	}
	oldest := batch.Jobs[0].PerformAt
	for _, job := range batch.Jobs[1:] {
		if job.PerformAt.Before(oldest) {
			oldest = job.PerformAt
		}
	}
	return oldest
}

// next takes a batch from the buffer, popping if it is empty. ok is false when this
// lane is done.
func (r *runner) next(t *turn) (batch *lowkiq.Batch, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.ids = t.ids[:0]
	for {
		if r.stopping || r.work.Err() != nil {
			return nil, r.endLane(t)
		}
		if len(r.buffer) > 0 && r.halted() {
			r.giveBack()
			return nil, r.endLane(t)
		}
		if len(r.buffer) > 0 {
			return r.takeBatch(t), true
		}
		if r.popping || r.alone || r.on.paused.Load() {
			return nil, r.endLane(t)
		}
		r.popping, r.woken = true, false
		r.mu.Unlock()
		t.give()
		again := r.pop()
		r.mu.Lock()
		r.popping = false
		if !again && len(r.buffer) == 0 && !r.woken {
			return nil, r.endLane(t)
		}
		r.widen()
	}
}

// endLane must be called with mu held, with the turn of the lane if it has one. It returns false.
func (r *runner) endLane(t *turn) bool {
	r.lanes--
	if i := slices.Index(r.turns, t); i >= 0 {
		r.turns = slices.Delete(r.turns, i, i+1)
	}
	if r.lanes > 0 {
		return false
	}
	r.giveSlot() // also a paused or stopping runner must not keep others waiting
	if r.stopping {
		close(r.idle)
	}
	return false
}

// giveSlot gives the node's probation slot to other runners. mu is held.
func (r *runner) giveSlot() {
	if r.slot {
		r.slot = false
		r.in.probation.give()
	}
}

// widen starts more lanes if there is work for them: the other lanes are busy, perhaps
// for long. mu is held, by a lane that goes on itself.
func (r *runner) widen() {
	most := r.on.rules.ShardConcurrency
	if r.lanes >= most || r.alone {
		return
	}
	wanted := r.lanes - 1
	for _, f := range r.buffer {
		wanted += (len(f.jobs) + r.on.rules.BatchSize - 1) / r.on.rules.BatchSize
	}
	if r.more || r.woken {
		wanted++ // somebody should pop on
	}
	for r.lanes < min(most, wanted) {
		r.startLane()
	}
}

// takeBatch must be called with mu held and a buffer that is not empty.
func (r *runner) takeBatch(t *turn) *lowkiq.Batch {
	f := &r.buffer[0]
	n := min(r.on.rules.BatchSize, len(f.jobs))
	batch := &lowkiq.Batch{Shard: r.claim.Shard.Shard, Fence: r.claim.Fence, Flight: f.number, Jobs: f.jobs[:n:n]}
	t.began.Store(0)
	t.stage.Store(&stageBehind)
	for i := range batch.Jobs {
		t.ids = append(t.ids, batch.Jobs[i].ID)
	}
	f.jobs = f.jobs[n:]
	if len(f.jobs) == 0 {
		r.buffer = r.buffer[1:]
	}
	return batch
}

// unstart puts a batch back that no handler has seen.
func (r *runner) unstart(batch *lowkiq.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer = append([]flight{{batch.Flight, batch.Jobs}}, r.buffer...)
}
