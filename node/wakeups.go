package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/clock"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/relay"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// wakeups finds work for an instance. It follows wake-up messages of the shards, and polls for work whose messages were missed.
type wakeups struct {
	client   *protocol.Client
	news     *protocol.Wakes
	claims   *claims.Claims[*runner.Runner]
	clock    *clock.Remote
	ops      *operations
	interval time.Duration // between two polls
	io       context.Context
	drain    func(on bool) // an operator asks for it
	relay    *relay.Relay
}

// followNews applies wake-up messages until ctx ends.
func (w *wakeups) followNews(ctx context.Context) {
	if err := w.news.Run(ctx, w.applyNews); err != nil && ctx.Err() == nil {
		w.ops.log.Error("wake-ups end; polling goes on", "err", err)
	}
}

// applyNews applies a wake-up message. Messages about work may be late, repeated or lost. A message makes a runner or the relay
// look into Redis and changes nothing by itself, and the polls find work whose message was lost. When Redis confirms a
// subscription, earlier messages of the shard may have been missed.
func (w *wakeups) applyNews(news protocol.Wake) {
	if news.Lost {
		w.markUnsubscribed()
		return
	}
	o := w.claims.Get(news.Shard)
	if news.Confirmed {
		o = w.claims.ConfirmSubscription(news.Shard)
		w.lookForFollowUps(o)
	}
	switch {
	case news.Asked != nil:
		w.answerQuestion(news.Asked)
	case news.Drain != "":
		w.drain(news.Drain == "on")
	case news.Wanted != 0:
		w.claims.ReleaseForgotten(news.Shard, news.Wanted)
	case news.Outgoing:
		if o != nil {
			w.relay.Kick(o.Claim.Shard, false)
		}
	case o == nil:
		w.claims.RetryFreed(news.Shard)
	case news.Parked:
		o.Runner.WakeParked()
	case news.Due.IsZero():
		o.Runner.Wake()
	default:
		o.Runner.WakeAt(news.Due)
	}
}

// lookForFollowUps makes the relay look at a shard whose messages may have been missed.
func (w *wakeups) lookForFollowUps(o *ownedShard) {
	if o != nil {
		w.relay.Kick(o.Claim.Shard, true)
	}
}

// answerPatience bounds the answer to a question of another node, because messages of shards wait behind it.
const answerPatience = 250 * time.Millisecond

// answerQuestion tells another node where an id is.
func (w *wakeups) answerQuestion(q *protocol.Question) {
	ctx, cancel := context.WithTimeout(w.io, answerPatience)
	defer cancel()
	if err := w.client.Answer(ctx, q, w.locateOrCancel(q.Shard, q.ID, q.Cancel)); err != nil {
		w.ops.logWarning("answer", q.Shard, err)
	}
}

// locateOrCancel returns whether an id in flight waits for a handler call, or is in a call. If it is in a call and cancel is not
// nil, locateOrCancel cancels the call.
func (w *wakeups) locateOrCancel(s lowkiq.Shard, id string, cancel *protocol.Cancellation) protocol.Whereabouts {
	o := w.claims.Get(s)
	if o == nil {
		return protocol.Whereabouts{}
	}
	where := o.Runner.Whereabouts(id)
	where.Cancelled = cancel != nil && o.Runner.Cancel(id, *cancel)
	return where
}

// markUnsubscribed records that messages may be missed until subscriptions are confirmed again.
func (w *wakeups) markUnsubscribed() {
	w.claims.ForgetSubscriptions()
	for _, o := range w.claims.All() {
		o.Runner.MarkUnsubscribed(w.interval)
	}
}

const maxPeekShards = 200 // shards per request

// pollShards polls idle shards until ctx ends, maxPeekShards with each request.
func (w *wakeups) pollShards(ctx context.Context) {
	every(ctx, w.interval, func() { w.pollOnce(ctx, sinceBoot()) })
}

func (w *wakeups) pollOnce(ctx context.Context, now time.Duration) {
	var page []*ownedShard
	for _, o := range w.claims.All() {
		if o.Runner.PollDue(now, w.interval) {
			page = append(page, o)
		}
		if len(page) == maxPeekShards {
			w.peekShards(ctx, page)
			page = nil
		}
	}
	w.peekShards(ctx, page)
}

// peekShards wakes the runners of shards with due jobs, and sets the alarms of the others.
func (w *wakeups) peekShards(ctx context.Context, page []*ownedShard) {
	if len(page) == 0 {
		return
	}
	shards := make([]*protocol.Shard, len(page))
	for i, o := range page {
		shards[i] = o.Claim.Shard
	}
	seen, err := w.client.PeekDue(ctx, shards...)
	if err != nil {
		w.ops.logWarning("peek", nil, err)
		return
	}
	for _, p := range seen {
		if !p.Next.IsZero() {
			now, _ := w.client.Time(ctx) // Redis's clock may have jumped; zero if unknown
			w.clock.Set(now)
			break
		}
	}
	for i, o := range page {
		if seen[i].Ready {
			o.Runner.Wake()
		} else if !seen[i].Next.IsZero() {
			o.Runner.WakeAt(seen[i].Next)
		}
	}
}
