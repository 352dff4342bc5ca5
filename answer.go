package lowkiq

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Failed is an answer per id. The named jobs have failed, and the other jobs of the batch are done. The
// error of an id may be a [Postpone], a [Throttle] or a [Bury].
type Failed map[string]error

// Unwrap returns the errors in the order of their ids.
func (f Failed) Unwrap() []error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(f)) {
		if f[id] != nil {
			errs = append(errs, f[id])
		}
	}
	return errs
}

// Error lists the ids with their errors, in the order of the ids.
func (f Failed) Error() string {
	parts := make([]string, 0, len(f))
	for _, id := range slices.Sorted(maps.Keys(f)) {
		parts = append(parts, fmt.Sprintf("%s: %v", id, f[id]))
	}
	return strings.Join(parts, "; ")
}

// Postpone is the answer "try again later". It does not count as a failure. A handler returns it while a
// service that it calls is busy or away.
type Postpone struct {
	// After is the time after which the jobs are due again. At 0 they are due at once, without a pause. An answer in JSON
	// has 1 s to a day.
	After  time.Duration
	Reason string
}

// Error returns the delay and the reason.
func (p Postpone) Error() string { return fmt.Sprintf("postponed by %s: %s", p.After, p.Reason) }

// As makes errors.As find the value if a handler returned a pointer to it.
func (p Postpone) As(target any) bool {
	into, ok := target.(*Postpone)
	if ok {
		*into = p
	}
	return ok
}

// Throttle is the answer "too many requests for this group". The jobs are postponed, which does not count as
// a failure, and no job of their group begins in the cluster before the time is over. The queue's rule
// groups defines groups. Without that rule Throttle is a [Postpone].
type Throttle struct {
	Prefix string // the group; "" stands for the group of each job that gets this answer
	// For more than an hour counts as an hour, unless the queue has no such group. At 0 the jobs are due at once, and the group
	// is not held back. An answer in JSON has 1 s to a day.
	For time.Duration
}

// Error returns the group and the time.
func (l Throttle) Error() string {
	if l.Prefix == "" {
		return fmt.Sprintf("limited for %s", l.For)
	}
	return fmt.Sprintf("%s limited for %s", l.Prefix, l.For)
}

// As makes errors.As find the value if a handler returned a pointer to it.
func (l Throttle) As(target any) bool {
	into, ok := target.(*Throttle)
	if ok {
		*into = l
	}
	return ok
}

// Bury is the answer "never retry". The payloads go to the morgue at once, even if retries are left.
type Bury struct {
	Reason string // kept with the payloads
	// Payloads are the positions in Job.Payloads of the payloads to bury. nil stands for all. The other
	// payloads come again at once, and this does not count as a retry. A position that the job does not
	// have makes the answer a failure.
	Payloads []int
}

// Error returns the reason.
func (b Bury) Error() string {
	if b.Reason == "" {
		return "buried by its handler"
	}
	return b.Reason
}

// As makes errors.As find the value if a handler returned a pointer to it.
func (b Bury) As(target any) bool {
	into, ok := target.(*Bury)
	if ok {
		*into = b
	}
	return ok
}
