// Package plan computes which node should own which shard. It is pure: it has values in and values
// out, and the same values give the same plan on any node.
//
//	the assignment as it is ──┐
//	the nodes                 ├──> [Compute] ──> the next assignment, and each move with its reason
//	the queues                ┘
//
// # The goals of a plan, in their order
//
//  1. Every shard has an owner that may have it. A node may own a queue's shards if it
//     handles the queue and does not drain. A node whose handler is not ready counts as a node
//     that does not handle the queue, unless no other node's handler is ready either. A
//     laggard, which does not learn of new plans, keeps its shards and gets no others.
//  2. Each queue is shared by weight. A node's quota is shards x weight / sum of weights,
//     rounded down or up.
//  3. The totals of the nodes over all queues are as even as roundings can make them.
//  4. As few shards as possible move (I5).
//
// When a shard has lost its owner, goal 4 goes before goal 3. Living nodes then keep their shards,
// and totals are as even as that allows. The next plan evens out the rest.
//
// An example with 3 queues of 3 shards and 2 nodes follows. Each quota is 1.5. So of each queue one
// node has 1 shard and the other 2. The rounding decides who has 2:
//
//	          rounded down         spare    rounded up     totals
//	q1   a: 1.5 -> 1   b: 1.5 -> 1   1         a           a: 2 + 1 + 2 = 5
//	q2   a: 1          b: 1          1         b           b: 1 + 2 + 1 = 4
//	q3   a: 1          b: 1          1         a
//
// # Why so few shards move
//
// A plan starts from the present owners. A node keeps its shards up to its quota. Only shards above a
// quota, and shards without an owner, are dealt to nodes below theirs. Among equally even roundings,
// the plan takes a rounding that gives the spare shards to nodes that have them already.
//
// From a balanced assignment, and with equal weights, a departure moves only the departed node's
// shards. With unequal weights no rounding of quotas can promise that (Balinski and Young, Fair
// Representation, 1982). The number of moves is still the least possible then.
//
// The steps are functions in this order: keepShards, setQuotas (plan.go), roundShares (round.go),
// shedShards, dealShards (plan.go). The package also has the wire forms of assignments (encode.go).
package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// MaxWeight is the largest weight that counts.
const MaxWeight = 1_000_000

// Node is a node as a plan sees it. Names are unique within a plan.
type Node struct {
	Name     string
	Weight   int        // its part relative to the other nodes; below 1 counts as 1
	Queues   []string   // the queues it handles, in any order
	Unready  []string   // queues among these whose handler cannot work
	Draining bool       // it gives its shards away and gets no others
	Laggard  bool       // it has stopped applying assignments, so it keeps its shards and gets no others
	Applied  Generation // the last generation that a laggard has applied
}

// Reason says why a shard moves.
type Reason uint8

const (
	ReasonUnowned  Reason = iota + 1 // no node owned it
	ReasonGone                       // its owner is gone
	ReasonDraining                   // its owner is draining
	ReasonHandler                    // its owner no longer handles the queue
	ReasonUnready                    // its owner's handler is not ready
	ReasonBalance                    // its owner has more than its quota
)

