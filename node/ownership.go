package node

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance"
)

// ownedShard is a shard that the instance has claimed, with its runner.
type ownedShard = claims.Owned[*runner.Runner]

// ownership joins an instance's claims to the cluster. It decides which shards the instance should have, and hands them
// over when the instance leaves.
type ownership struct {
	claims   *claims.Claims[*runner.Runner]
	node     string // name of the node
	boot     string
	ttl      time.Duration
	begun    time.Duration                         // time when the instance was made, by sinceBoot
	cluster  *cluster.Cluster                      // nil without a cluster
	static   atomic.Pointer[map[lowkiq.Shard]bool] // of a static node, otherwise nil
	keeper   *lease.Keeper
	queues   *queues
	metrics  *metrics.Metrics
	drained  *atomic.Bool // an operator has asked the node to give its shards away
	draining atomic.Bool  // the process ends
}

// isLeaving reports whether the instance gives its shards away.
func (o *ownership) isLeaving() bool { return o.draining.Load() || o.drained.Load() }

// desiredShards returns the shards that the instance should run. was is the previous answer.
func (o *ownership) desiredShards(was *claims.Desired) *claims.Desired {
	s := claims.Situation{Drained: o.drained.Load(), MayStart: o.keeper.Holds() && !o.draining.Load(), Plan: o.cluster.AgreedPlan()}
	if own := o.static.Load(); own != nil {
		s.Static = *own
	}
	if c := o.cluster; c != nil {
		s.Clustered, s.Superseded, s.Alone = true, c.Superseded(), s.Plan == nil && c.Alone()
	}
	return s.DesiredShards(o.node, was, o.claims.OwnedSet)
}

// isPlaced reports whether the plan includes this node, or has had enough time to do so and has no shards for it. A rolling
// restart waits for that.
func (o *ownership) isPlaced() bool {
	plan := o.cluster.AgreedPlan()
	return plan == nil || sinceBoot()-o.begun > 2*o.ttl || slices.Contains(plan.Nodes, o.node)
}

// countShards returns how many shards of each handled queue the instance owns. It leaves out a built-in queue that is not registered.
func (o *ownership) countShards() map[string]int {
	counts := make(map[string]int, len(o.queues.handled))
	for name, on := range o.queues.handled {
		if !on.builtIn || on.queue.Load() != nil {
			counts[name] = 0
		}
	}
	for shard := range o.claims.OwnedSet() {
		counts[shard.Queue]++
	}
	return counts
}

// countCalls returns how many handler calls run.
func (o *ownership) countCalls() (n int64) {
	for _, owned := range o.claims.All() {
		n += owned.Runner.Calls()
	}
	return n
}

// countClaim counts a shard that the instance has claimed. unowned is the time since its first attempt to claim the shard.
func (o *ownership) countClaim(claim *protocol.Claim, unowned time.Duration) {
	of := o.queues.handled[claim.Shard.Queue].metrics
	of.Redelivered.Add(float64(claim.Recovered))
	if claim.Buried > 0 { // counts payloads of a single id, because a claim buries only an id that was alone in flight
		of.Buried.Inc()
	}
	of.Owned.Inc()
	o.metrics.Moves.Inc()
	if claim.Unreplicated {
		o.metrics.Unreplicated.Inc()
	}
	o.metrics.Unowned.Observe(unowned.Seconds())
}

// countRelease counts a shard that the instance has given back, or lost.
func (o *ownership) countRelease(s lowkiq.Shard) {
	o.queues.handled[s.Queue].metrics.Owned.Dec()
	o.metrics.Moves.Inc()
}

// drainPatience is the time that a leaving node waits for a plan with new owners.
const drainPatience = time.Second

// handOver lets the plan take the shards one by one before the node leaves. Work on a shard goes on until the plan names the
// next owner. handOver returns when all shards are gone, when no other node could take them, or after drainPatience.
func (o *ownership) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	if view, err := o.cluster.ReadView(ctx); err == nil && !o.hasSuccessor(view) {
		return
	}
	for len(o.claims.All()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-o.keeper.Lost():
			return
		case <-o.claims.Removed():
		}
	}
}

// hasSuccessor reports whether another node can take shards of this node.
func (o *ownership) hasSuccessor(view rebalance.View) bool {
	return slices.ContainsFunc(view.Peers, func(p rebalance.Peer) bool {
		return p.Leased && !p.Draining && !p.Superseded && p.Boot != o.boot &&
			slices.ContainsFunc(p.Queues, func(q string) bool { return o.queues.handled[q] != nil })
	})
}

// claimsRedis implements claims.Redis.
type claimsRedis struct {
	client *protocol.Client
	leases *queuelease.Index
	news   *protocol.Wakes
}

func (r claimsRedis) Owners(ctx context.Context, shards []*protocol.Shard) ([]protocol.Owner, error) {
	return r.client.Owners(ctx, shards)
}

func (r claimsRedis) Instance(ctx context.Context, name string) (queuelease.Instance, error) {
	return r.leases.Instance(ctx, name)
}

func (r claimsRedis) Instances(ctx context.Context) ([]queuelease.Instance, error) {
	return r.leases.All(ctx)
}

func (r claimsRedis) EndLease(ctx context.Context, name string) error { return r.leases.End(ctx, name) }

func (r claimsRedis) DropLease(ctx context.Context, name string) error {
	return r.leases.Drop(ctx, name)
}

func (claimsRedis) Claim(ctx context.Context, s *protocol.Shard, instance string, cause protocol.Cause, seen protocol.Owner) (*protocol.Claim, error) {
	return s.Claim(ctx, instance, cause, seen)
}

func (claimsRedis) Release(ctx context.Context, claim *protocol.Claim) error {
	_, err := claim.Release(ctx)
	return err
}

func (claimsRedis) Adopt(s *protocol.Shard, instance string, fence int64) *protocol.Claim {
	return s.Adopt(instance, fence)
}

func (claimsRedis) RequestRelease(ctx context.Context, s *protocol.Shard, owner protocol.Owner) error {
	return s.RequestRelease(ctx, owner)
}

func (r claimsRedis) Subscribe(ctx context.Context, shards ...*protocol.Shard) error {
	return r.news.Add(ctx, shards...)
}

func (r claimsRedis) Unsubscribe(ctx context.Context, shards ...*protocol.Shard) error {
	return r.news.Remove(ctx, shards...)
}
