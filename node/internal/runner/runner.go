// Package runner handles the jobs of one claimed shard: it pops them, calls the handler and tells
// Redis what became of each. A shard costs goroutines only while it has work: a wake-up starts a
// lane, which pops, calls the handler, and ends when nothing is left. Up to ShardConcurrency lanes
// work on different ids at once.
//
// # States
//
// A runner is in one phase, which changes in one function (change in state.go). An empty field: the
// phase stays.
//
//	phase           | woken     | flight    | pop     | pop:      | pop:             | pop: qua-   | stop
//	                |           | ends      | begins  | otherwise | wait             | rantine     |
//	----------------|-----------|-----------|---------|-----------|------------------|-------------|----------
//	resting         | looks     |           | popping |           |                  |             | stopping
//	waitsForFlights | looks     | resting*  | popping |           |                  |             | stopping
//	popping         | repopping | repopping |         | resting   | waitsForFlights  | quarantined | stopping
//	repopping       |           |           |         | resting*  | waitsForFlights* | quarantined | stopping
//	quarantined     | resting, when the handler of the id in quarantine has answered               | stopping
//	stopping        | stopped, when the last lane ends
//	stopped         |
//
// * and looks. To look is to start a lane that pops, or to pop once more. Lanes handle what was
// popped in every phase but the last two.
//
// # Parts
//
//	part                 does                                                      in file
//	Runner               goroutines and requests: lanes, pops, settling, release   runner, fetch, complete
//	Queue                what runners of a queue share, and what changes of it     queue
//	state                what it has, where it stands, what it may do; no I/O      state
//	flights              popped jobs, neither done nor back in Redis               flights
//	acks                 what is done and Redis may not know yet                   acks
//	quarantine           the flight of such an id, and the node's slot             quarantine
//	alarm, polls, pace   when the next job is due, when to poll, how much to pop   timers
//	patience             when to look whether jobs wait behind slow calls          timers
//	company              lanes that pop together after slow calls                  company
//	caller               handler calls: panics, timeouts, calls that run on        watchdog, cancel
//	turn, Slots          what a lane needs for a call, and who is next for it      lane, slots
//	Permits, pacer       what the cluster's limits of the queue leave this node    limit
//	groups               which ids their groups let begin; permits handed over     groups, handover, stopgroups
//	awaited, late        what people hold; what has expired                        held, expire
//	verdict              what a handler's answer means for each job                verdict
//	Spoken               what it says beside that: results, states                 answer
//	notes                what it says while it works                               notes
//	Event                what hooks and listeners are told                         tell
//
// # Why no id runs twice at once (I1)
//
// Redis gives an id to one flight at a time. Of a flight's jobs that wait, one lane takes each. A
// lane asks whether the lease holds right before the call; if it does not the runner stops. The
// shard is released only when it is stopped: no lane runs, none begins.
//
// # Why nothing is lost (I2)
//
// A job leaves Redis by its ack only, and an ack is queued only when the handler has said that the
// job is done:
//
//	pop 1 ──► jobs a b ──► handler: done ──► acks wait (7 ms at most) ──► pop 2 takes them along, or a flush sends them
//
// So a job costs one round trip, that of the next pop. If an answer is lost the same pop is sent
// again, with its number and its acks: Redis answers with the same flight, and knows what it has
// acknowledged. What a lane has not begun waits for another, or goes back to the head of the
// shard's line: at once if the queue is paused, and when all lanes have been in their calls for 50
// ms; all else goes back with the release. An answer that names a flight which the runner does not
// know may be older than an ack; two in a row mean that Redis forgot an ack, or that a pop's answer
// never arrived: the shard is released and claimed anew.
//
// # Behind slow calls
//
// What waits in the runner is in flight in Redis: no action on a list finds it, and no other node
// gets it. So it waits 50 ms at most for a lane that begins nothing. In which phase does it go back?
//
//	resting, waitsForFlights   if all lanes are in calls
//	popping, repopping         no: a lane is free, and nothing waited when it began to pop
//	quarantined                no: only its handler's answer may end the flight of such an id
//	stopping, stopped          with the release
//
// Nor while a lane waits for its turn: the next batch is begun when that has come, and how long that
// takes says nothing about the shard. The next free lane pops what went back. By then the call that
// has ended counts in pace, and lanes that are still in long calls are not popped for.
//
// # Quarantine
//
// A job that was in flight when its worker died may have killed it. Redis hands such an id out
// alone: when no flight is open (until then: wait), and nothing after it before its handler has
// answered. One that was alone at a crash needs the node's one quarantine slot as well, so that the
// next crash is blamed on the right one; runners that wait for it are woken when it is free. What a
// pop says of this is in a table at quarantines in state.go.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// Claim is the right to work on a shard, and all that a runner asks of Redis. A *queue.Claim is
// one.
type Claim interface {
	Pop(context.Context, queue.PopRequest) (queue.Popped, error)
	Ack(context.Context, ...queue.Acks) (int, error)
	Nack(context.Context, ...queue.Nack) (int, error)
	Bury(context.Context, ...queue.Burial) (int, error)
	Note(context.Context, queue.Note) error
	LastNote(context.Context, ...string) (time.Time, error)
	SetJournal(journal.Rule)
	HasHeld() bool
	GroupRule() string
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
	company    company // of pops after slow calls

	Now          func() time.Duration          // a clock that never jumps and counts suspend
	RedisTime    func(time.Duration) time.Time // Redis's clock at a time of Now, estimated
	SawRedisTime func(time.Time)               // takes in Redis's clock
	MayWork      func() bool                   // asked right before each handler call: does the lease hold? (I1)
	Kick         func()                        // has the owner of the runners look at Fenced and OutOfSync

	// OpFailed tells of an operation that Redis did not do; stuck says that it will not until a
	// person mends something.
	OpFailed func(op string, s lowkiq.Shard, err error) (stuck bool)
	OpDone   func(op string, s lowkiq.Shard) // Redis has done an operation
	// Listened reports whether somebody listens to a queue, Ran tells them how runs have ended. nil: nobody ever does.
	Listened func(queueName string) bool
	Ran      func(s lowkiq.Shard, runs []journal.Run)
	// Fenced tells that Redis refused an operation because the claim is gone. If calls is not 0
	// soon, the process must end: another node may have the shard.
	Fenced func(op string, calls func() int64)
	// MayLog says whether a line of this kind may be logged now, and how many were left out since
	// the last one.
	MayLog func(queueName, kind string) (leftOut int, ok bool)
}

