package protocol

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// pendingCall is a call whose payload has not ended yet.
type pendingCall struct {
	token  string
	ended  chan callEnd    // receives the end, once
	memory *memory.Account // of the caller; nil if its memory is not bounded

	// Guarded by the mu of the replies:
	id         string
	queue      *Queue        // its latest layout has the shard of the id
	stored     bool          // Redis has confirmed the push; the id does not change any more
	checkAt    time.Time     // when to look for the reply in Redis
	checkPause time.Duration // how long to wait after that
}

// callEnd is the end of a call: the text of its reply, or why there is none.
type callEnd struct {
	text string
	kept bool // the text is the state alone, because there was no memory for the rest
	err  error
}

const (
	callBytes   = 4 << 10 // memory of a waiting call
	replyCopies = 3       // copies of a reply that exist until the caller has it
)

// reserveReply takes memory for a reply of n bytes, and reports whether there was enough.
func (call *pendingCall) reserveReply(n int) bool {
	return call.memory.Take(replyCopies*int64(n)) == nil
}

// newEnd returns the end of the call with this reply, or with the state alone if there is no memory for the
// reply.
func (call *pendingCall) newEnd(text string) callEnd {
	if call.reserveReply(len(text)) {
		return callEnd{text: text}
	}
	state, _, _ := strings.Cut(text, "\n")
	return callEnd{text: strings.Clone(state), kept: true}
}

// finish ends the call unless it has ended.
func (call *pendingCall) finish(end callEnd) {
	select {
	case call.ended <- end:
	default:
	}
}

// replies receives the ends of this client's calls. Redis publishes them on a channel of the client. A message
// may be lost, so replies also looks for the stored replies, less and less often. Both go on while there are
// calls, and replyIdleTime longer.
type replies struct {
	channel   string
	timeout   time.Duration                          // for an answer of Redis
	subscribe func(ctx context.Context) subscription // opens a connection to listen
	// fetch reads the stored replies of calls. The end of a call without a reply is empty.
	fetch func(ctx context.Context, calls []*pendingCall) []callEnd

	mu         sync.Mutex              // guards the fields below
	waiting    map[string]*pendingCall // calls without an end, by token
	calling    int                     // runs of Calls that have not returned
	idleSince  time.Time               // since when calling is 0
	stop       context.CancelFunc      // ends listening
	subscribed chan struct{}           // closed when Redis has confirmed the first subscription; nil if nothing listens
	connected  bool                    // the subscription is confirmed, and its connection has not broken since
	closed     bool

	work  sync.WaitGroup
	nudge chan struct{} // makes checkUntilIdle look at once
}

// subscription is the part of redisdb.Subscription that replies needs.
type subscription interface {
	Add(ctx context.Context, channels ...string) error
	Receive(ctx context.Context, patience time.Duration) (redisdb.News, error)
	Ping(ctx context.Context) error
	Close() error
}

func newReplies(c *Client) *replies {
	return &replies{
		channel: c.db.Keys.Replies(newToken()), timeout: c.cfg.Timeout, fetch: c.fetchReplies,
		subscribe: func(ctx context.Context) subscription { return c.db.Subscribe(ctx) },
		waiting:   map[string]*pendingCall{}, nudge: make(chan struct{}, 1),
	}
}

const (
	replyCheck       = time.Second            // after this time the client looks for a reply for the first time
	maxReplyCheck    = 16 * time.Second       // the time doubles up to this, while the subscription is connected
	replyIdleTime    = time.Minute            // how long a client listens after its last call
	maxSubscribeWait = 250 * time.Millisecond // how long a call waits for the first subscription; after that it relies on looking
	repliesPerFetch  = 500                    // replies of a request
)

