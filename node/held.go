package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// releaseEvery is how often a node looks whether holds and groups of its queues have changed. It asks Redis only if they have.
const releaseEvery = 250 * time.Millisecond

// releaseHeld lets ids of this instance's shards go on that nobody holds any more, and ask again that wait by a rule of groups that has
// changed, until ctx ends.
func (in *instance) releaseHeld(ctx context.Context) {
	every := time.NewTicker(releaseEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			for _, o := range in.claims.All() {
				in.releaseOf(ctx, o)
				in.regroupOf(ctx, o)
			}
		}
	}
}

func (in *instance) releaseOf(ctx context.Context, o *claims.Owned[*runner.Runner]) {
	keep, now := o.Runner.ToRelease(time.Duration(in.node.queues.inForce.asked.Load()))
	if !now {
		return
	}
	n, err := o.Claim.ReleaseHeld(ctx, keep)
	if n > 0 {
		in.log.Info("held ids released", "shard", o.Shard(), "ids", n)
	}
	if err == nil {
		return
	}
	o.Runner.NotReleased()
	if fenced := (*queue.FencedError)(nil); ctx.Err() == nil && !errors.As(err, &fenced) {
		in.ops.warn("release held ids", nil, err)
	}
}

func (in *instance) regroupOf(ctx context.Context, o *claims.Owned[*runner.Runner]) {
	rule, now := o.Runner.ToRegroup()
	if !now {
		return
	}
	n, err := o.Claim.Regroup(ctx, rule)
	if n > 0 {
		in.log.Info("the rule of groups has changed: ids ask again", "shard", o.Shard(), "ids", n)
	}
	if err == nil {
		o.Runner.Regrouped(rule)
		return
	}
	if fenced := (*queue.FencedError)(nil); ctx.Err() == nil && !errors.As(err, &fenced) {
		in.ops.warn("release ids of groups", nil, err)
	}
}