// String returns the reason in words, as shown to people.
func (r Reason) String() string {
	switch r {
	case ReasonUnowned:
		return "no owner"
	case ReasonGone:
		return "owner gone"
	case ReasonDraining:
		return "owner draining"
	case ReasonHandler:
		return "owner does not handle the queue"
	case ReasonUnready:
		return "owner's handler not ready"
	case ReasonBalance:
		return "owner above its share"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Move is a shard that gets another owner. To is "" if no node can own it.
type Move struct {
	Change
	Reason Reason
}

// Result is the outcome of Compute.
type Result struct {
	Next      *Assignment // has the generation of the assignment that was planned from
	Moves     []Move      // ordered by queue and shard index
	OwnerLost bool        // a shard had lost its owner, so the next plan may make totals more even
}

// OnlyEvens reports whether the plan moves shards only to make totals more even. Every shard has an
// owner that may have it.
func (r *Result) OnlyEvens() bool {
	return len(r.Moves) > 0 && !slices.ContainsFunc(r.Moves, func(m Move) bool { return m.Reason != ReasonBalance })
}

// Compute returns the next assignment; see the package's comment for the rules. The arguments are
// sets, and their order does not matter. A queue that is not in queues is dropped.
func Compute(current *Assignment, nodes []Node, queues []lowkiq.Queue) Result {
	p := newPlanner(current.withoutUnapplied(nodes), nodes, queues)
	for i := range p.queues {
		p.keepShards(&p.queues[i])
		p.setQuotas(&p.queues[i])
	}
	p.roundShares()
	for i := range p.queues {
		p.shedShards(&p.queues[i])
		p.dealShards(&p.queues[i])
	}
	return p.buildResult()
}

// planner is the state of a Compute. It knows nodes by their index.
type planner struct {
	current   *Assignment
	nodes     []Node   // ascending by name
	weights   []int64  // by node; from 1 to MaxWeight
	hashes    []uint64 // by node; hash of its name
	index     []int32  // from current.Nodes to nodes; None for a node that is gone
	totals    []int64  // by node; its shards of all queues, without the shards that laggards keep
	shareOf   []int32  // by node; its share of the queue at hand, or noShare, or keepsOnly
	queues    []queuePlan
	ownerLost bool // a shard has lost its owner, which is gone, leaves, or cannot handle the queue any more
}

const (
	noShare   int32 = -1 // the node may not own shards of the queue
	keepsOnly int32 = -2 // the node is a laggard, and keeps its shards of the queue outside the quotas
)

// queuePlan is the plan of a queue.
type queuePlan struct {
	name     string
	was      []int32 // owners as indexes into current.Nodes; may be shorter than owners
	owners   []int32 // owners as indexes into nodes
	laggards []int32 // nodes that keep their shards and get no others
	shares   []share // of the nodes that may get shards, ascending by node
	pinned   int     // shards that laggards keep
	spare    int     // shards beyond the quotas rounded down; as many quotas are rounded up
}

// share is a node's part of a queue.
type share struct {
	node       int32
	have       int32 // shards that it owns and may keep
	quota      int32 // shards that it should own; rounded down until roundShares
	fractional bool  // the quota has a fraction, and may be rounded up
}

func newPlanner(current *Assignment, nodes []Node, queues []lowkiq.Queue) *planner {
	p := &planner{
		current: current,
		nodes:   slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }),
		weights: make([]int64, len(nodes)),
		hashes:  make([]uint64, len(nodes)),
		totals:  make([]int64, len(nodes)),
		shareOf: make([]int32, len(nodes)),
		queues:  make([]queuePlan, len(queues)),
	}
	names := make([]string, len(nodes))
	for i, n := range p.nodes {
		names[i] = n.Name
		p.weights[i], p.hashes[i] = int64(min(max(n.Weight, 1), MaxWeight)), hashName(n.Name)
	}
	p.index = indexesIn(current.Nodes, names)
	for i, q := range queues {
		p.queues[i] = queuePlan{name: q.Name, was: current.ownersOf(q.Name), owners: make([]int32, q.Shards)}
	}
	slices.SortFunc(p.queues, func(a, b queuePlan) int { return cmp.Compare(a.name, b.name) })
	p.findHandlers()
	return p
}

// findHandlers gives each node a share of the queues that it handles. A node whose handler is not
// ready has a share only of queues without a ready node.
func (p *planner) findHandlers() {
	byName := make(map[string]*queuePlan, len(p.queues))
	for i := range p.queues {
		byName[p.queues[i].name] = &p.queues[i]
	}
	unready := map[*queuePlan][]int32{}
	for i, n := range p.nodes {
		if n.Draining {
			continue
		}
		for _, name := range n.Queues {
			q := byName[name]
			switch {
			case q == nil:
			case n.Laggard:
				q.laggards = append(q.laggards, int32(i))
			case slices.Contains(n.Unready, name):
				unready[q] = append(unready[q], int32(i))
			default:
				q.addShare(int32(i))
			}
		}
	}
	for q, nodes := range unready {
		if len(q.shares) > 0 {
			continue
		}
		for _, node := range nodes {
			q.addShare(node)
		}
	}
}

// addShare gives a node a share. A queue that a node lists twice counts once.
func (q *queuePlan) addShare(node int32) {
	if k := len(q.shares); k == 0 || q.shares[k-1].node != node {
		q.shares = append(q.shares, share{node: node})
	}
}

// sharesOf fills p.shareOf for the queue.
func (p *planner) sharesOf(q *queuePlan) {
	for i := range p.shareOf {
		p.shareOf[i] = noShare
	}
	for _, node := range q.laggards {
		p.shareOf[node] = keepsOnly
	}
	for i, s := range q.shares {
		p.shareOf[s.node] = int32(i)
	}
}

// keepShards leaves each shard with its owner if the owner may keep it, and counts these shards.
func (p *planner) keepShards(q *queuePlan) {
	p.sharesOf(q)
	for i := range q.owners {
		q.owners[i] = None
		if i >= len(q.was) || q.was[i] == None {
			continue
		}
		node := p.index[q.was[i]]
		if node == None || p.shareOf[node] == noShare {
			p.ownerLost = true
			continue
		}
		q.owners[i] = node
		if k := p.shareOf[node]; k == keepsOnly {
			q.pinned++
		} else {
			q.shares[k].have++
		}
	}
}

// setQuotas computes the quotas, rounded down, and how many of them must be rounded up.
func (p *planner) setQuotas(q *queuePlan) {
	if len(q.shares) == 0 {
		return
	}
	shards, total := int64(len(q.owners)-q.pinned), int64(0)
	for _, s := range q.shares {
		total += p.weights[s.node]
	}
	q.spare = int(shards)
	for i := range q.shares {
		s := &q.shares[i]
		product := shards * p.weights[s.node] // at most 10^6 x 10^6
		s.quota, s.fractional = int32(product/total), product%total > 0
		q.spare -= int(s.quota)
		p.totals[s.node] += int64(s.quota)
	}
}

