package runner

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

// after says which phase follows an event, and whether the runner should look for work now: begin a lane that pops, or
// pop once more. An event without a line in the table changes nothing.
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

// change is the one place where a runner's phase changes. mu is held.
func (r *Runner) change(e event) (look bool) {
	was := r.phase
	r.phase, look = was.after(e)
	switch {
	case r.phase == was:
	case r.phase == stopping:
		r.interrupt()
		r.timer.Stop()
	case r.phase == stopped:
		close(r.idle)
	}
	return look
}

// stops reports whether no pop begins any more. mu is held.
func (r *Runner) stops() bool { return r.phase >= stopping }

// mayPop reports whether a lane may pop. mu is held.
func (r *Runner) mayPop() bool {
	return (r.phase == resting || r.phase == waitsForFlights) && !r.queue.Paused.Load()
}

// hold is what Redis has said of the claim.
type hold uint8

const (
	held      hold = iota
	outOfSync      // Redis and the runner disagree: the shard is to be released and claimed anew
	lost           // an operation was refused: Redis has no claim
	taken          // an operation was refused: another instance has the claim
)
