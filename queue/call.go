package queue

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// A call is a push whose payload says to whom its end is told (internal/envelope). The script that
// ends the payload stores the reply under the call's token, and tells it on the channel of the client
// that called (lua/lib/tell.lua). A message may be lost; so the caller looks for the reply, too
// (replies.go).

// Called is the answer to one job of Calls.
type Called struct {
	Reply lowkiq.Reply // of a job that was refused it has no state
	// Err is why the job was refused, or not sent, or that it is unknown whether it was stored; or, of a
	// reply with a state, why no end of it can be waited for (ErrClosed, lowkiq.ErrNoReply, or that Redis
	// lets nobody look), or its result not be decoded.
	Err error
}

// ErrClosed: the client was closed while a call waited.
var ErrClosed = redisdb.ErrClosed

// DefaultKeep is how much longer than its caller waits a reply is kept, and how long one is whose
// caller's context has no deadline.
const DefaultKeep = time.Minute

// MaxKeep is the longest time for which a reply is kept.
const MaxKeep = envelope.MaxKeep

// Call pushes a job and waits for the end of its payload: it is done, with the result that its
// handler answered, or it was buried or deleted, or has expired. A failure that will be retried is no end. ctx bounds
// the wait: when it ends first, the reply is pending, and the error is that of ctx. Its token gives
// the reply later, see Reply. Equal payloads of two calls are not merged: each gets its own answer.
// lowkiq.ErrNoReply says that there will be no end: the payload is gone without one.
func (c *Client) Call(ctx context.Context, queue string, job lowkiq.Push) (lowkiq.Reply, error) {
	all, err := c.Calls(ctx, queue, 0, job)
	if err != nil {
		return lowkiq.Reply{ID: job.ID}, err
	}
	if all[0].Err == nil && all[0].Reply.State == lowkiq.ReplyPending {
		return all[0].Reply, fmt.Errorf("job %q: no end of it yet: %w", job.ID, context.Cause(ctx))
	}
	return all[0].Reply, all[0].Err
}

// Calls is Call for several jobs, with an answer per job. When ctx ends, those without an end are
// pending. keep is how long a reply is kept from the end of its payload on, 0 for the time to the
// deadline of ctx and DefaultKeep. The id of a reply is that under which its payload is stored, if a
// middleware has changed it: Reply wants that one.
func (c *Client) Calls(ctx context.Context, queue string, keep time.Duration, jobs ...lowkiq.Push) ([]Called, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	pushing, cancel := c.outlasting(ctx)
	defer cancel()
	q, err := c.Queue(pushing, queue)
	if err != nil {
		return nil, err
	}
	if keep <= 0 {
		keep = DefaultKeep
		if deadline, ok := ctx.Deadline(); ok {
			keep += max(0, time.Until(deadline))
		}
	}
	keep = min(keep, MaxKeep)
	calls := make([]call, len(jobs))
	jobs = slices.Clone(jobs)
	channel, leave := c.replies.join(ctx, q, jobs, calls)
	defer leave()
	for i := range jobs {
		jobs[i].ReplyTo = envelope.Address(calls[i].token, keep, channel)
	}
	results, err := q.Push(context.WithValue(pushing, repliesKey{}, c.replies), jobs...)
	if results == nil && err != nil {
		return nil, err
	}
	ids, all := c.replies.pushed(calls, results), make([]Called, len(jobs))
	for i := range all {
		all[i].Reply = lowkiq.Reply{ID: ids[i], Token: calls[i].token, State: lowkiq.ReplyPending}
		if all[i].Err = results[i].Err; all[i].Err != nil {
			all[i].Reply.State = ""
		}
	}
	for i := range all {
		if all[i].Err == nil {
			all[i].Err = q.await(ctx, &calls[i], &all[i].Reply)
		}
	}
	return all, nil
}

// Waiting is how many of the client's calls have no end yet.
func (c *Client) Waiting() int {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	return len(c.replies.waiting)
}

// outlasting is ctx, and goes on for a moment after its deadline: what is pushed is to be known, however short the
// wait is.
func (c *Client) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			time.AfterFunc(c.registry.cfg.Timeout, cancel)
		} else {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// await waits for the end of a call's payload, until ctx ends: then it stays pending.
func (q *Queue) await(ctx context.Context, one *call, reply *lowkiq.Reply) error {
	select {
	case end := <-one.ended:
		return q.end(reply, end)
	case <-ctx.Done():
	}
	select {
	case end := <-one.ended: // what is there is worth more
		return q.end(reply, end)
	default:
		return nil
	}
}

func (q *Queue) end(reply *lowkiq.Reply, end ended) error {
	if end.err != nil {
		return fmt.Errorf("job %q: no end of it: %w", reply.ID, end.err)
	}
	return envelope.ReadReply(reply, end.text, q.rules.Load().Codec.Decode)
}

// Reply asks for the reply to a call again: [lowkiq.ReplyPending] while its payload waits or runs,
// ErrNoReply if there is none under this token. Of an id for which many payloads wait it is pending
// until all of them have ended.
func (c *Client) Reply(ctx context.Context, queue, id, token string) (lowkiq.Reply, error) {
	reply := lowkiq.Reply{ID: id, Token: token}
	q, err := c.Queue(ctx, queue)
	if err != nil {
		return reply, err
	}
	if bytes, err := base64.RawURLEncoding.DecodeString(token); err != nil || len(bytes) != tokenBytes {
		return reply, fmt.Errorf("job %q: %w: %.40q is no token, want the one that the call was given", id, lowkiq.ErrNoReply, token)
	}
	shard := q.Of(id)
	got, err := shard.Run(ctx, c.db.Scripts.Reply, token, id, 0)
	if err != nil {
		return reply, fmt.Errorf("shard %s: %w", shard, err)
	}
	text := redisdb.Text(got)
	if text == "" {
		return reply, fmt.Errorf("job %q: %w under this token: it is no longer kept, or never was one of this job", id, lowkiq.ErrNoReply)
	}
	return reply, envelope.ReadReply(&reply, text, q.rules.Load().Codec.Decode)
}

// tokenBytes are those of a token: 128 random bits, so that nobody finds another's reply.
const tokenBytes = 16

func newToken() string {
	var bits [tokenBytes]byte
	rand.Read(bits[:])
	return base64.RawURLEncoding.EncodeToString(bits[:])
}