// Runner works on one claimed shard; see the package.
type Runner struct {
	Shard lowkiq.Shard
	Fence int64

	claim   Claim
	queue   *Queue
	process *Process
	// work is the context of handler calls; cancelled when the claim or lease is lost,
	// or the time that a shutdown gives them is over.
	work   context.Context
	cancel context.CancelCauseFunc

	caller  caller
	acks    acks
	claimed time.Duration             // Now(), after the claim
	looked  atomic.Pointer[lookedFor] // whether held ids of the shard are released; see ToRelease
	lookAt  atomic.Int64              // to look again once the holds were asked for later than this, Now(); 0: after a change
	asked   atomic.Int64              // when they were, Now(), as ToRelease was told
	awaited awaited                   // ids that are held before their hold has come
	// regrouped is the rule of groups by which ids that these had put off were made due last.
	regrouped atomic.Pointer[string]
	mu        sync.Mutex
	state     state // guarded by mu
}

// New makes a runner for a shard that was claimed with this fence. It does nothing until Wake.
func New(p *Process, q *Queue, s lowkiq.Shard, fence int64, claim Claim) *Runner {
	r := &Runner{process: p, queue: q, Shard: s, Fence: fence, claim: claim, claimed: p.Now()}
	claim.SetJournal(q.rules().Journal)
	if !claim.HasHeld() {
		r.looked.Store(&lookedFor{q.rules().Held})
	}
	r.Regrouped(claim.GroupRule())
	if _, other := r.ToRegroup(); other {
		r.Regrouped("?") // also if the rule changes back before it is done
	}
	r.work, r.cancel = context.WithCancelCause(p.Work)
	r.caller = caller{shard: s, queue: q, process: p, exited: r.exited}
	r.acks.flush = stoppedTimer(r.flushAcks)
	r.state = state{
		queue: q, idle: make(chan struct{}), flights: flights{open: map[int64]int{}, said: map[int64]bool{}},
		quarantine: quarantine{slot: p.Quarantine, wake: r.Wake},
		patience:   patience{timer: stoppedTimer(r.relieve)},
		alarm:      alarm{now: p.Now, timer: stoppedTimer(r.ring)}, polls: polls{lastWork: p.Now()},
	}
	return r
}

