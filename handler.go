package lowkiq

import "context"

// Handler does the work. It is called for one batch of a shard at a time, unless the queue allows
// more batches of different ids at once; never for one id twice at once (I1).
//
// A nil error means that every job is done. [Failed] names the jobs that failed, [Postpone] puts
// the batch back without spending a retry, [Limit] does and holds back others of their group, [Bury] gives it up without another one, any other error
// (and a panic) is a failure of the whole batch. They may be wrapped. Failed that is joined with
// another error is a failure of the jobs it does not name, too; one that names an id which is not
// in the batch is a failure of all.
//
// The context is cancelled when the node may no longer work on the shard (cause [ErrLeaseLost]),
// when the queue's handler timeout is over ([ErrTimeout]), when a person ends the run of an id of the
// batch ([ErrCancelled]), when it has noted nothing for as long as the rules allow ([ErrStuck]), or when the node has waited for its shutdown timeout ([ErrShutdown]). Once the lease or the
// shard is lost the handler must return within 0.2 of the lease's ttl, and at a shutdown within 2 s: the process ends itself with
// status 75 otherwise. In the other cases the shard waits for it, and 30 s after the handler timeout the log says so.
//
// The node also calls two methods that a handler may have:
//
//   - Run(context.Context) error is called once, and its context lasts as long as the node runs.
//   - Ready() error says why the handler could not work, nil while it can. It is called about once a
//     second and must answer at once from what is known; one that does not return for a lease's ttl
//     counts as not ready. While a handler is not ready its node is not, and in a cluster the queue's
//     shards go to nodes whose handler is, if there are any. As no batches come then, the handler
//     must find out by itself that it can work again. The error's text is shown without a token.
type Handler interface {
	Handle(ctx context.Context, batch *Batch) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, batch *Batch) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, batch *Batch) error { return f(ctx, batch) }
