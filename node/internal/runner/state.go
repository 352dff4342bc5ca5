package runner

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// phase is where a runner stands; the table is in the package's comment.
type phase uint8

const (
	resting         phase = iota // no pop is under way, and nothing is known to be due
	popping                      // a lane asks Redis for the next flight
	repopping                    // the same, and something became due meanwhile that the answer may not know of
	waitsForFlights              // an id in quarantine is next, once the open flights have ended
	quarantined                  // an id in quarantine is with its handler: nothing else of the shard may begin
	stopping                     // no pop begins any more, lanes end after the batch that they have
	stopped                      // no lane runs and none begins: the shard can be released
)

// event is what changes a phase.
type event uint8

const (
	woken            event = iota // a push, a timer or a poll: something may be due
	popBegins                     // by one lane
	popEnds                       // with other jobs, with none, or without an answer
	toldToWait                    // the pop's answer: an id in quarantine waits for the open flights
	quarantineBegins              // the pop's answer: the one job is an id in quarantine
	quarantineEnds                // its handler has answered, and that is on its way to Redis
	flightEnds                    // Redis has an answer of a handler that no pop took along
	stop                          // the shard is given up, or lost
	lanesEnd                      // the last lane has ended
)

// after says which phase follows an event, and whether the runner should look for work now: begin a
// lane that pops, or pop once more. An event without a line in the table changes nothing.
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

// hold is what Redis has said of the claim.
type hold uint8

const (
	held      hold = iota
	outOfSync      // Redis and the runner disagree: the shard is to be released and claimed anew
	lost           // an operation was refused: Redis has no claim
	taken          // an operation was refused: another instance has the claim
)

// state is what a runner has and where it stands. It sends nothing and waits for nothing: the
// runner tells it what has happened, and asks what may be done next. Runner.mu guards it.
type state struct {
	queue *Queue
	phase phase
	hold  hold
	idle  chan struct{} // closed when stopped
	turns []*turn       // of the lanes that run
	more  bool          // the last pop left ids in the ready list
	// due: Redis may have something that no pop has asked for. Without it a lane that has nothing
	// to do ends, and does not look in vain: what comes later wakes the runner.
	due bool
	// parked: something was pushed to an id in flight, or is what its flight did not take. It is
	// due when the flight ends, which Redis learns by a pop at once, not by a later flush of acks.
	parked bool

	refused    int // ids that their groups let not begin, one after the other; see backlogFrom
	flights    flights
	quarantine quarantine
	pace       pace
	patience   patience
	alarm      alarm
	polls      polls

	wait    context.Context    // of lanes that wait for their turn; nil: none has waited yet
	endWait context.CancelFunc // ends wait
}

// change is the one place where a runner's phase changes.
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
		s.interrupt()
		s.alarm.stop()
		s.patience.timer.Stop()
	case s.phase == stopped:
		close(s.idle)
	}
	return look
}

// park notes that something was pushed to an id in flight. It says whether to look for it at once:
// the flight has ended, and its ack is on its way.
func (s *state) park() (look bool) {
	s.parked = len(s.flights.open) > 0 || s.phase == popping || s.phase == repopping
	return !s.parked
}

// stops reports whether no pop begins any more.
func (s *state) stops() bool { return s.phase >= stopping }

// mayPop reports whether a lane may pop.
func (s *state) mayPop() bool {
	return (s.phase == resting || s.phase == waitsForFlights) && !s.queue.Paused.Load()
}

// wantsPop reports whether a lane that has nothing to do should pop.
func (s *state) wantsPop() bool { return s.due && s.mayPop() }

// spare reports whether one more lane may begin, and pop.
func (s *state) spare() bool { return len(s.turns) < s.queue.rules().ShardConcurrency && s.mayPop() }

// halted reports whether the queue is paused and what was popped can be given back. An id in
// quarantine stays: only an answer of its handler may end that.
func (s *state) halted() bool { return s.queue.Paused.Load() && s.phase != quarantined }

// still reports whether nothing begins any more, as the queue is paused: no pop is on its way, nothing
// that was popped waits, and no lane is about to call a handler.
func (s *state) still() bool {
	return s.queue.Paused.Load() && s.phase != popping && s.phase != repopping && len(s.flights.waiting) == 0 &&
		!slices.ContainsFunc(s.turns, func(t *turn) bool { return len(t.ids) > 0 && t.began.Load() == 0 })
}

// waiting returns the context in which lanes wait for their turn, made from work. It ends when the
// queue is paused or the runner stops; ok is false if that is so already.
func (s *state) waiting(work context.Context) (ctx context.Context, ok bool) {
	if s.stops() || s.halted() {
		return nil, false
	}
	if s.wait == nil {
		s.wait, s.endWait = context.WithCancel(work)
	}
	return s.wait, true
}

// interrupt ends the waiting for turns.
func (s *state) interrupt() {
	s.endLinger(len(s.turns))
	if s.wait != nil {
		s.endWait()
		s.wait, s.endWait = nil, nil
	}
}

// end has the runner stop.
func (s *state) end() {
	s.change(stop)
	if len(s.turns) == 0 {
		s.change(lanesEnd)
	}
}

// endLane takes out the turn of a lane that ends.
func (s *state) endLane(t *turn) {
	i := slices.Index(s.turns, t)
	s.turns = slices.Delete(s.turns, i, i+1)
	if len(s.turns) == 0 {
		s.quarantine.give() // also a paused or stopping runner must not keep others waiting
		s.change(lanesEnd)
	}
}

// giveUp notes that the claim is of no more use. false: that, or worse, was known.
func (s *state) giveUp(why hold) (news bool) {
	if s.hold >= lost || s.hold == why {
		return false
	}
	s.hold = why
	s.end()
	return true
}

