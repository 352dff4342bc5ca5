// Package runner handles the jobs of one claimed shard: it pops them, calls the handler and tells Redis what became of
// each. A shard costs goroutines only while it has work: a wake-up starts a lane, which pops, calls the handler, and ends
// when nothing is left. Up to ShardConcurrency lanes work on different ids at once.
//
// # States
//
// A runner is in one phase (state.go), which changes in one function. An empty field: the phase stays.
//
//	phase           | woken      | flight ends | pop begins | pop: jobs or none | pop: wait       | pop: quarantine | stop
//	----------------|------------|-------------|------------|-------------------|-----------------|-----------------|---------
//	resting         | looks      |             | popping    |                   |                 |                 | stopping
//	waitsForFlights | looks      | resting, l. | popping    |                   |                 |                 | stopping
//	popping         | repopping  | repopping   |            | resting           | waitsForFlights | quarantined     | stopping
//	repopping       |            |             |            | resting, looks    | waitsForFl., l. | quarantined     | stopping
//	quarantined     |            | resting, when the flight is that of the id in quarantine                     | stopping
//	stopping        | stopped, when the last lane ends
//	stopped         |
//
// To look is to start a lane that pops, or to pop once more. Lanes handle what was popped in every phase but the last two.
//
// # Why no id runs twice at once (I1)
//
// Redis gives an id to one flight at a time. A flight's jobs lie in the buffer, from which one lane takes each. A lane asks
// whether the lease holds right before the call; if it does not the runner stops. The shard is released only when it is
// stopped: no lane runs, none begins.
//
// # Why nothing is lost (I2)
//
// A job leaves Redis by its ack only, and an ack is queued only when the handler has said that the job is done:
//
//	pop 1 ──► jobs a b ──► handler: done ──► acks wait (7 ms at most) ──► pop 2 takes them along, or a flush sends them
//
// So a job costs one round trip, that of the next pop. If an answer is lost the same pop is sent again, with its number and
// its acks: Redis answers with the same flight, and knows what it has acknowledged. What a lane has not begun goes back to
// the buffer, or, if the queue is paused, to the head of the shard's line; all else goes back with the release. An answer
// that names a flight which the runner does not know may be older than an ack; two in a row mean that Redis forgot an ack
// or answered a pop into the void: the shard is released and claimed anew.
//
// # Quarantine
//
// A job that was in flight when its worker died may have killed it. Redis hands such an id out alone: when no flight is open
// (until then: wait), and nothing after it before its handler has answered. One that was alone at a crash needs the node's
// one quarantine slot as well, so that the next crash is blamed on the right one; whoever waits is woken when it is free.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// Claim is the right to work on a shard, and all that a runner asks of Redis. A *queue.Claim is one.
type Claim interface {
	Pop(context.Context, queue.PopRequest) (queue.Popped, error)
	Ack(context.Context, ...queue.Acks) (int, error)
	Nack(context.Context, ...queue.Nack) (int, error)
	Bury(context.Context, ...queue.Burial) (int, error)
	Release(context.Context) (int, error)
}

// Process is what a runner needs of the process that it runs in. All runners of a lease share one.
type Process struct {
	Work context.Context // of handler calls: ends when the lease is lost or the shutdown's time is over
	IO   context.Context // of requests to Redis: it outlives Work, so that finished jobs can still be acknowledged
	Log  *slog.Logger

	Lanes      *sync.WaitGroup // lanes of all runners
	Slots      *Slots          // handler calls of the node at once
	Quarantine *QuarantineSlot

	Now          func() time.Duration          // a clock that never jumps and counts suspend
	RedisTime    func(time.Duration) time.Time // Redis's clock at a time of Now, estimated
	SawRedisTime func(time.Time)               // takes in Redis's clock
	MayWork      func() bool                   // asked right before each handler call: does the lease hold? (I1)
	Kick         func()                        // has the owner of the runners look at Over

	// Trouble tells of an operation that Redis did not do; stuck says that it will not until a person mends something.
	Trouble func(op string, s lowkiq.Shard, err error) (stuck bool)
	Worked  func(op string, s lowkiq.Shard) // Redis has done an operation
	// Fenced tells that Redis refused an operation because the claim is gone. If calls is not 0 soon, the process must end:
	// another node may have the shard.
	Fenced func(op string, calls func() int64)
	// MayLog says whether a line of this kind may be logged now, and how many were left out since the last one.
	MayLog func(queueName, kind string) (leftOut int, ok bool)
}