// addCalls fills in calls that are about to be pushed, and waits until the client listens for their replies. It
// returns the channel for their addresses. leave ends the waiting.
func (r *replies) addCalls(ctx context.Context, q *Queue, jobs []lowkiq.Push, calls []pendingCall) (channel string, leave func()) {
	r.mu.Lock()
	look := time.Now().Add(replyCheck)
	for i := range calls {
		calls[i] = pendingCall{token: newToken(), id: jobs[i].ID, queue: q, ended: make(chan callEnd, 1), memory: memory.AccountOf(ctx), checkAt: look, checkPause: replyCheck}
		r.waiting[calls[i].token] = &calls[i]
	}
	if r.closed { // the push will fail as well
		r.finishAll()
		r.mu.Unlock()
		return r.channel, func() {}
	}
	r.calling++
	if r.subscribed == nil {
		r.subscribed = make(chan struct{})
		listening, cancel := context.WithCancel(context.Background()) // also for later calls
		r.stop = cancel
		hears := r.subscribed
		r.work.Go(func() { r.listen(listening, sync.OnceFunc(func() { close(hears) })) })
		r.work.Go(func() { r.checkUntilIdle(listening) })
	}
	hears := r.subscribed
	r.mu.Unlock()
	select {
	case <-hears:
	case <-ctx.Done():
	case <-time.After(maxSubscribeWait):
	}
	return r.channel, func() { r.removeCalls(calls) }
}

// repliesKey is the key of the client's replies in the context of a call's push.
type repliesKey struct{}

// updateCallIDs records the stored ids of calls. A middleware may have changed them.
func (q *Queue) updateCallIDs(ctx context.Context, jobs []lowkiq.Push) {
	r, ok := ctx.Value(repliesKey{}).(*replies)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range jobs {
		to, _ := envelope.ParseAddress(jobs[i].ReplyTo)
		if call := r.waiting[to.Token]; call != nil && !call.stored {
			call.id = jobs[i].ID
		}
	}
}

// markStored records which calls are stored, and returns the ids of all. Calls that are not stored wait no longer.
func (r *replies) markStored(calls []pendingCall, results []Result) (ids []string) {
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

// removeCalls ends the waiting of calls.
func (r *replies) removeCalls(calls []pendingCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range calls {
		delete(r.waiting, calls[i].token)
	}
	if r.calling--; r.calling == 0 {
		r.idleSince = time.Now()
	}
}

// close ends listening for good, and all waiting calls with ErrClosed.
func (r *replies) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.finishAll()
	if r.stop != nil {
		r.stop()
	}
}

// finishAll ends all waiting calls with ErrClosed. The caller holds mu.
func (r *replies) finishAll() {
	for _, call := range r.waiting {
		call.finish(callEnd{err: ErrClosed})
	}
	clear(r.waiting)
}

// listen receives replies until ctx ends. It replaces a connection that breaks or does not answer any more. It
// calls confirmed whenever Redis has confirmed a subscription.
func (r *replies) listen(ctx context.Context, confirmed func()) {
	for ctx.Err() == nil {
		sub := r.subscribe(ctx)
		stop := context.AfterFunc(ctx, func() { sub.Close() }) // unblocks the receive
		r.receiveReplies(ctx, sub, confirmed)
		stop()
		sub.Close()
		r.setConnected(false)
		select {
		case <-ctx.Done():
		case <-time.After(wakeRetry):
		}
	}
}

// receiveReplies receives replies from one connection until the connection fails. A silent connection is tested
// with a ping.
func (r *replies) receiveReplies(ctx context.Context, sub subscription, confirmed func()) {
	if sub.Add(ctx, r.channel) != nil {
		return
	}
	for wait := wakeSilence; ; {
		news, err := sub.Receive(ctx, wait)
		switch {
		case err == nil && news.Confirmed:
			r.setConnected(true)
			confirmed()
			wait = wakeSilence
		case err == nil:
			wait = wakeSilence
			r.deliverMessage(news.Payload)
		case redisdb.TimedOut(err) && wait == wakeSilence && sub.Ping(ctx) == nil:
			wait = r.timeout // for the answer to the ping
		default:
			return
		}
	}
}

// setConnected records whether messages arrive. When they begin to arrive, it lets the client look for the
// replies that were published before.
func (r *replies) setConnected(heard bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected = heard; !heard {
		return
	}
	for _, call := range r.waiting {
		if call.stored {
			call.checkAt = time.Time{}
		}
	}
	r.checkNow()
}

