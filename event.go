package lowkiq

import "context"

// Event is what the hooks of a queue are told: what has happened to jobs, once Redis has taken it.
type Event struct {
	Kind  EventKind
	Shard Shard
	// Jobs are those that it is about, with their payloads, as their handler saw them last; none of a recovery, of which
	// only their number is known.
	Jobs []Ended

	// Of a recovery.
	Recovered int    // jobs that were in flight, and will be handled again
	Crashes   int    // payloads that went to the morgue, as their workers died of them again and again
	From      string // the instance that had them; "" if nobody knows
}

// EventKind says what has happened.
type EventKind string

// The kinds of events.
const (
	Recovered EventKind = "recovered" // a shard's last owner died, or left, with jobs in flight
	Buried    EventKind = "buried"    // payloads went to the morgue: out of retries, out of time, or as their handler or a person asked
	Exhausted EventKind = "exhausted" // jobs are not tried again, whatever the queue's rule exhausted makes of them
)

// Ended is a job with the error that was its last.
type Ended struct {
	Job
	Err error
}

// Hook is told of an event. It is called at most once: an error is logged, and a process that dies before the call makes
// none. What must not be missed is a job, or read from the journal. The shard's lane waits for a hook, ten seconds at
// most; its context ends with the node's right to the shard, and a hook must heed it as handlers must. Hooks of different shards run at once.
type Hook func(ctx context.Context, e *Event) error
