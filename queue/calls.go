package queue

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Called is the answer to a job of [Client.Calls].
type Called struct {
	Reply lowkiq.Reply // has no state if the job was refused
	// Err of a reply without a state says why the job was refused or not sent, or that it is unknown whether
	// it was stored. Err of a reply with a state says why the client cannot wait for the end (ErrClosed,
	// lowkiq.ErrNoReply, or a refusal of Redis), or why the result cannot be decoded.
	Err error
	// Kept means that Reply.Result or Reply.Error is missing, because there was no memory for it. Client.Reply
	// returns the whole reply.
	Kept bool
}

// ErrClosed means that the client was closed while a call waited.
var ErrClosed = protocol.ErrClosed

// DefaultKeep is a minute. By default a reply is kept for the time from the call to its deadline and DefaultKeep,
// counted from the end of the payload.
const DefaultKeep = protocol.DefaultKeep

// MaxKeep is how long a reply is kept at most, 168 hours.
const MaxKeep = protocol.MaxKeep

// Call pushes a job and waits for the end of its payload. A payload ends when it is done, with the result that
// its handler answered, or when it is buried or deleted, or expires. A failure that will be retried is no end.
//
// ctx bounds the wait. If it ends after the push, the reply is pending and the error wraps context.Cause(ctx). The
// reply's token gives the reply later; see [Client.Reply]. A reply without a state means that the push failed. The
// error then says why the job is not stored, or may not be. Equal payloads of two calls are not merged, so each
// caller gets an answer of its own. lowkiq.ErrNoReply means that the payload is gone without an end.
//
// If ctx is the context of a handler, a call whose job would have to wait for that handler is refused with
// lowkiq.ErrOwnLane, and nothing is pushed.
func (c *Client) Call(ctx context.Context, queue string, job lowkiq.Push) (lowkiq.Reply, error) {
	return c.protocol.Call(ctx, queue, job)
}

// Calls is Call for several jobs, with an answer per job. When ctx ends, the replies without an end are
// pending. keep is how long a reply is kept after the end of its payload. 0 means the time to the deadline
// of ctx and DefaultKeep. A time beyond MaxKeep counts as MaxKeep. A middleware may change a job's id. The
// reply has the stored id, which [Client.Reply] needs.
func (c *Client) Calls(ctx context.Context, queue string, keep time.Duration, jobs ...lowkiq.Push) ([]Called, error) {
	all, err := c.protocol.Calls(ctx, queue, keep, jobs...)
	if err != nil {
		return nil, err
	}
	called := make([]Called, len(all))
	for i := range all {
		called[i] = Called(all[i])
	}
	return called, nil
}

// Reply returns the reply to an earlier call. It is [lowkiq.ReplyPending] while the payload waits or runs. If
// many payloads wait for the id, it may be pending until all of them have ended. lowkiq.ErrNoReply means that
// there is no reply under this token.
func (c *Client) Reply(ctx context.Context, queue, id, token string) (lowkiq.Reply, error) {
	return c.protocol.Reply(ctx, queue, id, token)
}
