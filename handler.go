package lowkiq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Batch is what one handler call receives: up to batch_size jobs of one shard.
type Batch struct {
	Shard Shard
	// Fence is the fencing token of the shard's claim. It only grows. A handler that
	// writes to its own store can send it along, so that the store can refuse a
	// writer whose shard has been taken over (I1).
	Fence int64
	// Flight is the number of the pop that delivered the jobs, counted per claim.
	Flight int64
	Jobs   []Job
}

// Handler does the work. It is called for one batch of a shard at a time, unless
// the queue allows more batches of different ids at once; never for one id twice
// at once (I1).
//
// A nil error means that every job is done. [Failed] names the jobs that failed,
// [Postpone] puts the batch back without spending a retry, [Bury] gives it up without
// another one, any other error (and a panic) is a failure of the whole batch. They may
// be wrapped. Failed that is joined with another error is a failure of the jobs it does
// not name, too; one that names an id which is not in the batch is a failure of all.
//
// The context is cancelled when the node may no longer work on the shard (cause
// [ErrLeaseLost]), when the queue's handler timeout is over, or at the end of a
// shutdown's patience. The handler must then return within 0.2 of the lease's ttl.
//
// A handler may have methods besides, which the node looks for: Run(context.Context) error is
// called for as long as the node runs. Ready() error says why the handler could not work, nil
// while it can: such as that what it calls is out of reach. It is asked about once a second and
// must answer at once from what is known; one that does not return for a lease's ttl is not ready, either. While it says so the node is not ready, and in a cluster
// the queue's shards go to nodes whose handler is ready, if there are any. As no batches come then,
// the handler must find out by itself that it can work again. Who may ask a node for its
// readiness, and that is anybody, reads the error's text.
type Handler interface {
	Handle(ctx context.Context, batch *Batch) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, batch *Batch) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, batch *Batch) error { return f(ctx, batch) }

// Failed is an answer per id: the jobs named in it failed, the others of the batch
// succeeded. The error of an id may be a [Postpone] or a [Bury]. Return it from a handler as an error.
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

// Postpone asks to put the batch back without counting a failure: the endpoint is
// busy, the circuit is open. The jobs are due again After later.
type Postpone struct {
	After  time.Duration
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

// Bury is the answer "never retry this": the payloads go to the morgue at once, whatever
// retries are left.
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

// Errors that callers may test for with errors.Is.
var (
	// ErrLeaseLost is the cause of a handler's cancelled context when the node's lease
	// ran out, or Redis refused it: another node may own the shard soon.
	ErrLeaseLost = errors.New("lease lost")
	// ErrFenced is Redis's answer to an operation of an instance that does not hold
	// the shard's claim.
	ErrFenced = errors.New("fenced: the shard is claimed by another instance")
	// ErrShutdown is the cause of a handler's cancelled context when the node's
	// shutdown timeout is over.
	ErrShutdown = errors.New("node is shutting down")
	// ErrTimeout is the cause of a handler's cancelled context when the queue's
	// handler_timeout is over.
	ErrTimeout = errors.New("handler timeout")
	// ErrUnknownQueue means that the queue is neither registered in Redis nor
	// configured here.
	ErrUnknownQueue = errors.New("unknown queue")
	// ErrShardCount means that the queue is registered with another shard count.
	ErrShardCount = errors.New("shard count differs from the registered one")
)
