package node

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Which shards the node should run, and how it parts with the others.

// desire says which shards to run, and whether that is known at all.
type desire struct {
	all    bool // every shard of the node's queues; of is not looked at
	of     map[lowkiq.Shard]bool
	known  bool
	agreed *plan.Assignment // what it was made from, nil if from none
}

// wants reports whether a shard is desired.
func (d *desire) wants(s lowkiq.Shard) bool { return d.all || d.of[s] }

// everything is the desire of a node without a cluster.
var everything = &desire{all: true, known: true}

// look finds out what this node should run now.
func (in *instance) look() {
	in.desired.Store(in.desire())
}

func (in *instance) desire() *desire {
	c := in.node.cluster
	switch {
	case in.node.drained.Load():
		return &desire{known: true}
	case c == nil:
		return everything
	case c.taken.Load() != nil:
		return &desire{known: true}
	}
	assignment := c.agent.Assignment()
	if assignment.Generation != (plan.Generation{}) {
		return in.desireOf(assignment)
	}
	// Nothing was ever agreed. A node that is alone need not wait for its own election:
	// the claims keep it safe, and the first plan starts from them. So it keeps what it
	// has when others come before that plan.
	alone := c.alone() && in.keeper.Holds() && !in.draining.Load()
	return &desire{all: alone, of: in.held(), known: alone}
}

// desireOf is what an assignment gives this node. It is made once: there may be a
// hundred thousand shards, and many looks.
func (in *instance) desireOf(agreed *plan.Assignment) *desire {
	if was := in.desired.Load(); was != nil && was.agreed == agreed {
		return was
	}
	d := &desire{known: true, agreed: agreed, of: map[lowkiq.Shard]bool{}}
	for _, s := range agreed.Owned(in.node.cfg.Name) {
		d.of[s] = true
	}
	return d
}

// alone reports whether the last look saw this process's lease and nobody else: no other
// lease, nobody alive by gossip.
func (c *cluster) alone() bool {
	recent := c.sight.recent.Load()
	if recent == nil || len(recent.live) == 0 { // not even this one: its lease is new
		c.sight.stale.Store(true)
		c.agent.Wake()
	}
	if recent == nil || len(recent.live) != 1 || recent.live[0].Boot != c.node.boot || sinceBoot()-recent.at > c.node.cfg.TTL/2 {
		return false
	}
	return !slices.ContainsFunc(c.gossip.Members(), func(m membership.Member) bool {
		return m.State == membership.Alive && m.Instance.Boot != c.node.boot
	})
}

// held are the shards that have a runner.
func (in *instance) held() map[lowkiq.Shard]bool {
	held := map[lowkiq.Shard]bool{}
	for _, r := range in.all() {
		held[r.shard.Shard] = true
	}
	return held
}

// placed reports whether the plan takes account of this node: it was given shards, or
// had long enough to be, and there are none for it. A rolling restart waits for that.
func (in *instance) placed() bool {
	c := in.node.cluster
	if c == nil {
		return true
	}
	assignment := c.agent.Assignment()
	return assignment.Generation == (plan.Generation{}) || sinceBoot()-in.begun > 2*in.node.cfg.TTL ||
		slices.Contains(assignment.Nodes, in.node.cfg.Name)
}

// wants reports whether the node should run a shard.
func (in *instance) wants(s lowkiq.Shard) bool {
	return in.desired.Load().wants(s)
}

// giveUp parts with the shards that the node should not run any more, and with those that
// it must claim anew: each finishes its batches in flight, acknowledges, and releases.
func (c *claimer) giveUp() {
	for _, r := range c.all() {
		wanted := c.wants(r.shard.Shard)
		if wanted && !r.run.Over() || r.leaving.Swap(true) {
			continue
		}
		begun, pause := time.Now(), c.pauseOf(r)
		idle := r.run.Stop()
		c.handovers.Go(func() {
			<-idle
			c.rest(pause)
			c.part(r)
			if !wanted {
				c.node.metrics.Handover.Observe(time.Since(begun).Seconds())
			}
			c.kick()
		})
	}
}

// strayPause is how long a shard rests that is to be claimed anew again and again. The first
// time it is not: Redis has forgotten something, and that is all.
const strayPause = 5 * time.Second

// rest waits for d, or until the instance is to stop.
func (in *instance) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-in.stop.Done():
	case <-in.keeper.Lost():
	case <-timer.C:
	}
}

// pauseOf is how long a shard rests before it is released.
func (c *claimer) pauseOf(r *ownedShard) (pause time.Duration) {
	s, now := r.shard.Shard, sinceBoot()
	if !r.run.OutOfSync() {
		return 0
	}
	if last, before := c.strayed[s]; before && now-last < 2*strayPause {
		pause = strayPause
	}
	c.strayed[s] = now
	return pause
}

// drainPatience is how long a leaving node waits for a plan that names new owners.
const drainPatience = time.Second

// handOver lets the plan take the shards one by one before the node leaves: a shard
// goes on working until its next owner is named. It returns when all are gone, when no
// other node could take them, or after drainPatience.
func (in *instance) handOver() {
	c := in.node.cluster
	if c == nil {
		return
	}
	in.announce()
	ctx, cancel := context.WithTimeout(in.io, drainPatience)
	defer cancel()
	if view, err := c.look(ctx); err == nil && !in.replaceable(view) {
		return
	}
	for len(in.all()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-in.keeper.Lost():
			return
		case <-in.parted:
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

// announce tells the cluster at once what changed of this instance.
func (in *instance) announce() {
	in.keeper.Poke()
	if c := in.node.cluster; c != nil {
		draining := in.leaves()
		c.sight.stale.Store(true)
		c.publish(func(m *membership.Meta) { m.N, m.Draining = in.number, draining })
	}
}

// leaves reports whether the instance gives its shards away.
func (in *instance) leaves() bool { return in.draining.Load() || in.node.drained.Load() }

// drain gives all shards away, or takes some again, until the process ends.
func (n *Node) drain(on bool) {
	if n.drained.Swap(on) == on {
		return
	}
	n.log.Info("drain", "on", on)
	if in := n.current.Load(); in != nil {
		in.announce()
		in.kick()
	}
}
