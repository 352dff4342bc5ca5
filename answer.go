package lowkiq

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Failed is an answer per id: the jobs named in it failed, the others of the batch succeeded. The
// error of an id may be a [Postpone], a [Limit] or a [Bury].
type Failed map[string]error

// Unwrap returns the errors in order of the ids.
func (f Failed) Unwrap() []error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(f)) {
		if f[id] != nil {
			errs = append(errs, f[id])
		}
	}
	return errs
}

// Error lists the ids and their errors in order of the ids.
func (f Failed) Error() string {
	parts := make([]string, 0, len(f))
	for _, id := range slices.Sorted(maps.Keys(f)) {
		parts = append(parts, fmt.Sprintf("%s: %v", id, f[id]))
	}
	return strings.Join(parts, "; ")
}

// Postpone is the answer "not now": the jobs are put back, no failure is counted. For when what the
// handler calls is busy or away.
type Postpone struct {
	After  time.Duration // the jobs are due again that much later
	Reason string
}

// Error says when the batch is due again, and why.
func (p Postpone) Error() string { return fmt.Sprintf("postponed by %s: %s", p.After, p.Reason) }

// As lets errors.As find the value also where a pointer to it was returned.
func (p Postpone) As(target any) bool {
	into, ok := target.(*Postpone)
	if ok {
		*into = p
	}
	return ok
}

// Limit is the answer "these are too many for whom I call": the jobs are put back, no failure is counted, and no id of their group
// begins in the whole cluster before the time is over. Groups are the queue's rule of that name; without it Limit is [Postpone].
type Limit struct {
	Prefix string        // the group; "": that of each job that it is the answer to
	For    time.Duration // up to an hour
}

// Error says which group waits, and for how long.
func (l Limit) Error() string {
	if l.Prefix == "" {
		return fmt.Sprintf("limited for %s", l.For)
	}
	return fmt.Sprintf("%s limited for %s", l.Prefix, l.For)
}

// As lets errors.As find the value also where a pointer to it was returned.
func (l Limit) As(target any) bool {
	into, ok := target.(*Limit)
	if ok {
		*into = l
	}
	return ok
}

// Bury is the answer "never retry this": the payloads go to the morgue at once, whatever retries
// are left.
type Bury struct {
	Reason string // kept with the job
}

// Error is the reason.
func (b Bury) Error() string {
	if b.Reason == "" {
		return "buried by its handler"
	}
	return b.Reason
}

// As lets errors.As find the value also where a pointer to it was returned.
func (b Bury) As(target any) bool {
	into, ok := target.(*Bury)
	if ok {
		*into = b
	}
	return ok
}