// checkNow makes checkUntilIdle look for replies at once.
func (r *replies) checkNow() {
	select {
	case r.nudge <- struct{}{}:
	default:
	}
}

// deliverMessage ends the calls that a message names: "<token> ... <token>\n<reply>". A long reply is not in the
// message, which then has the tokens alone. The reply is read from Redis.
func (r *replies) deliverMessage(message string) {
	tokens, text, whole := strings.Cut(message, "\n")
	r.mu.Lock()
	defer r.mu.Unlock()
	for token := range strings.SplitSeq(tokens, " ") {
		call := r.waiting[token]
		switch {
		case call == nil:
		case whole:
			call.finish(call.newEnd(text))
			delete(r.waiting, token)
		default:
			call.checkAt = time.Time{}
			r.checkNow()
		}
	}
}

// checkUntilIdle looks for stored replies of calls without a message. It ends after there has been no call
// for replyIdleTime.
func (r *replies) checkUntilIdle(ctx context.Context) {
	tick := time.NewTicker(replyCheck / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.nudge:
		}
		due, over := r.dueCalls(time.Now())
		if over {
			return
		}
		for some := range slices.Chunk(due, repliesPerFetch) {
			r.finishFound(some, r.fetch(ctx, some))
		}
	}
}

// dueCalls returns the calls to look for now. If there has been no call for replyIdleTime, it ends listening and
// returns over = true.
func (r *replies) dueCalls(now time.Time) (due []*pendingCall, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calling == 0 && now.Sub(r.idleSince) > replyIdleTime {
		r.stop()
		r.subscribed, r.stop = nil, nil
		return nil, true
	}
	for _, call := range r.waiting {
		if !r.connected { // no message arrives, so look often
			call.checkPause = replyCheck
			if soon := now.Add(call.checkPause); call.checkAt.After(soon) {
				call.checkAt = soon
			}
		}
		if call.stored && !now.Before(call.checkAt) {
			call.checkAt = now.Add(call.checkPause)
			call.checkPause = min(2*call.checkPause, maxReplyCheck)
			due = append(due, call)
		}
	}
	return due, false
}

// finishFound ends the calls whose ends are not empty. ends has the end of each call, in the same order.
func (r *replies) finishFound(calls []*pendingCall, ends []callEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, call := range calls {
		if ends[i] != (callEnd{}) {
			call.finish(ends[i])
			delete(r.waiting, call.token)
		}
	}
}

// The first request for replies returns short replies, and the lengths of long replies. Long replies are then
// read in groups.
const (
	maxShortReply = 1 << 10 // bytes of a reply that the first request returns
	maxLongBytes  = 4 << 20 // bytes of a group, unless a single reply is longer
)

// fetchReplies reads the replies of stored calls. A call ends with lowkiq.ErrNoReply if its payload is gone
// without a reply: Redis lost it, its queue was deleted, or its record was set aside.
func (c *Client) fetchReplies(ctx context.Context, calls []*pendingCall) []callEnd {
	ends := make([]callEnd, len(calls))
	var long []int // indexes of calls with long replies
	bytes := 0     // of these replies
	for i, text := range c.runReplyScript(ctx, calls, maxShortReply, ends) {
		var n int
		var state string
		if _, err := fmt.Sscanf(text, "long %d %s", &n, &state); err != nil {
			if text != "" {
				ends[i] = calls[i].newEnd(text)
			}
			continue
		}
		if !calls[i].reserveReply(n) {
			ends[i] = callEnd{text: state, kept: true}
			continue
		}
		if bytes+n > maxLongBytes {
			c.fetchLongReplies(ctx, calls, long, ends)
			long, bytes = nil, 0
		}
		long, bytes = append(long, i), bytes+n
	}
	c.fetchLongReplies(ctx, calls, long, ends)
	return ends
}

// fetchLongReplies reads the replies of the calls with the given indexes, however long they are. Their memory must be
// reserved.
func (c *Client) fetchLongReplies(ctx context.Context, calls []*pendingCall, which []int, ends []callEnd) {
	some, of := make([]*pendingCall, len(which)), make([]callEnd, len(which))
	for k, i := range which {
		some[k] = calls[i]
	}
	texts := c.runReplyScript(ctx, some, math.MaxInt32, of)
	for k, i := range which {
		ends[i] = callEnd{text: texts[k], err: of[k].err}
	}
}