// Rules are those of a queue's jobs.
type Rules struct {
	BatchSize        int           // ids per handler call
	ShardConcurrency int           // batches of different ids of a shard at once
	Prefetch         int           // most ids popped at once
	HandlerTimeout   time.Duration // 0 or less: none
	MaxRetryCount    int           // 0 or less: none
	MaxCrashes       int           // 0 or less: a job is never buried for its crashes
	Exhausted        queue.Policy
	RetryIn          func(count int) time.Duration
	InTurn           bool // of shards that wait for a slot, the longest waiting is next, not the one with the oldest job
	RetriesExhausted func(lowkiq.Job, error)
	FormatError      func(error) string
}

// Queue is what the runners of a queue share.
type Queue struct {
	Rules
	Handler     lowkiq.Handler
	Reserve     Reserve // nil: a call needs nothing that is short
	Concurrency int     // calls of the queue at once on this node; 0: only the node's slots bound them
	Paused      *atomic.Bool
	Metrics     *metrics.Queue
	ProcessWait *metrics.Histogram // how long batches wait for Reserve; nil without it

	share share  // of the node's slots
	calls *Slots // Concurrency of them; nil: unbounded
	all   share  // of calls
}

// Runner works on one claimed shard; see the package.
type Runner struct {
	Shard lowkiq.Shard
	Fence int64

	claim   Claim
	queue   *Queue
	process *Process
	// work is the context of handler calls; cancelled when the claim or lease is lost,
	// or the shutdown's patience ends.
	work   context.Context
	cancel context.CancelCauseFunc

	calls   atomic.Int64 // handler calls that run
	watches sync.Pool    // of *callWatch: a timer for each call would be half of what a call costs

	mu    sync.Mutex // guards all that follows
	phase phase
	hold  hold
	idle  chan struct{} // closed when stopped
	lanes int           // running lanes
	turns []*turn       // of these

	buffer     []flight      // popped, not started
	open       map[int64]int // by flight: jobs that are neither done nor back in Redis
	quarantine int64         // the flight of the id in quarantine, while the phase is quarantined
	slot       bool          // this runner holds the node's quarantine slot
	strange    int64         // a flight in the last pop's answer that this runner does not know; 0 = none
	more       bool          // the last pop left ids in the ready list
	perJob     time.Duration // running mean of handler time per job; 0 = unknown

	acks     []queue.Acks  // done, not acknowledged
	flush    *time.Timer   // sends acks that no pop has taken along
	flushing chan struct{} // closed when the running flush ends; nil if none runs

	timer   *time.Timer        // next scheduled job
	timerAt time.Duration      // Now() at which timer fires; 0 = not set
	wait    context.Context    // of waiting for a turn; nil: no lane has waited yet
	endWait context.CancelFunc // ends wait

	subscribed bool          // Redis has confirmed the shard's subscription
	lastWork   time.Duration // Now() of the last job
	nextPoll   time.Duration // Now() of the next safety poll
	pollWait   time.Duration // between safety polls
}

// flight is a part of one pop.
type flight struct {
	number int64
	jobs   []lowkiq.Job
}

// Acks wait for the next pop at most this long, so that they are in Redis within 10 ms.
const ackDelay = 7 * time.Millisecond

// New makes a runner for a shard that was claimed with this fence. It does nothing until Wake.
func New(p *Process, q *Queue, s lowkiq.Shard, fence int64, claim Claim) *Runner {
	r := &Runner{process: p, queue: q, Shard: s, Fence: fence, claim: claim, idle: make(chan struct{}), open: map[int64]int{}, lastWork: p.Now()}
	r.work, r.cancel = context.WithCancelCause(p.Work)
	r.timer = time.AfterFunc(time.Hour, r.alarm)
	r.timer.Stop()
	r.flush = time.AfterFunc(time.Hour, r.flushAcks)
	r.flush.Stop()
	return r
}

// Wake makes the runner look for work.
func (r *Runner) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.change(woken) {
		r.look()
	}
}

// look starts a lane that pops, if there may be one more. mu is held.
func (r *Runner) look() {
	if r.lanes < r.queue.ShardConcurrency && r.mayPop() {
		r.startLane()
	}
}

// schedule wakes the runner after d, unless it is woken earlier anyway. mu is held.
func (r *Runner) schedule(d time.Duration) {
	if r.stops() {
		return
	}
	// A little later than due, so that rounding cannot make the pop come too early.
	d = delay(d) + time.Millisecond
	if at := r.process.Now() + d; r.timerAt == 0 || at < r.timerAt {
		r.timerAt = at
		r.timer.Reset(d)
	}
}