func stoppedTimer(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// Wake makes the runner look for work.
func (r *Runner) Wake() { r.look(woken) }

// Changed takes in that the queue has other rules.
func (r *Runner) Changed() {
	r.claim.SetJournal(r.queue.rules().Journal)
	r.mu.Lock()
	r.freeHeld()
	r.mu.Unlock()
	r.Wake() // there may be room for more lanes
}

// Parked notes that something was pushed to an id in flight.
func (r *Runner) Parked() {
	r.mu.Lock()
	look := r.state.park()
	r.mu.Unlock()
	if look {
		r.Wake()
	}
}

// ring is the alarm's: a job is due.
func (r *Runner) ring() {
	r.mu.Lock()
	r.state.alarm.at = 0
	r.mu.Unlock()
	r.look(woken)
}

// look looks for work if an event asks for it: it begins a lane that pops, if there may be one
// more.
func (r *Runner) look(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.change(e) {
		return
	}
	if r.state.spare() {
		r.start(r.lane)
	} else {
		r.state.endLinger(1)
	}
}

// start begins a lane, or what works like one: the shard's release waits for it. mu is held.
func (r *Runner) start(work func(*turn)) {
	t := &turn{queue: r.queue, slots: r.process.Slots}
	t.notes.r, t.notes.turn = r, t
	r.state.turns = append(r.state.turns, t)
	r.process.Lanes.Go(func() { work(t) })
}

// lane handles batches until there are none.
func (r *Runner) lane(t *turn) {
	for batch := r.next(t); batch != nil; batch = r.next(t) {
		r.attend(batch, t)
		t.unpace()
		r.leaveGroups(t)
	}
	t.give()
}

// attend calls the handler for a batch, as soon as there is all that it needs and nothing speaks against it.
func (r *Runner) attend(batch *lowkiq.Batch, t *turn) {
	for {
		ok, answer := r.prepare(t, batch)
		switch {
		case !ok && answer == nil:
			t.give()
			r.unstart(batch, t)
			return
		case !ok:
			t.give()
			r.settle(batch, t, &ended{popped: t.popped}, answer)
			return
		case r.begin(batch, t):
			return
		}
	}
}

// begin calls the handler, unless something speaks against that. What was looked at is looked at again after each question to
// Redis, which may have taken long. false: the lane is to prepare anew.
func (r *Runner) begin(batch *lowkiq.Batch, t *turn) (done bool) {
	for {
		if r.holds(batch) { // since it was taken
			r.unstart(batch, t)
			return true
		}
		left, asked := r.expire(batch, t)
		if left && !asked {
			left, asked = r.admit(batch, t)
		}
		switch {
		case !left:
			t.pass()
			return true
		case !t.slot: // given back while hooks were called
			return false
		case asked:
		case !t.paced:
			r.leaveToOthers(t)
			r.handle(batch, t)
			t.pass()
			return true
		default:
			return r.beginPaced(batch, t)
		}
	}
}

// beginPaced calls the handler if the queue's rate allows it, at once: a batch for which that is not right any more is prepared
// anew, and asks again.
func (r *Runner) beginPaced(batch *lowkiq.Batch, t *turn) (done bool) {
	if !r.pace(batch, t) {
		return false
	}
	if r.holds(batch) || len(r.late(batch)) > 0 {
		t.refused = true
		t.give()
		return false
	}
	r.leaveToOthers(t)
	r.handle(batch, t)
	t.pass()
	return true
}

// prepare waits until a lane has all that a call needs; see turn.take.
func (r *Runner) prepare(t *turn, batch *lowkiq.Batch) (ok bool, answer error) {
	if t.ready() {
		return true, nil
	}
	r.mu.Lock()
	ctx, ok := r.state.waiting(r.work)
	ok = ok && !r.holds(batch) // from here on freeHeld sees that it waits
	t.waits = ok
	r.state.leaveToOthers(t)
	r.mu.Unlock()
	if !ok {
		return false, nil
	}
	if due := r.queue.urgency(batch); r.queue.rules().Limit.Rate.N > 0 {
		ok, answer = t.takePaced(ctx, due)
	} else {
		ok, answer = t.take(ctx, due)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.waits = false
	if len(r.state.flights.waiting) > 0 {
		r.state.patience.start(longWait)
	}
	return ok, answer
}

// next takes a batch of what waits, popping if nothing does; nil: the lane is done.
func (r *Runner) next(t *turn) *lowkiq.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	t.ids = t.ids[:0]
	t.began.Store(0)
	for !s.stops() && r.work.Err() == nil {
		if len(s.flights.waiting) > 0 {
			if s.halted() {
				r.giveBack()
				continue // the queue may have been resumed meanwhile
			}
			if r.holdBack() {
				continue
			}
			batch := s.batch(t)
			batch.Shard, batch.Fence = r.Shard, r.Fence
			return batch
		}
		if !s.wantsPop() {
			break
		}
		again := r.fetch(t)
		again = r.backlogBack() || again
		if !again && len(s.flights.waiting) == 0 {
			break
		}
		more := s.wanted(again)
		for range more {
			r.start(r.lane)
		}
		if batches := s.flights.batches(r.queue.rules().BatchSize); batches > 1+more {
			s.endLinger(batches - 1 - more)
			s.patience.start(longWait)
		}
	}
	s.endLane(t)
	return nil
}

// giveBack puts what waits back to the head of the shard's line, no retry spent. mu is held, and
// let go meanwhile.
func (r *Runner) giveBack() {
	if r.state.phase == quarantined || len(r.state.flights.waiting) == 0 {
		return // a lane came first
	}
	nacks := r.state.flights.returned()
	r.mu.Unlock()
	sent := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) })
	r.mu.Lock()
	if sent {
		for _, n := range nacks {
			r.state.close(n.Flight, 1)
		}
		r.state.change(woken) // a pop that is on its way may not have seen them
	}
}

