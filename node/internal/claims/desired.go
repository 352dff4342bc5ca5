package claims

import (
	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Desired is the set of shards that an instance should run. It does not change.
type Desired struct {
	All bool // every shard of the queues that are handled here, whatever Of says
	Of  map[lowkiq.Shard]bool
	// Known reports whether the set is final, because it is from a plan, or because there is no plan to wait for.
	Known bool
	plan  *plan.Assignment // the plan that gave the set, nil if none did
}

// Includes reports whether a shard is desired.
func (d *Desired) Includes(s lowkiq.Shard) bool { return d.All || d.Of[s] }

// Situation has the facts that decide which shards are desired.
type Situation struct {
	Drained    bool                  // an operator asked the node to give its shards away
	Static     map[lowkiq.Shard]bool // the shards of a static node, nil for other nodes
	Clustered  bool                  // the node is in a cluster
	Superseded bool                  // a newer process has the node's name
	Plan       *plan.Assignment      // the cluster's last plan, nil if it has agreed on none yet
	Alone      bool                  // neither leases nor gossip show another process
	MayStart   bool                  // the lease holds, and the instance does not drain
}

// DesiredShards returns the shards that node should run. was is the answer before, and owned returns
// the shards that have a runner now.
//
//	situation                                   desired
//	drained, or superseded                      none
//	static                                      the shards that its configuration names
//	in no cluster                               all
//	there is a plan                             the node's shards of the plan
//	no plan yet, alone                          all
//	no plan yet, not alone                      the shards that it has, and no others
//
// A node that is alone need not wait for its own election. If it only seems to be alone, claims keep the shards safe, because a
// live owner keeps its shards. The first plan starts from the claims that it finds. A node that is not alone keeps its shards
// until the plan, so that nothing stands still, and claims no others, so that the plan need not take them away again.
func (s Situation) DesiredShards(node string, was *Desired, owned func() map[lowkiq.Shard]bool) *Desired {
	switch {
	case s.Drained:
		return &Desired{Known: true}
	case s.Static != nil:
		return &Desired{Of: s.Static, Known: true}
	case !s.Clustered:
		return &Desired{All: true, Known: true}
	case s.Superseded:
		return &Desired{Known: true}
	case s.Plan == nil:
		alone := s.Alone && s.MayStart
		return &Desired{All: alone, Of: owned(), Known: alone}
	case was != nil && was.plan == s.Plan:
		return was // a plan may have 100,000 shards, and this runs in each round
	}
	d := &Desired{Known: true, plan: s.Plan, Of: map[lowkiq.Shard]bool{}}
	for _, shard := range s.Plan.Owned(node) {
		d.Of[shard] = true
	}
	return d
}

// refreshDesired makes the claims use the shards that are desired now.
func (c *Claims[R]) refreshDesired() { c.desired.Store(c.p.Desired(c.desired.Load())) }

// IsDesired reports whether a shard is desired.
func (c *Claims[R]) IsDesired(s lowkiq.Shard) bool { return c.desired.Load().Includes(s) }

// OwnedSet returns the shards that have a runner.
func (c *Claims[R]) OwnedSet() map[lowkiq.Shard]bool {
	held := map[lowkiq.Shard]bool{}
	for _, o := range c.All() {
		held[o.Shard()] = true
	}
	return held
}
