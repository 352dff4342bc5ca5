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
	"github.com/lowkiq/lowkiq/queue"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/rebalance"
)

// ownedShard is a shard that the instance has claimed, with what works on it.
type ownedShard = claims.Owned[*runner.Runner]

// ownership joins an instance's claims to the cluster: which shards it should have, and how it
// hands them over when it leaves.
type ownership struct {
	claims   *claims.Claims[*runner.Runner]
	node     string // its name
	boot     string
	ttl      time.Duration
	begun    time.Duration    // sinceBoot when the instance was made
	cluster  *cluster.Cluster // nil: none
	keeper   *lease.Keeper
	queues   *queues
	metrics  *metrics.Metrics
	drained  *atomic.Bool // an operator asked the node to give its shards away
	draining atomic.Bool  // the process ends
}

// leaves reports whether the instance gives its shards away.
func (o *ownership) leaves() bool { return o.draining.Load() || o.drained.Load() }

// desires says which shards the instance should run.
func (o *ownership) desires(was *claims.Desired) *claims.Desired {
	s := claims.Situation{Drained: o.drained.Load(), MayStart: o.keeper.Holds() && !o.draining.Load(), Plan: o.cluster.Agreed()}
	if c := o.cluster; c != nil {
		s.Clustered, s.Superseded, s.Alone = true, c.Superseded(), s.Plan == nil && c.Alone()
	}
	return s.Decide(o.node, was, o.claims.Held)
}

// placed reports whether the plan takes account of this node: it was given shards, or had long
// enough to be, and there are none for it. A rolling restart waits for that.
func (o *ownership) placed() bool {
	plan := o.cluster.Agreed()
	return plan == nil || sinceBoot()-o.begun > 2*o.ttl || slices.Contains(plan.Nodes, o.node)
}

// counts are how many shards of each handled queue the instance owns.
func (o *ownership) counts() map[string]int {
	counts := make(map[string]int, len(o.queues.handled))
	for name := range o.queues.handled {
		counts[name] = 0
	}
	for shard := range o.claims.Held() {
		counts[shard.Queue]++
	}
	return counts
}

// running is how many handler calls run.
func (o *ownership) running() (n int64) {
	for _, owned := range o.claims.All() {
		n += owned.Runner.Calls()
	}
	return n
}

// claimed counts a shard that the instance has got; unowned is for how long it tried to.
func (o *ownership) claimed(claim *queue.Claim, unowned time.Duration) {
	of := o.queues.handled[claim.Shard.Queue].metrics
	of.Redelivered.Add(float64(claim.Recovered))
	if claim.Buried > 0 { // payloads, all of one id: only one that was alone in flight is buried for its crashes
		of.Buried.Inc()
	}
	of.Owned.Inc()
	o.metrics.Moves.Inc()
	if claim.Unreplicated {
		o.metrics.Unreplicated.Inc()
	}
	o.metrics.Unowned.Observe(unowned.Seconds())
}

// released counts one that it has given back, or lost.
func (o *ownership) released(s lowkiq.Shard) {
	o.queues.handled[s.Queue].metrics.Owned.Dec()
	o.metrics.Moves.Inc()
}

// drainPatience is how long a leaving node waits for a plan that names new owners.
const drainPatience = time.Second

// handOver lets the plan take the shards one by one before the node leaves: a shard goes on working
// until its next owner is named. It returns when all are gone, when no other node could take them,
// or after drainPatience.
func (o *ownership) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	if view, err := o.cluster.Look(ctx); err == nil && !o.replaceable(view) {
		return
	}
	for len(o.claims.All()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-o.keeper.Lost():
			return
		case <-o.claims.Gone():
		}
	}
}

// replaceable reports whether another node can take this one's shards.
func (o *ownership) replaceable(view rebalance.View) bool {
	return slices.ContainsFunc(view.Peers, func(p rebalance.Peer) bool {
		return p.Leased && !p.Draining && !p.Superseded && p.Boot != o.boot &&
			slices.ContainsFunc(p.Queues, func(q string) bool { return o.queues.handled[q] != nil })
	})
}

// claimsRedis is the Redis of an instance's claims.
type claimsRedis struct {
	client *queue.Client
	leases *queuelease.Index
	news   *queue.Wakes
}

func (r claimsRedis) Owners(ctx context.Context, shards []*queue.Shard) ([]queue.Owner, error) {
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

func (claimsRedis) Claim(ctx context.Context, s *queue.Shard, instance string, cause queue.Cause, seen queue.Owner) (*queue.Claim, error) {
	return s.Claim(ctx, instance, cause, seen)
}

func (claimsRedis) Release(ctx context.Context, claim *queue.Claim) error {
	_, err := claim.Release(ctx)
	return err
}

func (claimsRedis) Adopt(s *queue.Shard, instance string, fence int64) *queue.Claim {
	return s.Adopt(instance, fence)
}

func (claimsRedis) RequestRelease(ctx context.Context, s *queue.Shard, owner queue.Owner) error {
	return s.RequestRelease(ctx, owner)
}

func (r claimsRedis) Subscribe(ctx context.Context, shards ...*queue.Shard) error {
	return r.news.Add(ctx, shards...)
}

func (r claimsRedis) Unsubscribe(ctx context.Context, shards ...*queue.Shard) error {
	return r.news.Remove(ctx, shards...)
}
