package reshard

import (
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// step is what a driver does next about a queue.
type step string

// The steps. Each may be repeated and may come late.
const (
	stepNone    step = "none"    // nothing is left to do
	stepThaw    step = "thaw"    // thaw the shards that another attempt has frozen
	stepPrepare step = "prepare" // close the shards of the new layout
	stepWait    step = "wait"    // look again soon
	stepReturn  step = "return"  // put the flights of dead owners back, because no live node handles the queue
	stepFlip    step = "flip"    // freeze the old shards, set the floors, and make the new layout the layout of the queue
	stepRestart step = "restart" // end this attempt, and begin the next with the rest of the patience
	stepGiveUp  step = "give up" // end this attempt, because its patience is over
	stepCopy    step = "copy"    // copy the jobs of the old shards
	stepEnd     step = "end"     // drop the old shards, and end the reshard
)

// facts are what the shards and the leases say about a reshard. nextStep decides from them without I/O.
type facts struct {
	now time.Time // by Redis's clock

	// Of the shards that are left, or were left by the flip.
	old    int     // their number
	frozen int     // shards with the mark of this attempt
	at     []int64 // when each was frozen, in us of Redis's clock; 0 if it is not frozen
	others []int   // the numbers of other attempts whose marks are on shards
	busy   int     // shards that cannot be frozen yet, most of them because ids are in flight
	calls  []Call  // jobs in flight, the oldest first, at most maxCalls
	why    string  // why a shard is busy that has no id in flight
	over   int     // frozen shards whose jobs all are in the new shards

	ownerless []ownerless // busy shards whose owner is dead or that have none

	// Of the shards of the new layout.
	fresh  int // their number
	closed int // shards that are closed: they take pushes after the flip, and refuses claims
	open   int // shards that were closed, and work

	handled  bool       // a live instance handles the queue
	mayBegin bool       // a live instance may begin a job of the queue
	refused  *busyError // a shard has refused to freeze for a second
}

// ownerless is a shard whose flights nobody ends.
type ownerless struct {
	shard *protocol.Shard
	owner protocol.Owner // the zero Instance means that it has none
}

// nextStep decides what a driver does next. It needs the entry and the facts alone, so that any process may go on at any time.
//
//	the entry says   and                                                          step
//	copying          a new shard is not open, or an old shard is not over         copy
//	                 otherwise                                                    end
//	reshard          a shard has the mark of another attempt                      thaw
//	                 all old shards are frozen, no new shard is missing           flip
//	                 a shard refuses to freeze, and waiting does not help         give up
//	                 a shard has refused to freeze for a second                   restart
//	                 the patience is over                                         give up
//	                 a new shard is not closed                                    prepare
//	                 an instance may begin a job                                  wait
//	                 dead owners alone have ids in flight, and no node lives      return
//	                 a shard is busy                                              wait
//	                 otherwise                                                    flip
//	neither          a shard has the mark of an attempt                           thaw
//	                 otherwise                                                    none
//
// Three rows need a reason. A failover may forget a freeze after all new shards are open. The old shard then takes pushes of
// programs that know the old layout alone, so it is frozen and copied again before it is dropped.
//
// Pushes wait from the first freeze on. So a reshard that has frozen all shards goes on to its flip although its patience is
// over.
//
// An attempt that a shard refuses is ended, and never thawed and frozen again under the same number. Otherwise a late thaw of
// the first try would open a shard after the flip.
func nextStep(entry protocol.RegistryEntry, f facts) step {
	switch r := entry.Reshard; {
	case entry.Copying():
		if f.open < f.fresh || f.over < f.old {
			return stepCopy
		}
		return stepEnd
	case len(f.others) > 0:
		return stepThaw
	case r == nil:
		return stepNone
	case f.frozen == f.old && f.closed+f.open == f.fresh: // a shard is open if Redis has lost a flip
		return stepFlip
	case f.refused != nil && f.refused.isLasting():
		return stepGiveUp
	case f.refused != nil:
		return stepRestart
	case f.now.Sub(time.UnixMilli(r.At)) > time.Duration(r.Patience)*time.Millisecond:
		return stepGiveUp
	case f.closed < f.fresh:
		return stepPrepare
	case f.mayBegin:
		return stepWait
	case len(f.ownerless) > 0 && !f.handled:
		return stepReturn
	case f.busy > 0:
		return stepWait
	}
	return stepFlip
}