// returner gives back what waits, as a lane of its own. mu is held.
func (r *Runner) returner() {
	r.start(func(t *turn) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.giveBack()
		r.state.endLane(t)
		if r.state.spare() { // a lane became free meanwhile, or the queue was resumed
			r.start(r.lane)
		} else {
			r.state.endLinger(1)
		}
	})
}

// relieve is patience's: it gives back what waits behind calls that all take long. So people can act
// on it, and another node can have it. The next free lane pops it again.
func (r *Runner) relieve() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	s.patience.set = false
	switch in, ok := s.stuck(); {
	case !ok:
	case in > 0:
		s.patience.start(in)
	default:
		r.returner()
	}
}

// unstart puts a batch back that no handler has seen.
func (r *Runner) unstart(batch *lowkiq.Batch, t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.flights.putBack(batch, t)
}

// Pause gives back what is popped and with no handler, after the queue was paused.
func (r *Runner) Pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.stops() || !r.state.halted() {
		return
	}
	r.state.interrupt()
	if len(r.state.flights.waiting) > 0 {
		r.returner()
	}
}

// Still reports whether nothing of the shard begins until its queue is resumed: what handlers have goes on.
func (r *Runner) Still() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.still()
}

// lose ends the work on a shard whose claim is gone. Another node may own it already, so its
// handlers have as long to return as those of a lost lease.
func (r *Runner) lose(op string, err error) {
	why := lost
	if refusal := (*queue.FencedError)(nil); errors.As(err, &refusal) && refusal.Owner.Fence != 0 {
		why = taken
	}
	r.mu.Lock()
	news := r.state.giveUp(why)
	r.mu.Unlock()
	if !news {
		return
	}
	r.cancel(lowkiq.ErrLeaseLost)
	r.process.Fenced(op, r.caller.running.Load)
	r.process.Kick()
}

