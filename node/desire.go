package node

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
)

// Which shards the node should run, and how it parts with the others.

// desire says which shards to run, and whether that is known at all.
type desire struct {
	wants func(lowkiq.Shard) bool
	known bool
}

// everything is the desire of a node without a cluster.
var everything = &desire{func(lowkiq.Shard) bool { return true }, true}

// look finds out what this node should run now.
func (in *instance) look(ctx context.Context) {
	in.desired.Store(in.desire(ctx))
}

func (in *instance) desire(ctx context.Context) *desire {
	none := func(lowkiq.Shard) bool { return false }
	c := in.node.cluster
	switch {
	case in.node.drained.Load():
		return &desire{none, true}
	case c == nil:
		return everything
	case c.taken.Load() != nil:
		return &desire{none, true}
	}
	assignment := c.agent.Assignment()
	if assignment.Generation != (rebalance.Generation{}) {
		name := in.node.cfg.Name
		return &desire{func(s lowkiq.Shard) bool { return assignment.Owner(s) == name }, true}
	}
	// Nothing was ever agreed. A node that is alone need not wait for its own election:
	// the claims keep it safe, and the first plan starts from them. So it keeps what it
	// has when others come before that plan.
	view, err := c.look(ctx)
	alone := err == nil && view.Leased && len(view.Peers) == 1 && !in.draining.Load()
	held := in.held()
	return &desire{func(s lowkiq.Shard) bool { return alone || held[s] }, alone}
}

// held are the shards that have a runner.
func (in *instance) held() map[lowkiq.Shard]bool {
	held := map[lowkiq.Shard]bool{}
	for _, r := range in.all() {
		held[r.claim.Shard.Shard] = true
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
	return assignment.Generation == (rebalance.Generation{}) || sinceBoot()-in.begun > 2*in.node.cfg.TTL ||
		slices.Contains(assignment.Nodes, in.node.cfg.Name)
}

// wants reports whether the node should run a shard.
func (in *instance) wants(s lowkiq.Shard) bool {
	return in.desired.Load().wants(s)
}

// giveUp hands over the shards that the node should not run any more: each finishes
// its batches in flight, acknowledges, and releases.
func (c *claimer) giveUp() {
	for _, r := range c.all() {
		s := r.claim.Shard
		if c.wants(s.Shard) || r.leaving.Swap(true) {
			continue
		}
		delete(c.asked, s.Shard)
		begun := time.Now()
		idle := r.stop()
		c.handovers.Go(func() {
			<-idle
			c.release(c.io, r)
			c.node.metrics.Handover.Observe(time.Since(begun).Seconds())
			c.deafen(r)
			c.kick()
		})
	}
}

// deafen ends the subscription of a shard that is gone.
func (in *instance) deafen(r *runner) {
	in.mu.Lock()
	delete(in.heard, r.claim.Shard.Shard)
	in.mu.Unlock()
	if err := in.wakes.Remove(in.io, r.claim.Shard); err != nil {
		in.trouble("unsubscribe", r.claim.Shard, err)
	}
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
		case <-in.keeper.lost:
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
	in.keeper.poke()
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