// alarm is the timer's end.
func (r *Runner) alarm() {
	r.mu.Lock()
	r.timerAt = 0
	r.mu.Unlock()
	r.Wake()
}

// startLane must be called with mu held.
func (r *Runner) startLane() {
	r.lanes++
	t := &turn{r: r}
	r.turns = append(r.turns, t)
	r.process.Lanes.Go(func() { r.lane(t) })
}

// lane handles batches until there are none.
func (r *Runner) lane(t *turn) {
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
func (r *Runner) urgency(batch *lowkiq.Batch) time.Time {
	if r.queue.InTurn {
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
func (r *Runner) next(t *turn) (batch *lowkiq.Batch, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.ids = t.ids[:0]
	for {
		if r.stops() || r.work.Err() != nil {
			return nil, r.endLane(t)
		}
		if len(r.buffer) > 0 && r.halted() {
			r.giveBack()
			return nil, r.endLane(t)
		}
		if len(r.buffer) > 0 {
			return r.takeBatch(t), true
		}
		if !r.mayPop() {
			return nil, r.endLane(t)
		}
		r.change(popBegins)
		r.mu.Unlock()
		t.give()
		popped, answered := r.pop()
		r.mu.Lock()
		var again bool
		if answered {
			again = r.takeIn(popped)
		} else {
			again = r.change(popEnds)
		}
		if !again && len(r.buffer) == 0 {
			return nil, r.endLane(t)
		}
		r.widen(again)
	}
}

// endLane must be called with mu held, with the turn of the lane if it has one. It returns false.
func (r *Runner) endLane(t *turn) bool {
	r.lanes--
	if i := slices.Index(r.turns, t); i >= 0 {
		r.turns = slices.Delete(r.turns, i, i+1)
	}
	if r.lanes > 0 {
		return false
	}
	r.giveSlot() // also a paused or stopping runner must not keep others waiting
	r.change(lanesEnd)
	return false
}

// giveSlot gives the node's probation slot to other runners. mu is held.
func (r *Runner) giveSlot() {
	if r.slot {
		r.slot = false
		r.process.Quarantine.give()
	}
}

// widen starts more lanes if there is work for them: the other lanes are busy, perhaps
// for long. mu is held, by a lane that goes on itself.
func (r *Runner) widen(again bool) {
	most := r.queue.ShardConcurrency
	if r.lanes >= most || r.phase == quarantined {
		return
	}
	wanted := r.lanes - 1
	for _, f := range r.buffer {
		wanted += (len(f.jobs) + r.queue.Rules.BatchSize - 1) / r.queue.Rules.BatchSize
	}
	if r.more || again {
		wanted++ // one should pop on
	}
	for r.lanes < min(most, wanted) {
		r.startLane()
	}
}

// takeBatch must be called with mu held and a buffer that is not empty.
func (r *Runner) takeBatch(t *turn) *lowkiq.Batch {
	f := &r.buffer[0]
	n := min(r.queue.Rules.BatchSize, len(f.jobs))
	batch := &lowkiq.Batch{Shard: r.Shard, Fence: r.Fence, Flight: f.number, Jobs: f.jobs[:n:n]}
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
func (r *Runner) unstart(batch *lowkiq.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer = append([]flight{{batch.Flight, batch.Jobs}}, r.buffer...)
}

// lose ends the work on a shard whose claim is gone. Another node may own it already, so its
// handlers have as long to return as those of a lost lease.
func (r *Runner) lose(op string, err error) {
	why := lost
	if refusal := (*queue.FencedError)(nil); errors.As(err, &refusal) && refusal.Owner.Fence != 0 {
		why = taken
	}
	r.mu.Lock()
	news := r.giveUp(why)
	r.mu.Unlock()
	if !news {
		return
	}
	r.cancel(lowkiq.ErrLeaseLost)
	r.process.Fenced(op, r.calls.Load)
	r.process.Kick()
}

// resync gives a shard back to claim it anew: Redis forgot some of what it did (a
// failover), and only a release puts flights that no runner knows back into the queue (I2). mu is held.
func (r *Runner) resync(why string, err error) {
	if !r.giveUp(outOfSync) {
		return
	}
	r.process.Log.Warn("redis and node disagree about a shard: claiming it anew", "shard", r.Shard, "why", why, "err", err)
	r.process.Kick()
}

// giveUp notes that the claim is of no more use. false: that, or worse, was known. mu is held.
func (r *Runner) giveUp(why hold) (news bool) {
	if r.hold >= lost || r.hold == why {
		return false
	}
	r.hold = why
	r.end()
	return true
}

// Over reports whether the claim is of no more use: it is gone, or is to be given back.
func (r *Runner) Over() bool { return r.held() != held }

// OutOfSync reports whether Redis and this runner disagree: the shard is to be claimed anew.
func (r *Runner) OutOfSync() bool { return r.held() == outOfSync }

// Fenced reports whether Redis refused an operation because the claim is gone; byAnother says that another instance has
// it, else Redis has lost it.
func (r *Runner) Fenced() (fenced, byAnother bool) {
	h := r.held()
	return h >= lost, h == taken
}

func (r *Runner) held() hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hold
}

// Calls is how many handler calls run.
func (r *Runner) Calls() int64 { return r.calls.Load() }

// Stop ends the pops; the returned channel closes when no handler of the shard runs.
func (r *Runner) Stop() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end()
	return r.idle
}

// end stops the runner. mu is held.
func (r *Runner) end() {
	r.change(stop)
	if r.lanes == 0 {
		r.change(lanesEnd)
	}
}

// Release waits for the handlers of a stopped runner, acknowledges what they did, and gives the shard back. A lost
// lease does not forbid it: Redis knows whether another instance has claimed the shard meanwhile. It repeats while
// Redis is out of reach, until ctx ends.
func (r *Runner) Release(ctx context.Context) error {
	<-r.idle
	if acks := r.lastAcks(); len(acks) > 0 {
		err := r.persist(ctx, "ack", func() error { return second(r.claim.Ack(ctx, acks...)) })
		switch {
		case err == nil:
			r.acknowledged(acks)
		case !errors.Is(err, lowkiq.ErrFenced): // else the release says so
			r.process.Trouble("ack", r.Shard, err)
		}
	}
	return r.persist(ctx, "release", func() error { return second(r.claim.Release(ctx)) })
}

// Close ends the timers and contexts of a runner that does nothing any more.
func (r *Runner) Close() {
	r.flush.Stop()
	r.cancel(lowkiq.ErrShutdown)
}

// persist repeats an operation while Redis is out of reach and ctx lasts.
func (r *Runner) persist(ctx context.Context, op string, do func() error) error {
	for wait := NewBackoff(); ; {
		err := do()
		if err == nil || !queue.Transient(err) {
			return err
		}
		r.process.Trouble(op, r.Shard, err)
		if wait.Sleep(ctx) != nil {
			return err
		}
	}
}

// Whereabouts says where the runner has an id.
func (r *Runner) Whereabouts(id string) queue.Whereabouts {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.buffer {
		if slices.ContainsFunc(f.jobs, func(job lowkiq.Job) bool { return job.ID == id }) {
			return queue.Whereabouts{Stage: queue.Behind}
		}
	}
	for _, t := range r.turns {
		if !slices.Contains(t.ids, id) {
			continue
		}
		if began := t.began.Load(); began != 0 {
			return queue.Whereabouts{Stage: queue.Handled, For: r.process.Now() - time.Duration(began)}
		}
		return queue.Whereabouts{Stage: *t.stage.Load()}
	}
	return queue.Whereabouts{}
}

// A shard without work for this long is polled less and less, down to once per
// idlePoll.
const (
	quietAfter = 10 * time.Second
	idlePoll   = time.Minute
)

// Subscribed notes that the wake-ups of the shard arrive from now on.
func (r *Runner) Subscribed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribed = true
}

// Unsubscribed notes that wake-ups may be missed: the runner is polled until they arrive again.
func (r *Runner) Unsubscribed(interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribed = false
	r.pollWait = interval
	r.nextPoll = r.process.Now() + interval
}

// PollDue says whether the runner, which has a lane to spare, should be looked at now, and plans the next look.
func (r *Runner) PollDue(now, interval time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lanes >= r.queue.ShardConcurrency || !r.mayPop() || now < r.nextPoll {
		return false
	}
	if now-r.lastWork < quietAfter || !r.subscribed {
		r.pollWait = interval
	} else {
		r.pollWait = min(max(2*r.pollWait, interval), idlePoll)
	}
	r.nextPoll = now + r.pollWait
	return true
}

// WakeAt wakes the runner at a time by Redis's clock.
func (r *Runner) WakeAt(due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(due.Sub(r.process.RedisTime(r.process.Now())))
}

// Refused reports whether Redis will answer the same until a person mends something.
func Refused(err error) bool {
	return err != nil && !queue.Transient(err) && !errors.Is(err, lowkiq.ErrFenced) && !errors.Is(err, context.Canceled)
}
