// Package runner handles the jobs of a claimed shard. It pops them, calls the handler and stores the outcome of each job in
// Redis. A shard has goroutines only while it has work. A wake-up starts a lane, which pops jobs, calls the handler, and ends
// when no job is left. Up to ShardConcurrency lanes work on different ids at once.
//
// # Words
//
// A job is an id with its waiting payloads. A pop takes due jobs of the shard out of the waiting lists in
// Redis. The jobs of a pop are a flight, and they are in flight until their outcome is stored. An ack
// removes a job that is done. A nack puts a job back, for a retry, for later, or at once. A burial puts it
// into the morgue. A batch is a part of a flight, for one handler call.
//
// The claim is the right of a process to work on the shard. Each claim has a higher fence than the claim before it, and Redis
// refuses operations with an old fence. The lease shows that the process lives. Before it ends, the process must have stopped
// all its handler calls, because other processes may then claim its shards.
//
// # States
//
// A runner is in a phase, which only the function change in state.go changes. In the table an empty
// field means that the phase stays.
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
// * and looks for work. To look for work means to start a lane that pops, or to pop again. Lanes begin
// batches of popped jobs in all phases except the last two. "pop: wait" and "pop: quarantine" are the
// answers of a pop about an id in quarantine; see Quarantine.
//
// # Parts
//
//	part                 purpose                                                   in file
//	Runner               goroutines and requests: lanes, pops, answers, release   runner, pop, complete
//	Queue                state that the runners of a queue share                   queue
//	state                the runner's state and its decisions; no I/O              state
//	flights              popped jobs that are neither done nor back in Redis       flights
//	acks                 done jobs that Redis may not know of yet                  acks
//	quarantine           the flight of an id in quarantine, and the node's slot    quarantine
//	alarm, polls         when the next job is due, and when to poll                wakeups
//	pace, patience       how much to pop, and whether jobs wait behind slow calls  pace
//	caller               handler calls: panics, timeouts, calls that run on        watchdog, cancel
//	lane                 resources of a goroutine for its calls, and its batch     lane
//	Limits               which ids may begin; see package limits                   groups, queue
//	awaitedHolds         held ids; expired payloads                                holds, expire
//	notes                progress that a handler reports while it works            notes
//	Event                calls of hooks and listeners                              hooks
//
// # Why no id runs twice at once (I1)
//
// Redis gives an id to one flight at a time, and each waiting job of a flight goes to one lane. Right
// before the handler call, the lane checks that the lease holds, and the runner stops if it does not.
// The shard is released only after the runner has stopped. Then no lane runs, and no lane begins.
//
// # Why nothing is lost (I2)
//
// A job leaves Redis only by its ack. The runner queues an ack only after the handler has reported the job as done:
//
//	pop 1 ──► jobs a b ──► handler: done ──► acks wait (7 ms at most) ──► pop 2 takes them along, or a flush sends them
//
// So a job needs no round trip of its own for its ack. If the answer to a pop is lost, the
// runner sends the same pop again, with its number and its acks. Redis then answers with the same
// flight, and ignores acks that it has already carried out.
//
// Jobs that no lane has begun wait for another lane. They go back to the head of the shard's line at once if the queue is
// paused, after 50 ms if all lanes are in their calls, and otherwise with the release.
//
// If an answer names a flight that the runner does not know, the answer may be older than an ack. Two such
// answers in a row mean that Redis lost an ack, or that the answer to a pop never arrived. The runner
// then asks for the shard to be released and claimed anew.
//
// # Behind slow calls
//
// A job that waits in the runner is in flight in Redis. No action on a list finds it, and no other node can get it. So it waits
// at most 50 ms behind lanes that are all busy. The phase decides whether it goes back:
//
//	resting, waitsForFlights   if all lanes are in calls
//	popping, repopping         no, because a lane is free, and no job waited when it began to pop
//	quarantined                no, because only the handler's answer may end the flight of such an id
//	stopping, stopped          with the release
//
// It also stays while a lane waits for resources of its call, such as a slot of the node. That lane begins the next batch, and
// the length of its wait says nothing about the shard. The next free lane pops the jobs that went back. By then pace includes
// the call that has ended, and the pop asks for no jobs for lanes that are still in long calls.
//
// # Quarantine
//
// A job that was in flight when its worker died may have killed the worker. Redis hands out such an id alone. It waits until no
// flight is open, and hands out no other id until the handler has answered. An id that was alone at a crash also needs the
// node's only quarantine slot, so that the next crash is charged to the right id. When the slot is free, runners that wait for
// it are woken. The table at applyQuarantine in state.go lists the answers of a pop.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Claim is the right to work on a shard, with all operations of a runner on Redis. *protocol.Claim implements it.
type Claim interface {
	Pop(context.Context, protocol.PopRequest) (protocol.Popped, error)
	Ack(context.Context, ...protocol.Acks) (int, error)
	Nack(context.Context, ...protocol.Nack) (int, error)
	Bury(context.Context, ...protocol.Burial) (int, error)
	Note(context.Context, protocol.Note) error
	LastNote(context.Context, ...string) (time.Time, error)
	SetJournal(journal.Rule)
	HasHeld() bool
	GroupRule() string
	Release(context.Context) (int, error)
}