// shedShards takes the shards beyond its quota from each node. The shards that have moved last go
// first, then those with the highest index. So a node that is restarted gets back the shards that
// the others took over from it, and a rolling restart moves each shard twice.
func (p *planner) shedShards(q *queuePlan) {
	over := 0
	for _, s := range q.shares {
		over += int(max(0, s.have-s.quota))
	}
	if over == 0 {
		return
	}
	p.sharesOf(q)
	for _, i := range p.lastMovedFirst(q) {
		if over == 0 {
			return
		}
		owner := q.owners[i]
		if owner == None || p.shareOf[owner] == keepsOnly {
			continue
		}
		if s := &q.shares[p.shareOf[owner]]; s.have > s.quota {
			q.owners[i] = None
			s.have--
			over--
		}
	}
}

// lastMovedFirst returns a queue's shards, beginning with the shard that moved last.
func (p *planner) lastMovedFirst(q *queuePlan) []int {
	order := make([]int, len(q.owners))
	for i := range order {
		order[i] = len(order) - 1 - i
	}
	if len(p.current.MovedAt[q.name]) > 0 {
		slices.SortStableFunc(order, func(i, j int) int {
			return cmp.Compare(p.current.movedAt(q.name, j), p.current.movedAt(q.name, i))
		})
	}
	return order
}

// dealShards gives the shards without an owner to the nodes below their quota, one at a time. Each
// goes to the node that misses most. Ties go by rendezvous hash (Thaler and Ravishankar, 1998).
func (p *planner) dealShards(q *queuePlan) {
	type need struct {
		node, missing int32
		hash          uint64
	}
	queue := hashName(q.name)
	var needs []need
	for _, s := range q.shares {
		if missing := s.quota - s.have; missing > 0 {
			needs = append(needs, need{s.node, missing, mixHashes(queue, p.hashes[s.node])})
		}
	}
	if len(needs) == 0 {
		return
	}
	slices.SortFunc(needs, func(a, b need) int {
		return cmp.Or(cmp.Compare(b.missing, a.missing), cmp.Compare(a.hash, b.hash), cmp.Compare(a.node, b.node))
	})
	level, next := needs[0].missing, 0
	for i, owner := range q.owners {
		if owner != None {
			continue
		}
		if next == len(needs) || needs[next].missing < level {
			level, next = level-1, 0
		}
		q.owners[i] = needs[next].node
		needs[next].missing--
		next++
	}
}

func hashName(name string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(name)) //nolint:errcheck // it never fails
	return hash.Sum64()
}

// mixHashes joins two hashes with the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
func mixHashes(a, b uint64) uint64 {
	x := a ^ bits.RotateLeft64(b, 32)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// buildResult lists the moves, and turns the owners into indexes of the nodes that own shards.
func (p *planner) buildResult() Result {
	next := &Assignment{Generation: p.current.Generation, Queues: make([]Placement, 0, len(p.queues))}
	out := Result{Next: next, OwnerLost: p.ownerLost}
	owns := make([]bool, len(p.nodes))
	for i := range p.queues {
		out.Moves = p.appendMoves(&p.queues[i], out.Moves)
		for _, owner := range p.queues[i].owners {
			if owner != None {
				owns[owner] = true
			}
		}
	}
	renamed := make([]int32, len(p.nodes))
	for i, n := range p.nodes {
		if owns[i] {
			renamed[i] = int32(len(next.Nodes))
			next.Nodes = append(next.Nodes, n.Name)
		}
	}
	for _, q := range p.queues {
		for i, owner := range q.owners {
			q.owners[i] = translateOwner(owner, renamed)
		}
		next.Queues = append(next.Queues, Placement{Queue: q.name, Owners: q.owners})
	}
	return out
}

// appendMoves appends the queue's moves.
func (p *planner) appendMoves(q *queuePlan, moves []Move) []Move {
	for i, owner := range q.owners {
		from, to, was := p.current.ownerAt(q.was, i), "", None
		if from != "" {
			was = p.index[q.was[i]]
		}
		if owner != None {
			to = p.nodes[owner].Name
		}
		if from != to {
			change := Change{lowkiq.Shard{Queue: q.name, Index: i}, from, to}
			moves = append(moves, Move{change, p.reasonFor(q, from, was)})
		}
	}
	return moves
}

// reasonFor returns why a shard leaves its owner.
func (p *planner) reasonFor(q *queuePlan, from string, was int32) Reason {
	switch {
	case from == "":
		return ReasonUnowned
	case was == None:
		return ReasonGone
	case p.nodes[was].Draining:
		return ReasonDraining
	case !slices.Contains(p.nodes[was].Queues, q.name):
		return ReasonHandler
	case slices.Contains(p.nodes[was].Unready, q.name) && !slices.ContainsFunc(q.shares, func(s share) bool { return s.node == was }):
		return ReasonUnready
	}
	return ReasonBalance
}
