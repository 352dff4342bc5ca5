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
// [Postpone] puts the batch back without spending a retry, any other error (and a
// panic) is a failure of the whole batch.
//
// The context is cancelled when the node may no longer work on the shard (cause
// [ErrLeaseLost]), when the queue's handler timeout is over, or at the end of a
// shutdown's patience. The handler must then return within 0.2 of the lease's ttl.
type Handler interface {
	Handle(ctx context.Context, batch *Batch) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, batch *Batch) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, batch *Batch) error { return f(ctx, batch) }

// Failed is an answer per id: the jobs named in it failed, the others of the batch
// succeeded. Return it from a handler as an error.
type Failed map[string]error

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
