package queue

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// call is one that waits for its end.
type call struct {
	token string
	ended chan ended // gets it, once

	// Guarded by the mu of the replies:
	id     string
	shard  *Shard
	stored bool          // Redis has acknowledged the push; then id and shard stay as they are
	look   time.Time     // when to look whether the reply is there
	pause  time.Duration // how long to wait after that look
}

// ended is the end of a call: the text of its reply, or why there is none.
type ended struct {
	text string
	err  error
}

func (one *call) end(how ended) {
	select {
	case one.ended <- how:
	default: // it has one
	}
}

// replies hears how this client's calls end, and looks for what it may have missed. It listens while
// there are calls, and a minute longer.
type replies struct {
	channel   string
	timeout   time.Duration                                    // of an answer of Redis
	subscribe func(ctx context.Context) subscription           // a connection to listen
	look      func(ctx context.Context, calls []*call) []ended // for replies; an empty end says that there is none yet

	mu      sync.Mutex       // guards the fields below
	waiting map[string]*call // by token: those without an end
	calling int              // Calls under way
	idle    time.Time        // since when there are none
	stop    context.CancelFunc
	hears   chan struct{} // closed when Redis has confirmed the first subscription; nil if nothing listens
	heard   bool          // the subscription is confirmed, and has not broken since
	closed  bool

	work  sync.WaitGroup
	nudge chan struct{} // has the looker look now
}

// subscription is what replies need of redisdb.Subscription.
type subscription interface {
	Add(ctx context.Context, channels ...string) error
	Receive(ctx context.Context, patience time.Duration) (redisdb.News, error)
	Ping(ctx context.Context) error
	Close() error
}

func newReplies(c *Client) *replies {
	return &replies{
		channel: c.db.Keys.Replies(newToken()), timeout: c.cfg.Timeout, look: c.lookForReplies,
		subscribe: func(ctx context.Context) subscription { return c.db.Subscribe(ctx) },
		waiting:   map[string]*call{}, nudge: make(chan struct{}, 1),
	}
}

const (
	replyLook     = time.Second            // after how long a caller looks for its reply at first: a message may be lost
	replyLookMost = 16 * time.Second       // then after twice that, and so on, as long as messages arrive
	replyIdle     = time.Minute            // how long a client listens after its last call
	firstCall     = 250 * time.Millisecond // how long a call waits for the first subscription, before it relies on looking
	replyScan     = 500                    // replies that one request looks for
)

// join lets calls wait, before they are pushed. It fills them in, and returns the channel.
func (r *replies) join(ctx context.Context, q *Queue, jobs []lowkiq.Push, calls []call) (channel string, leave func()) {
	r.mu.Lock()
	look := time.Now().Add(replyLook)
	for i := range calls {
		calls[i] = call{token: newToken(), id: jobs[i].ID, shard: q.Of(jobs[i].ID), ended: make(chan ended, 1), look: look, pause: replyLook}
		r.waiting[calls[i].token] = &calls[i]
	}
	if r.closed { // the push will find that, too
		r.endAll()
		r.mu.Unlock()
		return r.channel, func() {}
	}
	r.calling++
	if r.hears == nil {
		r.hears = make(chan struct{})
		listening, cancel := context.WithCancel(context.Background()) // for calls to come, too
		r.stop = cancel
		hears := r.hears
		r.work.Go(func() { r.listen(listening, sync.OnceFunc(func() { close(hears) })) })
		r.work.Go(func() { r.lookAround(listening) })
	}
	hears := r.hears
	r.mu.Unlock()
	select {
	case <-hears:
	case <-ctx.Done():
	case <-time.After(firstCall):
	}
	return r.channel, func() { r.leave(calls) }
}

// repliesKey is under which the context of a call's push has the replies.
type repliesKey struct{}

// calledAs notes under which ids calls are pushed: a middleware may have changed them.
func (q *Queue) calledAs(ctx context.Context, jobs []lowkiq.Push) {
	r, ok := ctx.Value(repliesKey{}).(*replies)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range jobs {
		to, _ := envelope.ParseAddress(jobs[i].ReplyTo)
		if one := r.waiting[to.Token]; one != nil && !one.stored {
			one.id, one.shard = jobs[i].ID, q.Of(jobs[i].ID)
		}
	}
}

// pushed notes which calls are stored, and says under which ids. The others are not waited for.
func (r *replies) pushed(calls []call, results []Result) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids = make([]string, len(calls))
	for i := range calls {
		ids[i] = calls[i].id
		if calls[i].stored = results[i].Err == nil; !calls[i].stored {
			delete(r.waiting, calls[i].token)
		}
	}
	return ids
}

