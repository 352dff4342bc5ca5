package node

import (
	"context"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// trimMorgues keeps the morgues of this instance's shards within the bounds of their queues, until ctx ends.
func (in *instance) trimMorgues(ctx context.Context) {
	every(ctx, in.node.cfg.trimEvery, func() {
		for _, o := range in.claims.All() {
			in.trimMorgue(ctx, o.Claim)
		}
	})
}

func (in *instance) trimMorgue(ctx context.Context, claim *protocol.Claim) {
	on := in.node.queues.handled[claim.Queue]
	rules := on.rulesNow()
	payloads, err := claim.TrimMorgue(ctx, rules.Morgue.PerShard(rules.Shards), rules.Morgue.For)
	on.metrics.Trimmed.Add(float64(payloads))
	in.warnOfShard(ctx, "trim the morgue", claim.Shard.Shard, err)
}
