package runner

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// phase is a runner's phase; the package comment has the table.
type phase uint8

const (
	resting         phase = iota // no pop is open, and no due job is known
	popping                      // a lane asks Redis for the next flight
	repopping                    // the same, and a job became due that the answer may not contain
	waitsForFlights              // an id in quarantine is next, once the open flights have ended
	quarantined                  // a handler has an id in quarantine, and no other job of the shard may begin
	stopping                     // no further pop begins, and lanes end after their batch
	stopped                      // no lane runs or begins, and the shard can be released
)

// event is an event that may change the phase.
type event uint8

const (
	woken            event = iota // a push, a timer or a poll; a job may be due
	popBegins                     // a lane pops
	popEnds                       // the pop brought ordinary jobs, no jobs, or no answer
	toldToWait                    // the pop's answer; an id in quarantine waits for the open flights
	quarantineBegins              // the pop's answer; its only job is an id in quarantine
	quarantineEnds                // its handler has answered, and the outcome is on its way to Redis
	flightEnds                    // Redis has an outcome that no pop carried
	stop                          // the shard is given back, or lost
	lanesEnd                      // the last lane has ended
)

// after returns the phase after an event, and whether the runner should look for work now, which means to
// start a lane that pops or to pop again. An event without a line in the table changes nothing.
func (p phase) after(e event) (next phase, look bool) {
	switch {
	case p == stopped:
		return stopped, false
	case p == stopping:
		if e == lanesEnd {
			return stopped, false
		}
		return stopping, false
	case e == stop:
		return stopping, false
	}
	switch p {
	case resting, waitsForFlights:
		switch e {
		case woken:
			return p, true
		case flightEnds:
			return resting, p == waitsForFlights
		case popBegins:
			return popping, false
		}
	case popping, repopping:
		switch e {
		case woken, flightEnds:
			return repopping, false
		case popEnds:
			return resting, p == repopping
		case toldToWait:
			return waitsForFlights, p == repopping
		case quarantineBegins:
			return quarantined, false
		}
	case quarantined:
		if e == quarantineEnds {
			return resting, false // the lane that had it pops next
		}
	}
	return p, false
}

// claimState is the state of the claim, as Redis has reported it.
type claimState uint8

const (
	claimHeld      claimState = iota
	claimOutOfSync            // Redis and the runner disagree, so the shard must be released and claimed anew
	claimLost                 // an operation was refused, because Redis has no claim
	claimTaken                // an operation was refused, because another instance has the claim
)

// state is the state of a runner and makes its decisions. It does no I/O and never waits. The runner
// reports events to it and asks what to do next. Runner.mu guards it.
type state struct {
	queue *Queue
	phase phase
	claim claimState
	idle  chan struct{} // closed when stopped
	lanes []*lane       // running lanes
	more  bool          // the last pop left ids in the ready list
	// due means that Redis may have jobs that no pop has asked for. Without it an idle lane ends
	// without a pop, because later jobs wake the runner.
	due bool
	// parked means that payloads wait for the end of their id's flight, because they were pushed meanwhile,
	// or because the flight left them out. They are due when the flight ends. So the next pop follows at once
	// and carries the ack, which is not left to a flush.
	parked bool

	refusals   int // successive ids that their groups kept from beginning; see minBacklogRefusals
	flights    flights
	quarantine quarantine
	pace       pace
	patience   patience
	alarm      alarm
	polls      polls

	wait    context.Context    // of lanes that wait for resources; nil if no lane has waited yet
	endWait context.CancelFunc // ends wait
}

// change applies an event. No other function changes the phase.
func (s *state) change(e event) (look bool) {
	was := s.phase
	s.phase, look = was.after(e)
	s.due = s.due || look || e == quarantineEnds
	if e == popBegins {
		s.due = false
	}
	switch {
	case s.phase == was:
	case s.phase == stopping:
		s.interruptWaits()
		s.alarm.stop()
		s.patience.timer.Stop()
	case s.phase == stopped:
		close(s.idle)
	}
	return look
}

// recordParked records a push to an id in flight. It returns whether to look for work at once, because the flight
// has ended and its ack is on its way.
func (s *state) recordParked() (look bool) {
	s.parked = len(s.flights.open) > 0 || s.phase == popping || s.phase == repopping
	return !s.parked
}

// isStopping reports whether no further pop begins.
func (s *state) isStopping() bool { return s.phase >= stopping }

