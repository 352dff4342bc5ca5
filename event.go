package lowkiq

import "context"

// Event reports a change of jobs to the hooks of a queue, after Redis has stored the change.
type Event struct {
	Kind  EventKind
	Shard Shard
	// Jobs are the jobs with their payloads, as their handler saw them last. A recovery has only their
	// number, below.
	Jobs []Ended

	// The fields of a recovery.
	Recovered int    // jobs that were in flight, and will be handled again
	Crashes   int    // payloads that were buried because their workers died again and again
	From      string // the former owner of the shard; "" if it is unknown
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of events.
const (
	Recovered EventKind = "recovered" // the last owner of a shard died, or left, with jobs in flight
	Buried    EventKind = "buried"    // payloads went to the morgue: without retries, expired, or by their handler or a person
	Exhausted EventKind = "exhausted" // jobs have no retries left, whatever the rule exhausted does with them, or their handler buried them
)

// Ended is a job with its last error.
type Ended struct {
	Job
	Err error
}

// Hook is called for an event, at most once. An error is logged, and a process that dies before the call
// makes none. If no event may be missed, push a job instead, or read the journal. The lane of the shard
// waits for a hook, at most ten seconds. The context ends with the node's right to the shard, and a hook
// must return then, as handlers must. Hooks of different shards run at once.
type Hook func(ctx context.Context, e *Event) error