// Process holds the dependencies of a runner on its process. All runners of a lease share a Process.
type Process struct {
	Work context.Context // of handler calls; ends when the lease is lost or the time of the shutdown is over
	IO   context.Context // of requests to Redis; outlives Work, so that finished jobs can still be acknowledged
	Log  *slog.Logger

	Lanes      *sync.WaitGroup // lanes of all runners
	Quarantine *QuarantineSlot

	Now          func() time.Duration          // a clock that never jumps and counts suspend
	RedisTime    func(time.Duration) time.Time // estimates Redis's clock at a time of Now
	SetRedisTime func(time.Time)               // records a reading of Redis's clock
	MayWork      func() bool                   // reports, right before each handler call, whether the lease holds (I1)
	Kick         func()                        // makes the owner of the runners check Fenced and OutOfSync

	// OpFailed reports an operation that Redis has not done. stuck means that Redis will refuse it until a person
	// mends something.
	OpFailed func(op string, s lowkiq.Shard, err error) (stuck bool)
	OpDone   func(op string, s lowkiq.Shard) // reports an operation that Redis has done
	// FollowUpEncoder encodes the follow-ups of a job; see protocol.Client.FollowUpEncoder.
	FollowUpEncoder func(ctx context.Context, queueName string, hops int, all []lowkiq.FollowUp) (func(context.Context) ([]protocol.FollowUp, error), error)
	// HasListeners reports whether a queue has listeners. PublishRuns sends them the ended runs. Both may be nil.
	HasListeners func(queueName string) bool
	PublishRuns  func(s lowkiq.Shard, runs []journal.Run)
	Fenced       func(op string) // reports that Redis refused an operation because the claim is gone
	// EndCalls gets the cancelled calls of a lost shard. If calls does not become 0 soon, the process must end, because
	// another node may have the shard.
	EndCalls func(calls func() int64)
	// MayLog reports whether a line of this kind may be logged now, and how many were left out since the last line.
	MayLog func(queueName, kind string) (leftOut int, ok bool)
}

// Runner works on a claimed shard; see the package.
type Runner struct {
	Shard lowkiq.Shard
	Fence int64

	claim   Claim
	queue   *Queue
	process *Process
	// work is the context of handler calls. It is cancelled when the claim or lease is lost, or when the time of a
	// shutdown is over.
	work   context.Context
	cancel context.CancelCauseFunc

	caller        caller
	acks          acks
	claimed       time.Duration                 // time after the claim, by Now
	releasedUnder atomic.Pointer[releasedUnder] // holds of the last check of held ids; see ShouldReleaseHeld
	releaseAgain  atomic.Int64                  // check again once the holds were read after this time, by Now; 0 asks for no check
	holdsAsked    atomic.Int64                  // time when the holds were asked for last, by Now
	awaited       awaitedHolds                  // ids that count as held until the process has read the holds
	regrouped     atomic.Pointer[regrouped]     // see ShouldRegroup
	mu            sync.Mutex
	state         state // guarded by mu
}

