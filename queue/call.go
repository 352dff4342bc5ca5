package queue

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// A call is a push whose payload says to whom its end is told (internal/envelope). The script that
// ends the payload stores the reply under the call's token, and tells it on the channel of the client
// that called (lua/lib/tell.lua). A message may be lost; the caller looks for the reply once a second,
// too.

// Called is the answer to one job of Calls.
type Called struct {
	Reply lowkiq.Reply // of a job that was refused it has the id alone
	Err   error        // why the job was refused, or not sent, or that it is unknown whether it was stored
}

// DefaultKeep is how much longer than its caller waits a reply is kept, and how long one is whose
// caller's context has no deadline.
const DefaultKeep = time.Minute

// MaxKeep is the longest time for which a reply is kept.
const MaxKeep = envelope.MaxKeep

// Call pushes a job and waits for the end of its payload: it is done, with the result that its
// handler answered, or it was buried or deleted. A failure that will be retried is no end. ctx bounds
// the wait: when it ends first, the reply is pending, and the error is that of ctx. Its token gives
// the reply later, see Reply. Equal payloads of two calls are not merged: each gets its own answer.
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
// deadline of ctx and DefaultKeep.
func (c *Client) Calls(ctx context.Context, queue string, keep time.Duration, jobs ...lowkiq.Push) ([]Called, error) {
	q, err := c.Queue(ctx, queue)
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
	channel := c.replies.join(ctx, q, jobs, calls)
	defer c.replies.leave(calls)
	for i := range jobs {
		jobs[i].ReplyTo = envelope.Address(calls[i].token, keep, channel)
	}
	results, err := q.Push(ctx, jobs...)
	if results == nil && err != nil {
		return nil, err
	}
	all := make([]Called, len(jobs))
	for i := range all {
		all[i].Reply = lowkiq.Reply{ID: jobs[i].ID, Token: calls[i].token, State: lowkiq.ReplyPending}
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

// await waits for the end of a call's payload, until ctx ends: then it stays pending.
func (q *Queue) await(ctx context.Context, one *call, reply *lowkiq.Reply) error {
	select {
	case text := <-one.reply:
		return envelope.ReadReply(reply, text, q.rules.Load().Codec.Decode)
	case <-ctx.Done():
	}
	select {
	case text := <-one.reply: // what is there is worth more
		return envelope.ReadReply(reply, text, q.rules.Load().Codec.Decode)
	default:
		return nil
	}
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
	text, err := q.Of(id).reply(ctx, id, token)
	if err != nil {
		return reply, err
	}
	if text == "" {
		return reply, fmt.Errorf("job %q: %w under this token: it is no longer kept, or never was one of this job", id, lowkiq.ErrNoReply)
	}
	return reply, envelope.ReadReply(&reply, text, q.rules.Load().Codec.Decode)
}

// reply reads what there is of a reply; see lua/reply.lua.
func (s *Shard) reply(ctx context.Context, id, token string) (string, error) {
	script := s.registry.db.Scripts.Reply
	got, err := run(ctx, s.registry.db, script, s.keys.For(script), token, id)
	if err != nil {
		return "", fmt.Errorf("shard %s: %w", s, err)
	}
	return redisdb.Text(got), nil
}

// tokenBytes are those of a token: 128 random bits, so that nobody finds another's reply.
const tokenBytes = 16

func newToken() string {
	var bits [tokenBytes]byte
	rand.Read(bits[:])
	return base64.RawURLEncoding.EncodeToString(bits[:])
}

// call is one that waits for its reply.
type call struct {
	token string
	id    string
	shard *Shard
	reply chan string // gets it, once
	look  time.Time   // when to look whether the reply is there; guarded by the replies' mu
}

// replies hears how this client's calls end. It listens while there are calls, and a minute longer.
type replies struct {
	c       *Client
	channel string

	mu      sync.Mutex       // guards the fields below
	waiting map[string]*call // by token
	stop    context.CancelFunc
	hears   chan struct{} // closed when Redis has confirmed the subscription; nil if nothing listens
	idle    time.Time     // since when there is no call; zero while there are some
	closed  bool

	work  sync.WaitGroup
	nudge chan struct{} // has the looker look now
}

func newReplies(c *Client) *replies {
	return &replies{c: c, channel: c.db.Keys.Replies(newToken()), waiting: map[string]*call{}, nudge: make(chan struct{}, 1)}
}

const (
	replyLook = time.Second            // how often a caller looks for its reply: a message may be lost
	replyIdle = time.Minute            // how long a client listens after its last call
	firstCall = 250 * time.Millisecond // how long the first call waits for the subscription, before it relies on looking
	replyScan = 500                    // replies that one request looks for
)

// join lets calls wait, before they are pushed. It fills them in, and returns the channel.
func (r *replies) join(ctx context.Context, q *Queue, jobs []lowkiq.Push, calls []call) string {
	r.mu.Lock()
	look := time.Now().Add(replyLook)
	for i := range calls {
		calls[i] = call{token: newToken(), id: jobs[i].ID, shard: q.Of(jobs[i].ID), reply: make(chan string, 1), look: look}
		r.waiting[calls[i].token] = &calls[i]
	}
	r.idle = time.Time{}
	if r.hears == nil && !r.closed {
		r.hears = make(chan struct{})
		// It listens for calls to come, too.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r.stop = cancel
		hears := r.hears
		r.work.Go(func() { r.listen(ctx, sync.OnceFunc(func() { close(hears) })) })
		r.work.Go(func() { r.lookAround(ctx) })
	}
	hears := r.hears
	r.mu.Unlock()
	select {
	case <-hears:
	case <-ctx.Done():
	case <-time.After(firstCall):
	}
	return r.channel
}

// leave ends the wait of calls.
func (r *replies) leave(calls []call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range calls {
		delete(r.waiting, calls[i].token)
	}
	if len(r.waiting) == 0 {
		r.idle = time.Now()
	}
}

// close ends the listening for good.
func (r *replies) close() {
	r.mu.Lock()
	r.closed = true
	if r.stop != nil {
		r.stop()
	}
	r.mu.Unlock()
	r.work.Wait()
}

// listen hears replies until ctx ends. A connection that breaks, or answers no more, is replaced.
func (r *replies) listen(ctx context.Context, confirmed func()) {
	for ctx.Err() == nil {
		sub := r.c.db.Subscribe(ctx)
		stop := context.AfterFunc(ctx, func() { sub.Close() }) // unblocks the receive
		r.hear(ctx, sub, confirmed)
		stop()
		sub.Close()
		select {
		case <-ctx.Done():
		case <-time.After(wakeRetry):
		}
	}
}

func (r *replies) hear(ctx context.Context, sub *redisdb.Subscription, confirmed func()) {
	if sub.Add(ctx, r.channel) != nil {
		return
	}
	for wait := wakeSilence; ; {
		news, err := sub.Receive(ctx, wait)
		switch {
		case err == nil && news.Confirmed:
			confirmed()
			wait = wakeSilence
		case err == nil:
			wait = wakeSilence
			r.deliver(news.Payload)
		case redisdb.TimedOut(err) && wait == wakeSilence && sub.Ping(ctx) == nil:
			wait = r.c.cfg.Timeout // for the answer
		default:
			return
		}
	}
}

// deliver reads "<token> ... <token>\n<reply>", or the tokens alone: then the reply is to be read.
func (r *replies) deliver(message string) {
	tokens, text, whole := strings.Cut(message, "\n")
	r.mu.Lock()
	defer r.mu.Unlock()
	for token := range strings.SplitSeq(tokens, " ") {
		one := r.waiting[token]
		switch {
		case one == nil:
		case whole:
			one.answer(text)
		default:
			one.look = time.Time{}
			select {
			case r.nudge <- struct{}{}:
			default:
			}
		}
	}
}

func (one *call) answer(text string) {
	select {
	case one.reply <- text:
	default: // it has one
	}
}

// lookAround looks for replies that no message has told of, until there has been no call for a
// while.
func (r *replies) lookAround(ctx context.Context) {
	tick := time.NewTicker(replyLook / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.nudge:
		}
		due, over := r.due(time.Now())
		if over {
			return
		}
		for some := range slices.Chunk(due, replyScan) {
			r.lookFor(ctx, some)
		}
	}
}

// due are the calls whose turn it is. over: there have been none for so long that nothing listens
// any more.
func (r *replies) due(now time.Time) (due []*call, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 && !r.idle.IsZero() && now.Sub(r.idle) > replyIdle {
		r.stop()
		r.hears, r.stop = nil, nil
		return nil, true
	}
	for _, one := range r.waiting {
		if !now.Before(one.look) {
			one.look = now.Add(replyLook)
			due = append(due, one)
		}
	}
	return due, false
}

// lookFor reads replies.
func (r *replies) lookFor(ctx context.Context, calls []*call) {
	cmds := make([]redisdb.Cmd, len(calls))
	for i, one := range calls {
		cmds[i] = redisdb.Cmd{"GET", one.shard.keys.ReplyTo(one.token)}
	}
	replies, _ := r.c.db.Pipeline(ctx, "look for replies", cmds...) // what fails is looked for again
	for i, reply := range replies {
		text := redisdb.Text(reply)
		if strings.HasPrefix(text, "see ") {
			text, _ = calls[i].shard.reply(ctx, calls[i].id, calls[i].token)
		}
		if text != "" {
			calls[i].answer(text)
		}
	}
}
