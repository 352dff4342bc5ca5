package claims

import (
	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Desired says which shards an instance should run.
type Desired struct {
	All bool // every shard of the queues that are handled; Of is not looked at
	Of  map[lowkiq.Shard]bool
	// Known: the shards are those of a plan, or there is none to wait for.
	Known bool
	plan  *plan.Assignment // what it was made from; nil: from none
}

// Wants reports whether a shard is desired.
func (d *Desired) Wants(s lowkiq.Shard) bool { return d.All || d.Of[s] }

// Situation is what decides which shards are desired.
type Situation struct {
	Drained    bool             // an operator asked the node to give its shards away
	Clustered  bool             // the node is in a cluster
	Superseded bool             // a newer process has the node's name
	Plan       *plan.Assignment // agreed by the cluster; nil: none ever was
	Alone      bool             // no other process is seen, neither by its lease nor by gossip
	MayStart   bool             // the lease holds, and the instance does not drain
}

// Decide says which shards are desired of node, which was to run others before.
//
//	situation                                   desired
//	drained, or superseded                      none
//	in no cluster                               all
//	there is a plan                             what it gives the node
//	no plan yet, alone                          all: the node need not wait for its own election.
//	                                            Claims keep it safe, and the first plan starts from them
//	no plan yet, not alone                      what it has, and nothing new, until that plan
func (s Situation) Decide(node string, was *Desired, held func() map[lowkiq.Shard]bool) *Desired {
	switch {
	case s.Drained:
		return &Desired{Known: true}
	case !s.Clustered:
		return &Desired{All: true, Known: true}
	case s.Superseded:
		return &Desired{Known: true}
	case s.Plan == nil:
		alone := s.Alone && s.MayStart
		return &Desired{All: alone, Of: held(), Known: alone}
	case was != nil && was.plan == s.Plan:
		return was // there may be a hundred thousand shards, and many looks
	}
	d := &Desired{Known: true, plan: s.Plan, Of: map[lowkiq.Shard]bool{}}
	for _, shard := range s.Plan.Owned(node) {
		d.Of[shard] = true
	}
	return d
}

// look finds out which shards are desired now.
func (c *Claims[R]) look() { c.desired.Store(c.p.Desired(c.desired.Load())) }

// Desires reports whether a shard is desired.
func (c *Claims[R]) Desires(s lowkiq.Shard) bool { return c.desired.Load().Wants(s) }

// Held are the shards that have a runner.
func (c *Claims[R]) Held() map[lowkiq.Shard]bool {
	held := map[lowkiq.Shard]bool{}
	for _, o := range c.All() {
		held[o.Shard()] = true
	}
	return held
}
