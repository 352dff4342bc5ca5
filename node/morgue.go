package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Morgue says how many ids a queue's morgue keeps, those buried last, and for how long after their last burial. What is
// beyond that is forgotten for good within a quarter of a minute. 0: any number, for ever.
type Morgue struct {
	Keep int
	For  time.Duration
}

// perShard is how many ids one shard keeps; 0: any number.
func (m Morgue) perShard(shards int) int {
	shards = max(1, shards)
	return (m.Keep + shards - 1) / shards
}

func morgueShown(m Morgue) any {
	if m == (Morgue{}) {
		return "all"
	}
	shown := map[string]any{}
	if m.Keep > 0 {
		shown["keep"] = m.Keep
	}
	if m.For > 0 {
		shown["for"] = rules.Duration(m.For)
	}
	return shown
}

// trimMorgues keeps the morgues of this instance's shards within the bounds of their queues, until ctx ends.
func (in *instance) trimMorgues(ctx context.Context) {
	every := time.NewTicker(in.node.cfg.trimEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			for _, o := range in.claims.All() {
				in.trimMorgue(ctx, o.Claim)
			}
		}
	}
}

func (in *instance) trimMorgue(ctx context.Context, claim *queue.Claim) {
	on := in.node.queues.handled[claim.Queue]
	rule := on.rulesNow().Morgue
	payloads, err := claim.TrimMorgue(ctx, rule.perShard(on.shards()), rule.For)
	on.metrics.Trimmed.Add(float64(payloads))
	if fenced := (*queue.FencedError)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &fenced) { // who works on it will know
		in.ops.warn("trim the morgue", nil, err)
	}
}