// New returns a runner for a shard that was claimed with the given fence. It does nothing until Wake.
func New(p *Process, q *Queue, s lowkiq.Shard, fence int64, claim Claim) *Runner {
	r := &Runner{process: p, queue: q, Shard: s, Fence: fence, claim: claim, claimed: p.Now()}
	claim.SetJournal(q.rules().ShardJournal)
	if !claim.HasHeld() {
		r.releasedUnder.Store(&releasedUnder{q.rules().Held})
	}
	by := claim.GroupRule()
	if by != q.rules().Groups.Rule() {
		by = unknownRule // it stays even if the old rule comes back, because ids may still wait by another rule
	}
	r.regrouped.Store(&regrouped{rule: by})
	r.work, r.cancel = context.WithCancelCause(p.Work)
	r.caller = caller{shard: s, queue: q, process: p, afterGoexit: r.afterGoexit}
	r.acks.flush = stoppedTimer(r.flushAcks)
	r.state = state{
		queue: q, idle: make(chan struct{}), flights: flights{open: map[int64]int{}, answered: map[int64]bool{}},
		quarantine: quarantine{slot: p.Quarantine, wake: r.Wake},
		patience:   patience{timer: stoppedTimer(r.returnStuckJobs)},
		alarm:      alarm{now: p.Now, timer: stoppedTimer(r.onAlarm)}, polls: polls{lastWork: p.Now()},
	}
	return r
}

// stoppedTimer returns a timer that does not run. After a Reset it runs f.
func stoppedTimer(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// Wake makes the runner look for work.
func (r *Runner) Wake() { r.lookForWork(woken) }

// ApplyRules applies new rules of the queue, which [Queue.Change] has put in force.
func (r *Runner) ApplyRules() {
	r.claim.SetJournal(r.queue.rules().ShardJournal)
	r.mu.Lock()
	r.interruptHeld()
	r.state.quarantine.forgetRefusals()
	r.mu.Unlock()
	r.Wake() // the new rules may allow more lanes
}

// WakeParked records a push to an id in flight. The payload is due when the flight ends. If the flight has ended already,
// the runner wakes.
func (r *Runner) WakeParked() {
	r.mu.Lock()
	look := r.state.recordParked()
	r.mu.Unlock()
	if look {
		r.Wake()
	}
}

// onAlarm runs when the alarm goes off, because a job is due.
func (r *Runner) onAlarm() {
	r.mu.Lock()
	r.state.alarm.at = 0
	r.mu.Unlock()
	r.lookForWork(woken)
}

// lookForWork starts a lane that pops if the event calls for it and another lane may start.
func (r *Runner) lookForWork(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.change(e) {
		return
	}
	if r.state.mayStartLane() {
		r.startLane(r.runLane)
	}
}

// startLane runs work in a lane of its own. The release of the shard waits for it. The caller holds mu.
func (r *Runner) startLane(work func(*lane)) {
	l := &lane{queue: r.queue}
	l.notes.r, l.notes.lane = r, l
	r.state.lanes = append(r.state.lanes, l)
	r.process.Lanes.Go(func() { work(l) })
}

// runLane handles batches until none is left. After each batch it reports to the limits that the call has ended.
func (r *Runner) runLane(l *lane) {
	for batch := r.nextBatch(l); batch != nil; batch = r.nextBatch(l) {
		r.handleBatch(batch, l)
		l.leaveRate()
		r.leaveGroups(l)
	}
	l.release()
}

// handleBatch calls the handler for a batch as soon as the lane has all resources and no rule forbids the call.
func (r *Runner) handleBatch(batch *lowkiq.Batch, l *lane) {
	for {
		ok, answer := r.prepareCall(l, batch)
		switch {
		case !ok && answer == nil:
			l.release()
			r.putBack(batch, l)
			return
		case !ok:
			l.release()
			r.applyAnswer(batch, l, &callResult{popped: l.popped}, answer)
			return
		case r.beginCall(batch, l):
			return
		}
	}
}

// beginCall calls the handler unless a rule forbids it. It makes all checks again after each request to Redis, because a request
// may take long, and a hold or an expiry may come meanwhile. It returns false if the lane must prepare the call again.
func (r *Runner) beginCall(batch *lowkiq.Batch, l *lane) (done bool) {
	for {
		if r.hasHeldJob(batch) { // the hold came after the batch was taken
			r.putBack(batch, l)
			return true
		}
		left, asked := r.dropExpired(batch, l)
		if left && !asked {
			left, asked = r.admitGroups(batch, l)
		}
		switch {
		case !left:
			l.yield()
			return true
		case !l.slot: // the lane lost its slot while hooks ran
			return false
		case asked:
		case !l.atRate:
			r.callHandler(batch, l)
			l.yield()
			return true
		default:
			return r.beginAtRate(batch, l)
		}
	}
}

// beginAtRate calls the handler if the queue's rate allows it now. If a job was held or has expired meanwhile, the grant of
// the rate is not used. The lane then prepares the call again.
func (r *Runner) beginAtRate(batch *lowkiq.Batch, l *lane) (done bool) {
	if !r.askRate(batch, l) {
		return false
	}
	if r.hasHeldJob(batch) || len(r.expiredJobs(batch)) > 0 {
		l.refused = true
		l.release()
		return false
	}
	r.callHandler(batch, l)
	l.yield()
	return true
}

// prepareCall waits until the lane has all resources for a call; see lane.acquire. If ok is false, no call begins. An
// answer is then the answer to the batch. Without an answer the batch goes back to the waiting jobs.
func (r *Runner) prepareCall(l *lane, batch *lowkiq.Batch) (ok bool, answer error) {
	if l.hasAll() {
		return true, nil
	}
	r.mu.Lock()
	ctx, ok := r.state.waitContext(r.work)
	ok = ok && !r.hasHeldJob(batch) && !r.hasHeldWaiting() // later holds interrupt the wait; see interruptHeld
	l.waits = ok
	r.mu.Unlock()
	if !ok {
		return false, nil
	}
	stop := r.keepGroupsWaiting(l)
	if due := r.queue.dueTime(batch); r.queue.rules().Limit.Rate.N > 0 {
		ok, answer = l.acquireAtRate(ctx, due)
	} else {
		ok, answer = l.acquire(ctx, due)
	}
	stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	l.waits = false
	if len(r.state.flights.waiting) > 0 {
		r.state.patience.start(longWait)
	}
	return ok, answer
}

// nextBatch returns the next batch of waiting jobs. It pops if no job waits, and returns nil if the lane is done.
func (r *Runner) nextBatch(l *lane) *lowkiq.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	l.ids, l.refused = l.ids[:0], false
	l.began.Store(0)
	for !s.isStopping() && r.work.Err() == nil {
		if len(s.flights.waiting) > 0 {
			if s.isHalted() {
				r.returnWaiting()
				continue // the queue may have been resumed meanwhile
			}
			if r.returnHeld() {
				continue
			}
			batch := s.takeBatch(l)
			batch.Shard, batch.Fence = r.Shard, r.Fence
			return batch
		}
		if !s.wantsPop() {
			break
		}
		again := r.popForLane(l)
		again = r.returnBacklog() || again
		if !again && len(s.flights.waiting) == 0 {
			break
		}
		more := s.lanesNeeded(again)
		for range more {
			r.startLane(r.runLane)
		}
		if s.flights.countBatches(r.queue.rules().BatchSize) > 1+more {
			s.patience.start(longWait)
		}
	}
	s.endLane(l)
	return nil
}