// mayPop reports whether a lane may pop.
func (s *state) mayPop() bool {
	return (s.phase == resting || s.phase == waitsForFlights) && !s.queue.Paused.Load()
}

// wantsPop reports whether an idle lane should pop.
func (s *state) wantsPop() bool { return s.due && s.mayPop() }

// mayStartLane reports whether another lane may start and pop.
func (s *state) mayStartLane() bool {
	return len(s.lanes) < s.queue.rules().ShardConcurrency && s.mayPop()
}

// isHalted reports whether the queue is paused and popped jobs can be given back. An id in quarantine
// stays, because only an answer of its handler may end its flight.
func (s *state) isHalted() bool { return s.queue.Paused.Load() && s.phase != quarantined }

// isStill reports whether the queue is paused and no handler call can begin. Then no pop is open, no popped
// job waits, and no lane is about to call a handler.
func (s *state) isStill() bool {
	return s.queue.Paused.Load() && s.phase != popping && s.phase != repopping && len(s.flights.waiting) == 0 &&
		!slices.ContainsFunc(s.lanes, func(l *lane) bool { return len(l.ids) > 0 && l.began.Load() == 0 })
}

// waitContext returns the context of lanes that wait for resources, derived from work. It ends when the
// queue is paused or the runner stops. ok is false if that has happened already.
func (s *state) waitContext(work context.Context) (ctx context.Context, ok bool) {
	if s.isStopping() || s.isHalted() {
		return nil, false
	}
	if s.wait == nil {
		s.wait, s.endWait = context.WithCancel(work)
	}
	return s.wait, true
}

// interruptWaits ends all waits of lanes for resources.
func (s *state) interruptWaits() {
	if s.wait != nil {
		s.endWait()
		s.wait, s.endWait = nil, nil
	}
}

// stopRunner stops the runner.
func (s *state) stopRunner() {
	s.change(stop)
	if len(s.lanes) == 0 {
		s.change(lanesEnd)
	}
}

// endLane removes a lane that ends.
func (s *state) endLane(l *lane) {
	i := slices.Index(s.lanes, l)
	s.lanes = slices.Delete(s.lanes, i, i+1)
	if len(s.lanes) == 0 {
		s.quarantine.releaseSlot() // a paused or stopping runner must not keep others waiting either
		s.change(lanesEnd)
	}
}

// giveUp records that the claim is unusable. It returns false if this, or worse, was known.
func (s *state) giveUp(why claimState) (news bool) {
	if s.claim >= claimLost || s.claim == why {
		return false
	}
	s.claim = why
	s.stopRunner()
	return true
}

// takeIn applies the answer to a pop, which ends the pop. It returns whether to pop again at once, and
// whether Redis and this runner disagree about the open flights. The caller holds the runner's mutex from
// here until the lane has decided how to go on. Otherwise a wake-up could be lost between the two.
func (s *state) takeIn(p protocol.Popped, acks *acks) (again, mismatch bool) {
	s.more = p.Ready > 0
	s.parked = s.parked || p.Parts
	s.flights.add(p)
	if len(p.Jobs) > 0 {
		s.polls.lastWork = s.alarm.now()
	} else {
		again = len(p.Later) > 0
	}
	if !p.Next.IsZero() {
		s.alarm.set(p.Next.Sub(p.Now))
	}
	again = s.applyQuarantine(p, acks) || again
	strange, mismatch := s.flights.compareOpen(p.Open, acks)
	again = !mismatch && (again || strange)
	s.due = s.due || s.more || again || p.Quarantine != protocol.NotQuarantined
	return again, mismatch
}

// applyQuarantine applies a pop's answer about ids in quarantine, which ends the pop. It returns whether to pop again at once.
//
//	the pop says   meaning                                the runner
//	nothing        no id is in quarantine                 gives the node's slot to others
//	taken          the only job is an id in quarantine    pops nothing before its handler has answered
//	wait           an id in quarantine is next when no    keeps the slot; pops when a flight has ended, or to
//	               flight is open                         send acks
//	slot           an id in quarantine needs the slot;    takes the slot and pops again, or is woken when the
//	               other jobs may have come instead       slot is free
func (s *state) applyQuarantine(p protocol.Popped, acks *acks) (again bool) {
	switch {
	case p.Quarantine == protocol.QuarantineTaken && len(p.Jobs) > 0:
		s.quarantine.flight = p.Flight
		return s.change(quarantineBegins)
	case p.Quarantine == protocol.QuarantineWait:
		return s.change(toldToWait) || acks.anyWaiting()
	}
	again = s.change(popEnds)
	s.quarantine.releaseSlot()
	if p.Quarantine == protocol.QuarantineSlot {
		again = s.quarantine.acquireSlot() && len(p.Jobs) == 0 || again
	}
	return again
}

