package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance"
)

// ownedShard is a shard that the instance has claimed, with what works on it.
type ownedShard = claims.Owned[*runner.Runner]

// claimsRedis is the Redis of an instance's claims.
type claimsRedis struct {
	*queue.Client
	wakes *queue.Wakes
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
	return s.Want(ctx, owner)
}

func (r claimsRedis) Subscribe(ctx context.Context, shards ...*queue.Shard) error {
	return r.wakes.Add(ctx, shards...)
}

func (r claimsRedis) Unsubscribe(ctx context.Context, shards ...*queue.Shard) error {
	return r.wakes.Remove(ctx, shards...)
}

// newClaims makes the claims of an instance.
func (in *instance) newClaims() *claims.Claims[*runner.Runner] {
	n := in.node
	return claims.New(claims.Process[*runner.Runner]{
		Instance: in.name, TTL: n.cfg.TTL, Redis: claimsRedis{n.client, in.wakes}, Log: in.log, Now: n.cfg.now,
		Stop: in.stop, IO: in.io, Lost: in.keeper.Lost(),
		MayWork: in.mayWork, LeaseMissing: in.keeper.Missing, Desired: in.desires, Placed: in.placed,
		Prunes: func() bool { return n.cluster == nil || !n.cluster.LooksAway() },
		Shards: n.handledShards, Shard: n.handledShard,
		Gone: n.process.Gone, Ended: n.process.Ended,
		Gossip: func(instance string) (succeeded, departed bool) {
			if n.cluster == nil {
				return false, false
			}
			return n.cluster.Dead(instance)
		},
		Start: func(claim *queue.Claim) *runner.Runner {
			s := claim.Shard.Shard
			return runner.New(in.process, in.queues[s.Queue], s, claim.Fence, claim)
		},
		Trouble: in.trouble,
		Told: claims.Told{
			Claimed: in.claimed, Gone: in.gone, Fenced: n.metrics.Fenced, AllOwned: n.settled.Store,
			Left: func(took time.Duration) { n.metrics.Handover.Observe(took.Seconds()) },
		},
	}, n.absent)
}

// handledShards are those of all queues that are handled here.
func (n *Node) handledShards() (shards []*queue.Shard) {
	for _, on := range n.queues {
		if on.queue != nil {
			shards = append(shards, on.queue.All()...)
		}
	}
	return shards
}

// handledShard is nil for a shard that is not handled here.
func (n *Node) handledShard(s lowkiq.Shard) *queue.Shard {
	if on := n.queues[s.Queue]; on != nil && s.Index >= 0 && s.Index < on.shards() {
		return on.queue.Shard(s.Index)
	}
	return nil
}

func (in *instance) claimed(claim *queue.Claim, unowned time.Duration) {
	on, all := in.node.queues[claim.Shard.Queue].metrics, in.node.metrics
	on.Redelivered.Add(float64(claim.Recovered))
	on.Buried.Add(float64(claim.Buried))
	on.Owned.Inc()
	all.Moves.Inc()
	if claim.Unreplicated {
		all.Unreplicated.Inc()
	}
	all.Unowned.Observe(unowned.Seconds())
}

func (in *instance) gone(s lowkiq.Shard) {
	if in.refusals.forget(s) {
		in.keeper.Poke()
	}
	in.node.queues[s.Queue].metrics.Owned.Dec()
	in.node.metrics.Moves.Inc()
}

// desires says which shards this instance should run.
func (in *instance) desires(was *claims.Desired) *claims.Desired {
	n := in.node
	s := claims.Situation{Drained: n.drained.Load(), MayStart: in.keeper.Holds() && !in.draining.Load()}
	if c := n.cluster; c != nil {
		s.Clustered, s.Superseded, s.Plan = true, c.Superseded(), n.agreed()
		s.Alone = s.Plan == nil && c.Alone()
	}
	return s.Decide(n.cfg.Name, was, in.claims.Held)
}

