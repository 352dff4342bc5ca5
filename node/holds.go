package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// releaseInterval is the time between two checks for changed holds and groups. A check sends requests only after a change.
const releaseInterval = 250 * time.Millisecond

// watchHolds releases ids of this instance's shards that are no longer held, until ctx ends. After a change of the rule
// groups, it also makes ids due that wait by the old rule.
func (in *instance) watchHolds(ctx context.Context) {
	every := time.NewTicker(releaseInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			for _, o := range in.claims.All() {
				in.releaseHeldIDs(ctx, o)
				in.regroupIDs(ctx, o)
				in.storeDeadTo(ctx, o)
			}
		}
	}
}

// releaseHeldIDs releases held ids of a shard, if the runner asks for it.
func (in *instance) releaseHeldIDs(ctx context.Context, o *claims.Owned[*runner.Runner]) {
	keep, now := o.Runner.ShouldReleaseHeld(time.Duration(in.node.queues.inForce.askedAt.Load()))
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
	o.Runner.RetryReleaseHeld()
	if fenced := (*protocol.FencedError)(nil); ctx.Err() == nil && !errors.As(err, &fenced) {
		in.ops.logWarning("release held ids", nil, err)
	}
}

// storeDeadTo stores the queue of dead payloads in a shard if the rule then has changed since the claim.
func (in *instance) storeDeadTo(ctx context.Context, o *claims.Owned[*runner.Runner]) {
	err := o.Claim.StoreDeadTo(ctx, in.node.queues.handled[o.Shard().Queue].rulesNow().Then.Dead)
	if fenced := (*protocol.FencedError)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &fenced) {
		in.ops.logWarning("store the queue of dead payloads", nil, err)
	}
}

// regroupIDs makes ids due that groups have put off, if the runner asks for it.
func (in *instance) regroupIDs(ctx context.Context, o *claims.Owned[*runner.Runner]) {
	todo, now := o.Runner.ShouldRegroup(in.node.cfg.TTL)
	if !now {
		return
	}
	n, err := o.Claim.Regroup(ctx, todo.Store)
	if n > 0 {
		in.log.Info("the rule groups has changed, and ids ask again", "shard", o.Shard(), "ids", n)
	}
	if err == nil {
		o.Runner.MarkRegrouped(todo)
		return
	}
	if fenced := (*protocol.FencedError)(nil); ctx.Err() == nil && !errors.As(err, &fenced) {
		in.ops.logWarning("release ids of groups", nil, err)
	}
}
