package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

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

func (in *instance) trimMorgue(ctx context.Context, claim *protocol.Claim) {
	on := in.node.queues.handled[claim.Queue]
	rules := on.rulesNow()
	payloads, err := claim.TrimMorgue(ctx, rules.Morgue.PerShard(rules.Shards), rules.Morgue.For)
	on.metrics.Trimmed.Add(float64(payloads))
	if fenced := (*protocol.FencedError)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &fenced) { // the runner of a lost shard notices the loss itself
		in.ops.logWarning("trim the morgue", nil, err)
	}
}