// closeJobs records that Redis needs only the acks for n jobs of a flight. It returns whether these were the
// rest of the flight.
func (s *state) closeJobs(number int64, n int) (ended bool) {
	ended = s.flights.closeJobs(number, n)
	if s.parked {
		s.change(woken) // an open pop does not carry the ack of this flight
	}
	s.parked = s.parked && len(s.flights.open) > 0
	if ended && number == s.quarantine.flight {
		s.change(quarantineEnds)
	}
	return ended
}

// lanesNeeded returns how many more lanes the popped jobs need, because the other lanes are busy, perhaps for
// long. If again is true, one of the new lanes should pop.
func (s *state) lanesNeeded(again bool) int {
	if s.phase == quarantined || s.isStopping() {
		return 0
	}
	n := s.flights.countBatches(s.queue.rules().BatchSize)
	if s.more || again {
		n++
	}
	// The calling lane continues itself.
	return min(s.queue.rules().ShardConcurrency-len(s.lanes), n-1)
}

// hasBacklog reports whether the ids popped now probably belong to groups that let no id begin.
func (s *state) hasBacklog(rules *Rules) bool {
	return s.refusals >= minBacklogRefusals && rules.Groups.By != "" && rules.Groups.Rate.N == 0
}

// idleLanes returns how many lanes can take jobs of the next pop. Lanes in a long call do not count, unless the
// call is about to end.
func (s *state) idleLanes() int {
	n := s.queue.rules().ShardConcurrency
	if len(s.lanes) == 1 {
		return n // the lane that pops
	}
	now := s.alarm.now()
	for _, l := range s.lanes {
		began := time.Duration(l.began.Load())
		if runs := now - began; began != 0 && runs >= longWait && !s.pace.endsSoon(runs) {
			n--
		}
	}
	return max(1, n) // this lane pops; there may be more lanes than the current rules allow
}

// stuckIn returns how soon waiting jobs should go back if no lane takes a batch before. By then all lanes
// have been in their calls for longWait. 0 means now. ok is false if no job waits, or if a lane waits for
// resources. That lane starts the check again when it has them.
func (s *state) stuckIn() (in time.Duration, ok bool) {
	if len(s.flights.waiting) == 0 || s.isStopping() {
		return 0, false
	}
	if s.phase != resting && s.phase != waitsForFlights {
		return longWait, true // a lane pops and is back soon, or the waiting id is in quarantine
	}
	now := s.alarm.now()
	for _, l := range s.lanes {
		if l.waits {
			return 0, false
		}
		began := time.Duration(l.began.Load())
		if began == 0 {
			began = now // the lane is about to begin a call, or gives jobs back
		}
		in = max(in, began+longWait-now)
	}
	return in, true
}

// locateID returns where the runner has an id.
func (s *state) locateID(id string) protocol.Whereabouts {
	if s.flights.isWaiting(id) {
		return protocol.Whereabouts{Stage: protocol.Behind}
	}
	var where protocol.Whereabouts
	for _, l := range s.lanes {
		if !slices.Contains(l.ids, id) {
			continue
		}
		began := l.began.Load()
		if began == 0 {
			return protocol.Whereabouts{Stage: *l.stage.Load()}
		}
		where = protocol.Whereabouts{Stage: protocol.Handled, For: s.alarm.now() - time.Duration(began)}
		if !l.canceller.hasEnded() {
			return where
		}
		// The lane calls hooks, and another lane may have the id again.
	}
	return where
}

// takeBatch takes the next batch for a lane. At least one job must wait.
func (s *state) takeBatch(l *lane) *lowkiq.Batch {
	part := s.flights.takeBatch(s.queue.rules().BatchSize)
	l.popped, l.place = part.popped, part.place
	l.stage.Store(&stageBehind)
	for i := range part.jobs {
		l.ids = append(l.ids, part.jobs[i].ID)
	}
	return lowkiq.NewBatch(lowkiq.Shard{}, 0, part.number, part.jobs)
}