func (r *replies) leave(calls []call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range calls {
		delete(r.waiting, calls[i].token)
	}
	if r.calling--; r.calling == 0 {
		r.idle = time.Now()
	}
}

// close ends the listening for good, and the calls that wait.
func (r *replies) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.endAll()
	if r.stop != nil {
		r.stop()
	}
}

// endAll ends all calls, of a client that is closed. mu is held.
func (r *replies) endAll() {
	for _, one := range r.waiting {
		one.end(ended{err: ErrClosed})
	}
	clear(r.waiting)
}

// listen hears replies until ctx ends. A connection that breaks, or answers no more, is replaced.
func (r *replies) listen(ctx context.Context, confirmed func()) {
	for ctx.Err() == nil {
		sub := r.subscribe(ctx)
		stop := context.AfterFunc(ctx, func() { sub.Close() }) // unblocks the receive
		r.hear(ctx, sub, confirmed)
		stop()
		sub.Close()
		r.setHeard(false)
		select {
		case <-ctx.Done():
		case <-time.After(wakeRetry):
		}
	}
}

func (r *replies) hear(ctx context.Context, sub subscription, confirmed func()) {
	if sub.Add(ctx, r.channel) != nil {
		return
	}
	for wait := wakeSilence; ; {
		news, err := sub.Receive(ctx, wait)
		switch {
		case err == nil && news.Confirmed:
			r.setHeard(true)
			confirmed()
			wait = wakeSilence
		case err == nil:
			wait = wakeSilence
			r.deliver(news.Payload)
		case redisdb.TimedOut(err) && wait == wakeSilence && sub.Ping(ctx) == nil:
			wait = r.timeout // for the answer
		default:
			return
		}
	}
}

// setHeard notes whether messages arrive. What was told before they did is looked for.
func (r *replies) setHeard(heard bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard = heard; !heard {
		return
	}
	for _, one := range r.waiting {
		if one.stored {
			one.look = time.Time{}
		}
	}
	r.lookNow()
}

func (r *replies) lookNow() {
	select {
	case r.nudge <- struct{}{}:
	default:
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
			one.end(ended{text: text})
			delete(r.waiting, token)
		default:
			one.look = time.Time{}
			r.lookNow()
		}
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
			r.found(some, r.look(ctx, some))
		}
	}
}

// due are the calls whose turn it is. over: there have been none for so long that nothing listens
// any more.
func (r *replies) due(now time.Time) (due []*call, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calling == 0 && now.Sub(r.idle) > replyIdle {
		r.stop()
		r.hears, r.stop = nil, nil
		return nil, true
	}
	for _, one := range r.waiting {
		if !r.heard { // soon, and as long as that lasts
			one.pause = replyLook
			if soon := now.Add(one.pause); one.look.After(soon) {
				one.look = soon
			}
		}
		if one.stored && !now.Before(one.look) {
			one.look = now.Add(one.pause)
			one.pause = min(2*one.pause, replyLookMost)
			due = append(due, one)
		}
	}
	return due, false
}

// found ends the calls of which there is an end now.
func (r *replies) found(calls []*call, ends []ended) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, one := range calls {
		if ends[i] != (ended{}) {
			one.end(ends[i])
			delete(r.waiting, one.token)
		}
	}
}

// lookForReplies asks for the replies to calls that are stored. One whose payload is gone without a
// reply has none to come: Redis has forgotten it, its queue was deleted, or its record set aside.
func (c *Client) lookForReplies(ctx context.Context, calls []*call) []ended {
	script := c.db.Scripts.Reply
	asked := make([]*redisdb.Call, len(calls))
	for i, one := range calls {
		asked[i] = &redisdb.Call{Script: script, Keys: one.shard.keys.For(script), Args: []any{one.token, one.id, 1}}
	}
	c.db.RunAll(ctx, asked)
	ends := make([]ended, len(calls))
	for i, of := range asked {
		switch text := redisdb.Text(of.Reply); {
		case of.Err != nil && (ctx.Err() != nil || Transient(of.Err)): // it is looked for again
		case of.Err != nil:
			ends[i].err = of.Err
		case text == "":
			ends[i].err = lowkiq.ErrNoReply
		case text != string(lowkiq.ReplyPending):
			ends[i].text = text
		}
	}
	return ends
}