// resync gives a shard back to claim it anew: Redis forgot some of what it did (a failover), and
// only a release puts flights that no runner knows back into the queue (I2). mu is held.
func (r *Runner) resync(why string, err error) {
	if r.state.giveUp(outOfSync) {
		r.process.Log.Warn("redis and node disagree about a shard: claiming it anew", "shard", r.Shard, "why", why, "err", err)
		r.process.Kick()
	}
}

// OutOfSync reports whether Redis and this runner disagree: the shard is to be claimed anew.
func (r *Runner) OutOfSync() bool { return r.held() == outOfSync }

// Fenced reports whether Redis refused an operation because the claim is gone; byAnother says that
// another instance has it, else Redis has lost it.
func (r *Runner) Fenced() (fenced, byAnother bool) {
	h := r.held()
	return h >= lost, h == taken
}

func (r *Runner) held() hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.hold
}

// Calls is how many handler calls run.
func (r *Runner) Calls() int64 { return r.caller.running.Load() }

// Stop ends the pops; the returned channel closes when no handler of the shard runs.
func (r *Runner) Stop() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.end()
	return r.state.idle
}

// Release waits for the handlers of a stopped runner, acknowledges what they did, and gives the
// shard back. A lost lease does not forbid it: Redis knows whether another instance has claimed the
// shard meanwhile. It repeats while Redis is out of reach, until ctx ends.
func (r *Runner) Release(ctx context.Context) error {
	<-r.state.idle
	if acks := r.acks.last(); len(acks) > 0 {
		err := r.persist(ctx, "ack", func() error { return second(r.claim.Ack(ctx, acks...)) })
		switch {
		case err == nil:
			r.acknowledged(acks)
		case !errors.Is(err, lowkiq.ErrFenced): // else the release says so
			r.process.OpFailed("ack", r.Shard, err)
		}
	}
	return r.persist(ctx, "release", func() error { return second(r.claim.Release(ctx)) })
}

// Close ends the timers and contexts of a runner that does nothing any more.
func (r *Runner) Close() {
	r.acks.flush.Stop()
	r.cancel(lowkiq.ErrShutdown)
}

// Whereabouts says where the runner has an id.
func (r *Runner) Whereabouts(id string) queue.Whereabouts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.whereabouts(id)
}

// Subscribed notes that the wake-ups of the shard arrive from now on.
func (r *Runner) Subscribed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.polls.subscribed = true
}

// Unsubscribed notes that wake-ups may be missed: the runner is polled until they arrive again.
func (r *Runner) Unsubscribed(interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.polls.unsubscribed(r.process.Now(), interval)
}

// PollDue says whether the runner, which has a lane to spare, should be looked at now, and plans
// the next look.
func (r *Runner) PollDue(now, interval time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.spare() && r.state.polls.due(now, interval)
}

// WakeAt wakes the runner at a time by Redis's clock.
func (r *Runner) WakeAt(due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.alarm.set(due.Sub(r.process.RedisTime(r.process.Now())))
}