// returnWaiting returns waiting jobs to the head of the shard's line, without a retry. The caller holds mu, which is
// released during the request.
func (r *Runner) returnWaiting() {
	if r.state.phase == quarantined || len(r.state.flights.waiting) == 0 {
		return // a lane has taken them meanwhile
	}
	nacks := r.state.flights.removeAll()
	r.mu.Unlock()
	sent := r.sendNacks(nacks)
	r.mu.Lock()
	if sent {
		for _, n := range nacks {
			r.state.closeJobs(n.Flight, 1)
		}
		r.state.change(woken) // an open pop may have missed the returned jobs
	}
}

// startReturnLane starts a lane that returns waiting jobs to Redis. The caller holds mu.
func (r *Runner) startReturnLane() {
	r.startLane(func(l *lane) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.returnWaiting()
		r.state.endLane(l)
		if r.state.mayStartLane() { // a lane became free meanwhile, or the queue was resumed
			r.startLane(r.runLane)
		}
	})
}

// returnStuckJobs runs when the timer of patience ends. Jobs that wait behind long handler calls go back to Redis. There
// people can act on them, and another node can get them. The next free lane pops them again.
func (r *Runner) returnStuckJobs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	s.patience.set = false
	switch in, ok := s.stuckIn(); {
	case !ok:
	case in > 0:
		s.patience.start(in)
	default:
		r.startReturnLane()
	}
}

// putBack returns a batch that no handler has seen to the waiting jobs.
func (r *Runner) putBack(batch *lowkiq.Batch, l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.flights.putBack(batch, l)
}

// Pause sends popped jobs back to Redis after the queue was paused, except jobs that a handler has.
func (r *Runner) Pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.isStopping() || !r.state.isHalted() {
		return
	}
	r.state.interruptWaits()
	if len(r.state.flights.waiting) > 0 {
		r.startReturnLane()
	}
}