// runReplyScript reads the replies of calls. It returns their texts, "" if a call has no reply yet. For a reply longer
// than maxBytes the text is "long <bytes> <state>". If a call will have no reply, runReplyScript sets its end to
// the reason.
func (c *Client) runReplyScript(ctx context.Context, calls []*pendingCall, maxBytes int, ends []callEnd) (texts []string) {
	looks := make([]replyLook, len(calls))
	var asked []*redisdb.Call
	for i, call := range calls {
		looks[i] = call.queue.lookForReply(call.token, call.id, true, maxBytes)
		asked = append(asked, looks[i].asked...)
	}
	c.db.RunAll(ctx, asked)
	texts = make([]string, len(calls))
	for i := range looks {
		switch text, err := looks[i].answer(); {
		case err != nil && (ctx.Err() != nil || Transient(err)): // the next check reads it again
		case err != nil:
			ends[i].err = err
		case text == "":
			if looks[i].isOver(ctx) {
				ends[i].err = lowkiq.ErrNoReply
			}
		case text != string(lowkiq.ReplyPending):
			texts[i] = text
		}
	}
	return texts
}

// replyLook is a look for the reply of a call. It asks the shard of the id, and its shards in former layouts, because
// replies are not copied.
type replyLook struct {
	queue   *Queue // in the newest layout that is asked
	layouts layouts
	asked   []*redisdb.Call
}

// lookForReply prepares a look for a reply. See lua/reply.lua.
func (q *Queue) lookForReply(token, id string, anyPayload bool, maxBytes int) replyLook {
	q = q.Latest()
	script, args := q.registry.db.Scripts.Reply, []any{token, id, 0, maxBytes}
	if anyPayload {
		args[2] = 1
	}
	look := replyLook{queue: q, layouts: q.layouts()}
	for _, s := range append([]*Shard{q.Of(id)}, q.FormerShards(id, MaxKeep+time.Hour)...) {
		look.asked = append(look.asked, &redisdb.Call{Script: script, Keys: s.keys.For(script), Args: args})
	}
	return look
}

// answer returns the answer of the shards, "" if none has a reply or the payload.
func (l *replyLook) answer() (text string, err error) {
	for _, of := range l.asked {
		switch got := redisdb.Text(of.Reply); {
		case of.Err != nil:
			err = of.Err
		case text == "" || text == string(lowkiq.ReplyPending) && got != "":
			text = got
		}
	}
	if text != "" && text != string(lowkiq.ReplyPending) {
		err = nil
	}
	return text, err
}

// isOver reports whether a look that found nothing proves that there is no reply and no payload. It proves nothing if jobs
// moved to another layout at some time during the look, because the payload may have been in a frozen shard or on its way.
// So isOver reads the entry of the queue after the look, and compares it with the entry before the look.
func (l *replyLook) isOver(ctx context.Context) bool {
	_, entry, err := l.queue.registry.Stored(ctx, l.queue.Name)
	switch {
	case errors.Is(err, lowkiq.ErrUnknownQueue): // Redis has lost the entry
		return true
	case err != nil:
		return !Transient(err)
	case entry.Layout != l.queue.layout:
		return !entry.hasLeft(l.queue.layout) // deleted and registered anew
	}
	l.queue.registry.mu.Lock()
	l.queue.setEntry(entry) // the next look begins with it
	l.queue.registry.mu.Unlock()
	return l.layouts == entry.layouts() && !l.layouts.moving
}

// layouts identifies the state of a queue's layouts. No reshard began or ended between two equal values.
type layouts struct {
	layout, tried int
	moving        bool // jobs are frozen or are being copied, or a reshard has begun
}

func (e RegistryEntry) layouts() layouts {
	return layouts{e.Layout, e.Tried, e.Reshard != nil || e.Copying()}
}

func (q *Queue) layouts() layouts {
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.entry.layouts()
}
