package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// wakeups are how an instance notices work: news of its shards, and polls for what news miss.
type wakeups struct {
	client   *queue.Client
	news     *queue.Wakes
	claims   *claims.Claims[*runner.Runner]
	clock    *redisClock
	ops      *operations
	interval time.Duration // between two polls
	io       context.Context
	drain    func(on bool) // an operator asks for it
}

// listen follows wake-ups until ctx ends.
func (w *wakeups) listen(ctx context.Context) {
	if err := w.news.Run(ctx, w.noticed); err != nil && ctx.Err() == nil {
		w.ops.log.Error("wake-ups end; polling goes on", "err", err)
	}
}

// noticed takes in one piece of news.
func (w *wakeups) noticed(news queue.Wake) {
	if news.Lost {
		w.unsubscribed()
		return
	}
	o := w.claims.Get(news.Shard)
	if news.Confirmed {
		o = w.claims.Subscribed(news.Shard)
	}
	switch {
	case news.Asked != nil:
		w.answer(news.Asked)
	case news.Drain != "":
		w.drain(news.Drain == "on")
	case news.Wanted != 0:
		w.claims.Wanted(news.Shard, news.Wanted)
	case o == nil:
		w.claims.Freed(news.Shard)
	case news.Parked:
		o.Runner.Parked()
	case news.Due.IsZero():
		o.Runner.Wake()
	default:
		o.Runner.WakeAt(news.Due)
	}
}

// answerPatience is for the answer to another node's question: news of shards wait behind it.
const answerPatience = 250 * time.Millisecond

// answer tells the node that asks where an id is.
func (w *wakeups) answer(q *queue.Question) {
	ctx, cancel := context.WithTimeout(w.io, answerPatience)
	defer cancel()
	if err := w.client.Answer(ctx, q, w.whereabouts(q.Shard, q.ID, q.Cancel)); err != nil {
		w.ops.warn("answer", q.Shard, err)
	}
}

// whereabouts says where an id in flight is: does it wait for a process, or has a handler begun? Then that is cancelled, unless
// cancel is nil.
func (w *wakeups) whereabouts(s lowkiq.Shard, id string, cancel *queue.Cancellation) queue.Whereabouts {
	o := w.claims.Get(s)
	if o == nil {
		return queue.Whereabouts{}
	}
	where := o.Runner.Whereabouts(id)
	where.Cancelled = cancel != nil && o.Runner.Cancel(id, *cancel)
	return where
}

// unsubscribed notes that news may be missed until subscriptions are confirmed again.
func (w *wakeups) unsubscribed() {
	w.claims.Unsubscribed()
	for _, o := range w.claims.All() {
		o.Runner.Unsubscribed(w.interval)
	}
}

const peekPage = 200 // shards in a round trip

// poll looks at idle shards in pages, one round trip each, until ctx ends.
func (w *wakeups) poll(ctx context.Context) {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w.pollOnce(ctx, sinceBoot())
	}
}

func (w *wakeups) pollOnce(ctx context.Context, now time.Duration) {
	var page []*ownedShard
	for _, o := range w.claims.All() {
		if o.Runner.PollDue(now, w.interval) {
			page = append(page, o)
		}
		if len(page) == peekPage {
			w.peek(ctx, page)
			page = nil
		}
	}
	w.peek(ctx, page)
}

// peek wakes the runners whose shard has something due.
func (w *wakeups) peek(ctx context.Context, page []*ownedShard) {
	if len(page) == 0 {
		return
	}
	shards := make([]*queue.Shard, len(page))
	for i, o := range page {
		shards[i] = o.Claim.Shard
	}
	seen, err := w.client.PeekDue(ctx, shards...)
	if err != nil {
		w.ops.warn("peek", nil, err)
		return
	}
	for _, p := range seen {
		if !p.Next.IsZero() {
			now, _ := w.client.Time(ctx) // Redis's clock may have jumped; zero if unknown
			w.clock.saw(now)
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