// IsStill reports whether no handler call begins until the queue is resumed. Running calls continue.
func (r *Runner) IsStill() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.isStill()
}

// loseClaim ends the work on a shard after its claim is gone. Another node may own the shard already, so the
// handlers must return as quickly as after the loss of a lease.
func (r *Runner) loseClaim(op string, err error) {
	why := claimLost
	if refusal := (*protocol.FencedError)(nil); errors.As(err, &refusal) && refusal.Owner.Fence != 0 {
		why = claimTaken
	}
	if r.endWork(why) {
		r.process.Fenced(op)
	}
}

// Revoke ends the work on a shard that its queue does not have any more. Other nodes may have the ids in other shards, so the
// handlers must return as if the claim was lost.
func (r *Runner) Revoke() { r.endWork(claimLost) }

// endWork cancels the handler calls and lets no call begin. It returns false if an earlier call has done so.
func (r *Runner) endWork(why claimState) (news bool) {
	r.mu.Lock()
	news = r.state.giveUp(why)
	r.mu.Unlock()
	if news {
		r.cancel(lowkiq.ErrLeaseLost)
		r.process.EndCalls(r.caller.running.Load)
		r.process.Kick()
	}
	return news
}

// requestReclaim makes the owner release the shard and claim it anew. Redis has forgotten operations, as after a
// failover. Only a release puts flights that no runner knows back into the lists (I2). The caller holds mu.
func (r *Runner) requestReclaim(why string, err error) {
	if r.state.giveUp(claimOutOfSync) {
		r.process.Log.Warn("redis and node disagree about a shard: claiming it anew", "shard", r.Shard, "why", why, "err", err)
		r.process.Kick()
	}
}

// OutOfSync reports whether Redis and this runner disagree, so that the shard must be claimed anew.
func (r *Runner) OutOfSync() bool { return r.claimState() == claimOutOfSync }

// Fenced reports whether Redis refused an operation because the claim is gone. byAnother is true if another
// instance has the claim, and false if Redis has lost it.
func (r *Runner) Fenced() (fenced, byAnother bool) {
	h := r.claimState()
	return h >= claimLost, h == claimTaken
}

func (r *Runner) claimState() claimState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.claim
}

// Calls returns how many handler calls run.
func (r *Runner) Calls() int64 { return r.caller.running.Load() }

// Stop ends the pops. The returned channel closes when no handler of the shard runs.
func (r *Runner) Stop() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.stopRunner()
	return r.state.idle
}

// Release waits for the handlers of a stopped runner, acknowledges their done jobs, and gives the shard back. This
// is safe after the loss of the lease, because Redis knows whether another instance has claimed the shard
// meanwhile. Release repeats its requests while Redis is out of reach, until ctx ends.
func (r *Runner) Release(ctx context.Context) error {
	<-r.state.idle
	if acks := r.acks.takeLast(); len(acks) > 0 {
		err := r.retryTransient(ctx, "ack", func() error { return errorOf(r.claim.Ack(ctx, acks...)) })
		switch {
		case err == nil:
			r.countAcks(acks)
		case !errors.Is(err, lowkiq.ErrFenced): // the release reports a lost claim
			r.process.OpFailed("ack", r.Shard, err)
		}
	}
	return r.retryTransient(ctx, "release", func() error { return errorOf(r.claim.Release(ctx)) })
}

// Close ends the timers and contexts of a stopped runner.
func (r *Runner) Close() {
	r.acks.flush.Stop()
	r.cancel(lowkiq.ErrShutdown)
}

// Whereabouts returns where the runner has an id.
func (r *Runner) Whereabouts(id string) protocol.Whereabouts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.locateID(id)
}

// MarkSubscribed records that wake-ups of the shard arrive from now on.
func (r *Runner) MarkSubscribed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.polls.subscribed = true
}

// MarkUnsubscribed records that wake-ups may be lost. The runner is polled until they arrive again.
func (r *Runner) MarkUnsubscribed(interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.polls.markUnsubscribed(r.process.Now(), interval)
}

// PollDue reports whether the runner has a free lane and is due for a poll, and schedules the next poll.
func (r *Runner) PollDue(now, interval time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.mayStartLane() && r.state.polls.isDue(now, interval)
}

// WakeAt wakes the runner at the given time of Redis's clock.
func (r *Runner) WakeAt(due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.alarm.set(due.Sub(r.process.RedisTime(r.process.Now())))
}