// placed reports whether the plan takes account of this node: it was given shards, or had long enough to
// be, and there are none for it. A rolling restart waits for that.
func (in *instance) placed() bool {
	plan := in.node.agreed()
	return plan == nil || sinceBoot()-in.begun > 2*in.node.cfg.TTL || slices.Contains(plan.Nodes, in.node.cfg.Name)
}

// drainPatience is how long a leaving node waits for a plan that names new owners.
const drainPatience = time.Second

// handOver lets the plan take the shards one by one before the node leaves: a shard goes on working
// until its next owner is named. It returns when all are gone, when no other node could take them, or
// after drainPatience.
func (in *instance) handOver() {
	c := in.node.cluster
	if c == nil {
		return
	}
	in.announce()
	ctx, cancel := context.WithTimeout(in.io, drainPatience)
	defer cancel()
	if view, err := c.Look(ctx); err == nil && !in.replaceable(view) {
		return
	}
	for len(in.claims.All()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-in.keeper.Lost():
			return
		case <-in.claims.Gone():
		}
	}
}

// replaceable reports whether another node can take this one's shards.
func (in *instance) replaceable(view rebalance.View) bool {
	return slices.ContainsFunc(view.Peers, func(p rebalance.Peer) bool {
		return p.Leased && !p.Draining && !p.Superseded && p.Boot != in.node.boot &&
			slices.ContainsFunc(p.Queues, func(q string) bool { return in.node.queues[q] != nil })
	})
}

// orphans is what the scanner of orphaned shards needs: the leader scans, without a cluster the first
// instance by name.
func (in *instance) orphans() claims.Orphans {
	n := in.node
	return claims.Orphans{
		Leads: in.leads,
		Queues: func() map[string]int {
			registry := n.registry.Load()
			if registry == nil {
				return nil
			}
			shards := make(map[string]int, len(registry.all))
			for name, entry := range registry.all {
				shards[name] = entry.Shards
			}
			return shards
		},
		Shards: func(ctx context.Context, name string) ([]*queue.Shard, error) {
			q, err := n.leases.Queue(ctx, name)
			if err != nil {
				return nil, err
			}
			return q.All(), nil
		},
		Found: func(name string, unowned []*queue.Shard, handled bool) {
			n.metrics.SetUnowned(name, len(unowned), handled)
			n.unowned.set(name, unowned)
		},
		Forget: func(name string) {
			n.metrics.ForgetQueue(name)
			n.unowned.set(name, nil)
		},
		Resign: func() {
			n.metrics.NoUnowned()
			n.unowned.forget()
		},
	}
}

// leads returns the leases of now, and whether this process is the one that scans for orphaned shards.
func (in *instance) leads(ctx context.Context) (live []identity.Lease, leads bool) {
	if c := in.node.cluster; c != nil {
		live, _, known := c.Live()
		return live, known && c.Status().Leading
	}
	instances, err := in.node.leases.Instances(ctx)
	if err != nil {
		in.trouble("read the leases", nil, err)
		return nil, false
	}
	leads = true
	for _, other := range instances {
		if info, err := identity.ParseLease(other.Lease); err == nil && other.Lease != nil {
			live = append(live, info)
			leads = leads && in.name <= other.Name
		}
	}
	return live, leads
}

// unowned are the shards that no live instance owns, as this process found while it leads: a scrape reads
// their figures, or a queue that no node handles would have no lag. A queue's are found anew with each
// look at it.
type unowned struct {
	mu     sync.Mutex
	shards map[string][]*queue.Shard // by queue
}

func (u *unowned) set(name string, shards []*queue.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shards == nil {
		u.shards = map[string][]*queue.Shard{}
	}
	u.shards[name] = shards
}

func (u *unowned) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shards = nil
}

// list returns the shards that the instance has not come to own meanwhile.
func (u *unowned) list(in *instance) (list []*queue.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, shards := range u.shards {
		for _, s := range shards {
			if in.claims.Get(s.Shard) == nil {
				list = append(list, s)
			}
		}
	}
	return list
}