// takeIn takes in the answer to a pop, which ends it. It says whether to pop again at once, and
// whether Redis and this runner disagree about the open flights. The runner's mutex is held from
// here until the lane has drawn its conclusions, or a wake-up could fall between the two.
func (s *state) takeIn(p queue.Popped, acks *acks) (again, mismatch bool) {
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
	again = s.quarantines(p, acks) || again
	strange, mismatch := s.flights.compare(p.Open, acks)
	again = !mismatch && (again || strange)
	s.due = s.due || s.more || again || p.Quarantine != queue.NotQuarantined
	return again, mismatch
}

// quarantines takes in what a pop says of ids in quarantine, which ends the pop. It says whether to
// pop again at once.
//
//	the pop says   of an id in quarantine                 the runner
//	nothing        there is none                          gives the node's slot to others
//	taken          it is the one job of the flight        pops nothing before its handler has answered
//	wait           it is next when no flight is open      keeps the slot; pops when one has ended, or to send acks
//	slot           it needs the slot, and perhaps other   takes the slot and pops again, or is woken when the slot
//	               jobs came instead                      is free
func (s *state) quarantines(p queue.Popped, acks *acks) (again bool) {
	switch {
	case p.Quarantine == queue.QuarantineTaken && len(p.Jobs) > 0:
		s.quarantine.flight = p.Flight
		return s.change(quarantineBegins)
	case p.Quarantine == queue.QuarantineWait:
		s.endLinger(len(s.turns)) // it waits for their flights, too
		return s.change(toldToWait) || acks.any()
	}
	again = s.change(popEnds)
	s.quarantine.give()
	if p.Quarantine == queue.QuarantineSlot {
		again = s.quarantine.take() && len(p.Jobs) == 0 || again
	}
	return again
}

// close notes that Redis needs nothing more for n jobs of a flight but their acks. It says whether
// that was the rest of the flight.
func (s *state) close(number int64, n int) (ended bool) {
	ended = s.flights.close(number, n)
	if s.parked {
		s.change(woken) // a pop that is on its way takes no ack of this flight along
	}
	s.parked = s.parked && len(s.flights.open) > 0
	if ended && number == s.quarantine.flight {
		s.change(quarantineEnds)
	}
	return ended
}

// wanted is how many more lanes there should be for what was popped: the others are busy, perhaps
// for long. again: one of them should pop.
func (s *state) wanted(again bool) int {
	if s.phase == quarantined || s.stops() {
		return 0
	}
	n := s.flights.batches(s.queue.rules().BatchSize)
	if s.more || again {
		n++
	}
	// The lane that asks goes on itself.
	return min(s.queue.rules().ShardConcurrency-len(s.turns), n-1)
}

// refuse notes that groups let some ids not begin that were not told before when to ask, and whether they let others begin.
func (s *state) refuse(news int, let bool) {
	if s.refused += news; let {
		s.refused = 0
	}
}

// backlog reports whether what is popped now is likely to be of groups that let none begin.
func (s *state) backlog(rules *Rules) bool {
	return s.refused >= backlogFrom && rules.Groups.By != "" && rules.Groups.Rate.N == 0
}

// able is how many lanes can take part in what is popped now: not those in a call for long, unless
// it is about to end.
func (s *state) able() int {
	n := s.queue.rules().ShardConcurrency
	if len(s.turns) == 1 {
		return n // the one that pops
	}
	now := s.alarm.now()
	for _, t := range s.turns {
		began := time.Duration(t.began.Load())
		if runs := now - began; began != 0 && runs >= longWait && !s.pace.endsSoon(runs) {
			n--
		}
	}
	return max(1, n) // this one pops; there may be more lanes than the rules now say
}

// stuck says when what waits is to go back, if no lane has taken a batch by then: once all lanes
// have been in their calls for longWait. With 0 it is to go back now. ok is false if nothing waits,
// or a lane waits for its turn: when it has that it looks again.
func (s *state) stuck() (in time.Duration, ok bool) {
	if len(s.flights.waiting) == 0 || s.stops() {
		return 0, false
	}
	if s.phase != resting && s.phase != waitsForFlights {
		return longWait, true // a lane pops and is back soon, or what waits is in quarantine
	}
	now := s.alarm.now()
	for _, t := range s.turns {
		if t.waits {
			return 0, false
		}
		began := time.Duration(t.began.Load())
		if began == 0 {
			began = now // it is about to begin a call, or gives jobs back
		}
		in = max(in, began+longWait-now)
	}
	return in, true
}

// whereabouts says where the runner has an id.
func (s *state) whereabouts(id string) queue.Whereabouts {
	if s.flights.waits(id) {
		return queue.Whereabouts{Stage: queue.Behind}
	}
	var where queue.Whereabouts
	for _, t := range s.turns {
		if !slices.Contains(t.ids, id) {
			continue
		}
		began := t.began.Load()
		if began == 0 {
			return queue.Whereabouts{Stage: *t.stage.Load()}
		}
		where = queue.Whereabouts{Stage: queue.Handled, For: s.alarm.now() - time.Duration(began)}
		if !t.ends.ended() {
			return where
		}
		// It calls hooks, and another lane may have the id again.
	}
	return where
}

// batch takes the next batch for a lane's turn; some jobs wait.
func (s *state) batch(t *turn) *lowkiq.Batch {
	part := s.flights.take(s.queue.rules().BatchSize)
	t.popped, t.place = part.popped, part.place
	t.stage.Store(&stageBehind)
	for i := range part.jobs {
		t.ids = append(t.ids, part.jobs[i].ID)
	}
	return lowkiq.NewBatch(lowkiq.Shard{}, 0, part.number, part.jobs)
}
