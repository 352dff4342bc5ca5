package protocol

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// A call is a push whose payload carries the address of its caller (internal/store/envelope). The script that
// ends the payload stores the reply under the call's token, and publishes it on the channel of the calling
// client (lua/lib/tell.lua). A message may be lost, so the client also reads stored replies (replies.go).

// Called is a queue.Called.
type Called struct {
	Reply lowkiq.Reply
	Err   error
	Kept  bool
}

// ErrClosed means that the client was closed while a call waited.
var ErrClosed = redisdb.ErrClosed

// DefaultKeep is queue.DefaultKeep.
const DefaultKeep = time.Minute

// MaxKeep is queue.MaxKeep.
const MaxKeep = envelope.MaxKeep

// Call pushes a job and waits for the end of its payload, as queue.Client.Call does.
func (c *Client) Call(ctx context.Context, queue string, job lowkiq.Push) (lowkiq.Reply, error) {
	all, err := c.Calls(ctx, queue, 0, job)
	if err != nil {
		return lowkiq.Reply{ID: job.ID}, err
	}
	if all[0].Err == nil && all[0].Reply.State == lowkiq.ReplyPending {
		return all[0].Reply, fmt.Errorf("job %q has not ended yet: %w", job.ID, context.Cause(ctx))
	}
	return all[0].Reply, all[0].Err
}

// Calls is Call for several jobs, as queue.Client.Calls is.
func (c *Client) Calls(ctx context.Context, queue string, keep time.Duration, jobs ...lowkiq.Push) ([]Called, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	pushing, cancel := c.outlastDeadline(ctx)
	defer cancel()
	q, err := c.Queue(pushing, queue)
	if err != nil {
		return nil, err
	}
	q = q.Latest()
	home, within := handling.Home{Redis: c.Redis(), Cluster: c.Cluster()}, handling.CallOf(ctx)
	for i := range jobs {
		if shard := q.Of(jobs[i].ID).Index; within.Blocks(home, queue, shard, jobs[i].ID) {
			return nil, fmt.Errorf("job %q: %w: shard %d of queue %q is busy with its call until it returns; push without waiting, or call another queue",
				jobs[i].ID, lowkiq.ErrOwnLane, shard, queue)
		}
	}
	if keep <= 0 {
		keep = DefaultKeep
		if deadline, ok := ctx.Deadline(); ok {
			keep += max(0, time.Until(deadline))
		}
	}
	keep = min(keep, MaxKeep)
	if err := memory.Take(ctx, int64(len(jobs))*callBytes); err != nil {
		return nil, err
	}
	calls := make([]pendingCall, len(jobs))
	jobs = slices.Clone(jobs)
	channel, leave := c.replies.addCalls(ctx, q, jobs, calls)
	defer leave()
	for i := range jobs {
		jobs[i].ReplyTo = envelope.Address(calls[i].token, keep, channel)
	}
	results, err := q.Push(context.WithValue(pushing, repliesKey{}, c.replies), jobs...)
	if results == nil && err != nil {
		return nil, err
	}
	ids, all := c.replies.markStored(calls, results), make([]Called, len(jobs))
	for i := range all {
		all[i].Reply = lowkiq.Reply{ID: ids[i], Token: calls[i].token, State: lowkiq.ReplyPending}
		if all[i].Err = results[i].Err; all[i].Err != nil {
			all[i].Reply.State = ""
		}
	}
	for i := range all {
		if all[i].Err == nil {
			all[i].Kept, all[i].Err = q.awaitReply(ctx, &calls[i], &all[i].Reply)
		}
	}
	return all, nil
}

// Waiting returns the number of the client's calls that have no end yet.
func (c *Client) Waiting() int {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	return len(c.replies.waiting)
}

// outlastDeadline returns a context that outlasts the deadline of ctx by the timeout of a command. The caller
// then learns which jobs are stored, however short its deadline is. If ctx is cancelled, so is the new context.
func (c *Client) outlastDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
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

// awaitReply waits for the end of a call's payload and fills in the reply. If ctx ends first, the reply stays
// pending. kept is true if there was memory for the state of the reply only.
func (q *Queue) awaitReply(ctx context.Context, call *pendingCall, reply *lowkiq.Reply) (kept bool, err error) {
	select {
	case end := <-call.ended:
		return end.kept, q.decodeEnd(reply, end)
	case <-ctx.Done():
	}
	select {
	case end := <-call.ended: // an end that has come takes precedence over ctx
		return end.kept, q.decodeEnd(reply, end)
	default:
		return false, nil
	}
}

func (q *Queue) decodeEnd(reply *lowkiq.Reply, end callEnd) error {
	if end.err != nil {
		return fmt.Errorf("job %q: its end is not known: %w", reply.ID, end.err)
	}
	return envelope.ReadReply(reply, end.text, q.Latest().rules.Load().Codec.Decode)
}

// Reply returns the reply to an earlier call, as queue.Client.Reply does.
func (c *Client) Reply(ctx context.Context, queue, id, token string) (lowkiq.Reply, error) {
	reply := lowkiq.Reply{ID: id, Token: token}
	q, err := c.Queue(ctx, queue)
	if err != nil {
		return reply, err
	}
	if bytes, err := base64.RawURLEncoding.DecodeString(token); err != nil || len(bytes) != tokenBytes {
		return reply, fmt.Errorf("job %q: %w: %.40q is not a token; use the token of the call", id, lowkiq.ErrNoReply, token)
	}
	if err := memory.Take(ctx, replyCopies*lowkiq.MaxResultBytes); err != nil {
		return reply, fmt.Errorf("job %q: %w", id, err)
	}
	text := ""
	for looks := 0; text == ""; looks++ {
		look := q.lookForReply(token, id, false, math.MaxInt32)
		c.db.RunAll(ctx, look.asked)
		if text, err = look.answer(); err != nil {
			return reply, fmt.Errorf("shard %s: %w", look.queue.Of(id), err)
		}
		switch {
		case text != "":
		case look.isOver(ctx):
			return reply, fmt.Errorf("job %q: %w under this token; it is no longer kept, or the token belongs to another job", id, lowkiq.ErrNoReply)
		case q.Latest().layouts().moving || looks == maxReplyLooks:
			text = string(lowkiq.ReplyPending) // its payload may be on its way to the next layout
		}
	}
	return reply, envelope.ReadReply(&reply, text, q.rules.Load().Codec.Decode)
}

// maxReplyLooks is the maximum number of further looks of Reply because the queue was resharded during a look.
const maxReplyLooks = 3

// tokenBytes is the length of a token: 128 random bits, so that nobody can guess the token of another call.
const tokenBytes = 16

func newToken() string {
	var bits [tokenBytes]byte
	rand.Read(bits[:])
	return base64.RawURLEncoding.EncodeToString(bits[:])
}
