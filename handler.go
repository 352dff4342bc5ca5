package lowkiq

import "context"

// Handler handles the jobs of a queue. A node calls it for one batch of a shard at a time, unless
// the queue allows several batches of different ids at once. No id is in two calls at once (I1).
//
// A nil error means that all jobs are done. The following errors are answers; they may be wrapped:
//
//   - [Failed] names the jobs that failed. The other jobs are done. If it names an id that is not in
//     the batch, the whole batch has failed. If it is joined with another error, the jobs that it
//     does not name have failed, too.
//   - [Postpone] puts the batch back. It does not count as a retry.
//   - [Throttle] does the same, and holds back other ids of the group.
//   - [Bury] moves the payloads to the morgue without a retry.
//
// Any other error, and a panic, is a failure of the whole batch. A job that has failed comes alone
// in its next batches.
//
// The context is cancelled with one of these causes:
//
//   - [ErrLeaseLost]: the node may no longer work on the shard. The handler must return within 0.2
//     of the lease's ttl, or the process exits with status 75.
//   - [ErrShutdown]: the node's shutdown timeout is over. The handler must return within 2 s, or the
//     process exits with status 75.
//   - [ErrTimeout]: the queue's handler timeout is over.
//   - [ErrCancelled]: a person has cancelled the run of an id of the batch.
//   - [ErrStuck]: the handler has noted nothing for as long as the queue's rules allow.
//
// In the last three cases the shard waits for the handler. The log names a handler that has not
// returned 30 s after its timeout.
//
// A handler may have two more methods, which the node calls:
//
//   - Run(context.Context) error is called once. Its context lasts as long as the node runs.
//   - Ready() error returns why the handler cannot work, or nil. It is called about once a second and
//     must return at once. A handler whose Ready does not return for a lease's ttl is not ready.
//     While a handler is not ready, its node is not ready, and in a cluster the queue's shards go to
//     nodes with a ready handler, if there are any. The handler gets no batches then, and must
//     notice by itself when it can work again. The API shows the error's text without a token.
type Handler interface {
	Handle(ctx context.Context, batch *Batch) error
}

// HandlerFunc adapts a function to a [Handler].
type HandlerFunc func(ctx context.Context, batch *Batch) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, batch *Batch) error { return f(ctx, batch) }
