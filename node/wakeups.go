package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// How a node notices work: wake-ups, and polls for what wake-ups miss.

// listen follows wake-ups until ctx ends.
func (in *instance) listen(ctx context.Context) {
	if err := in.wakes.Run(ctx, in.noticed); err != nil && ctx.Err() == nil {
		in.log.Error("wake-ups end; polling goes on", "err", err)
	}
}

// noticed takes in one piece of news.
func (in *instance) noticed(w queue.Wake) {
	if w.Lost {
		in.unsubscribed()
		return
	}
	o := in.claims.Get(w.Shard)
	if w.Confirmed {
		o = in.claims.Subscribed(w.Shard)
	}
	switch {
	case w.Asked != nil:
		in.answer(w.Asked)
	case w.Drain != "":
		in.node.drain(w.Drain == "on")
	case w.Wanted != 0:
		in.claims.Wanted(w.Shard, w.Wanted)
	case o == nil:
		in.claims.Freed(w.Shard)
	case w.Due.IsZero():
		o.Runner.Wake()
	default:
		o.Runner.WakeAt(w.Due)
	}
}

// unsubscribed notes that news may be missed until subscriptions are confirmed again.
func (in *instance) unsubscribed() {
	in.claims.Unsubscribed()
	for _, o := range in.claims.All() {
		o.Runner.Unsubscribed(in.node.cfg.PollInterval)
	}
}

const peekPage = 200

// poll looks at idle shards in pages, one round trip each, until ctx ends.
func (in *instance) poll(ctx context.Context) {
	interval := in.node.cfg.PollInterval
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		in.pollOnce(ctx, sinceBoot(), interval)
	}
}

func (in *instance) pollOnce(ctx context.Context, now, interval time.Duration) {
	var page []*ownedShard
	for _, o := range in.claims.All() {
		if o.Runner.PollDue(now, interval) {
			page = append(page, o)
		}
		if len(page) == peekPage {
			in.peek(ctx, page)
			page = nil
		}
	}
	in.peek(ctx, page)
}

// peek wakes the runners whose shard has something due.
func (in *instance) peek(ctx context.Context, page []*ownedShard) {
	if len(page) == 0 {
		return
	}
	shards := make([]*queue.Shard, len(page))
	for i, o := range page {
		shards[i] = o.Claim.Shard
	}
	seen, err := in.node.client.Peek(ctx, shards...)
	if err != nil {
		in.trouble("peek", nil, err)
		return
	}
	for _, p := range seen {
		if !p.Next.IsZero() {
			now, _ := in.node.client.Time(ctx) // Redis's clock may have jumped; zero if unknown
			in.clock(now)
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
