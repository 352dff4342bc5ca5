package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq"
)

// followInterval is the time between two checks for changed rules. A check sends requests only after a change.
const followInterval = 250 * time.Millisecond

// followRules makes this instance's shards follow changes of the rules, until ctx ends. It releases ids that are no longer
// held, makes ids due that wait by an old rule groups, and stores the queue of dead payloads, which the rule then names.
func (in *instance) followRules(ctx context.Context) {
	every(ctx, followInterval, func() {
		for _, o := range in.claims.All() {
			in.releaseHeldIDs(ctx, o)
			in.regroupIDs(ctx, o)
			in.storeDeadTo(ctx, o)
		}
	})
}

// releaseHeldIDs releases held ids of a shard, if the runner asks for it.
func (in *instance) releaseHeldIDs(ctx context.Context, o *ownedShard) {
	keep, now := o.Runner.ShouldReleaseHeld(time.Duration(in.node.queues.inForce.askedAt.Load()))
	if !now {
		return
	}
	n, err := o.Claim.ReleaseHeld(ctx, keep)
	if n > 0 {
		in.log.Info("held ids released", "shard", o.Shard(), "ids", n)
	}
	if err != nil {
		o.Runner.RetryReleaseHeld()
	}
	in.warnOfShard(ctx, "release held ids", o.Shard(), err)
}

// storeDeadTo stores the queue of dead payloads in a shard if the rule then has changed since the claim.
func (in *instance) storeDeadTo(ctx context.Context, o *ownedShard) {
	err := o.Claim.StoreDeadTo(ctx, in.node.queues.handled[o.Shard().Queue].rulesNow().Then.Dead)
	in.warnOfShard(ctx, "store the queue of dead payloads", o.Shard(), err)
}

// regroupIDs makes ids due that groups have put off, if the runner asks for it.
func (in *instance) regroupIDs(ctx context.Context, o *ownedShard) {
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
	}
	in.warnOfShard(ctx, "release ids of groups", o.Shard(), err)
}

// warnOfShard logs an error of a shard's operation. It leaves out the loss of the claim, because the runner of a lost shard
// notices the loss itself.
func (in *instance) warnOfShard(ctx context.Context, op string, s lowkiq.Shard, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, lowkiq.ErrFenced) {
		in.ops.logWarning(op, s, err)
	}
}
