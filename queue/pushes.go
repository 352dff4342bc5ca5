package queue

import (
	"context"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Result is the answer to a pushed job. A nil Err means that the job is stored. Merged reports that an equal
// payload of the id was waiting already, and the job was merged with it. Another Err says why the job is not
// stored: it was refused, or not sent (ErrUnsent). It may also say that Redis did not answer and that the job
// may be stored. Pushing it again is safe.
type Result = protocol.Result

// Errors of a refused job. To push the same again is of no use, except after ErrTooManyPayloads and ErrTooManyBytes.
var (
	ErrID              = protocol.ErrID              // the id is empty, or longer than lowkiq.MaxIDBytes
	ErrScore           = protocol.ErrScore           // the score is not a finite number
	ErrPerformAt       = protocol.ErrPerformAt       // the time is before lowkiq.MinPerformAt or after lowkiq.MaxPerformAt
	ErrPayloadSize     = protocol.ErrPayloadSize     // the payload is larger than the queue's limit
	ErrTooManyPayloads = protocol.ErrTooManyPayloads // too many payloads wait for the id
	ErrTooManyBytes    = protocol.ErrTooManyBytes    // the payloads that wait for the id are too large together
	ErrReplyTo         = protocol.ErrReplyTo         // the push has an address for replies that no Call made
	ErrDamaged         = protocol.ErrDamaged         // the waiting payloads of this id cannot be read
)

// ErrUnsent means that the job is not stored because an earlier part of the same push to its shard
// failed, or because an earlier payload of its id was refused. The error wraps that failure. Push the
// failed jobs again in the same order, so that each id's payloads are stored in push order.
var ErrUnsent = protocol.ErrUnsent

// ErrCodec means that the queue's payloads are stored in a codec that this client does not have, or that
// this client has a codec and the queue has none.
var ErrCodec = protocol.ErrCodec

// Transient reports whether an operation that failed with err may succeed when it is repeated. It does so if
// Redis was out of reach, starting, failing over, moving a slot, read-only, or out of memory or connections, or if
// the queue was being resharded. If the connection broke, it is unknown whether the operation was executed.
//
// Transient is also true after a deadline of ctx, so a loop must look at ctx.Err, too. A Call with a pending reply
// must not be repeated, because its job is stored.
func Transient(err error) bool { return protocol.Transient(err) }

// Push stores jobs. It returns a result per job, and the first of their errors. A script stores its
// jobs atomically: up to 1,000 jobs of a shard, or 1 MiB, and fewer if many payloads wait for their
// ids. After an error each result tells what happened to its job. Any number of jobs may be pushed at
// once. They go to Redis in bulk, and small pushes of concurrent callers share scripts.
//
// An id's payloads keep push order even if a push fails in part. The caller repeats the push, or only its
// failed jobs, until it succeeds. So that the order holds, Push does not send the later jobs of a shard
// after a failure (ErrUnsent). If Redis refuses a payload, Push stores no later payload of that id either
// (also ErrUnsent). The script that refuses the payload may still merge later equal payloads.
//
// Push stores a job at least once. If the answer is lost, the job may have been stored. It is safe to
// push it again, because a payload that equals a waiting payload is merged. When ctx ends, Push
// returns, and jobs without an answer have an error that says so. The payloads' bytes may then still
// be read for up to Config.Timeout, so their memory must not be reused.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error) {
	return q.protocol.Push(ctx, jobs...)
}

// Push stores jobs in a registered queue; see [Queue.Push]. If the queue cannot be opened, as when it is not registered,
// the results are nil and no job is stored.
func (c *Client) Push(ctx context.Context, queue string, jobs ...lowkiq.Push) ([]Result, error) {
	return c.protocol.Push(ctx, queue, jobs...)
}

// Pusher stores jobs in a queue; see [Queue.Push].
type Pusher = func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error)

// Middleware wraps the pushes of a queue. It may inspect, change or refuse jobs, and observe their results.
// It must return a Result per job that it was given. Jobs may share a map of headers. To change headers,
// give the job a new map.
type Middleware = func(queue string, next Pusher) Pusher

// Codec turns payloads into the bytes that Redis stores, to compress or encrypt them, and back. Equal
// payloads must become equal bytes, or they do not merge. Without a codec payloads are stored as they are
// pushed. Headers are stored as they are with every codec, so secrets do not belong there.
//
// The registry keeps the name. A client that pushes without the codec of that name is refused (ErrCodec).
type Codec struct {
	Name   string // of the form of stored payloads, as in "aes-gcm"
	Encode func([]byte) ([]byte, error)
	Decode func([]byte) ([]byte, error)
}

// PushRules are the rules for the payloads of a queue, from any client. The program that pushes sets them
// with [Client.SetRules]. The node that handles the queue needs the same rules, to decode and to take
// pushes by its API; node.QueueConfig has the same parts. The zero value of a field is its default.
type PushRules struct {
	Codec Codec
	// Middlewares wrap every push, the first outermost. They see payloads as they are
	// pushed, before Codec encodes them.
	Middlewares []Middleware

	// Push has this client's own limits. The limits of the registry hold for every client, and the stricter of
	// the two holds for this client's pushes. Coalesce and Debounce take the place of those in the registry.
	// Rules set at run time take precedence over both. Register writes Push into the registry for a new queue
	// only. A node that handles the queue writes its rules at each start.
	rules.Push
}

// SetRules sets the rules of a queue for this client's pushes from now on. Every client that pushes to the
// queue needs them, also the client of a node. For a queue that a node handles, node.QueueConfig sets them.
// A node that takes pushes for other queues needs their rules by Node.Client().SetRules.
func (c *Client) SetRules(queue string, push PushRules) error {
	return c.protocol.SetRules(queue, protocol.PushRules{Codec: protocol.Codec(push.Codec), Middlewares: push.Middlewares, Push: push.Push})
}
