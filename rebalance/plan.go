package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// MaxWeight is the largest weight that counts.
const MaxWeight = 1_000_000

// Node is what Plan knows of a node. Names are unique within one plan.
type Node struct {
	Name     string
	Weight   int      // its share relative to the other nodes; below 1 counts as 1
	Queues   []string // the queues it handles, in any order
	Unready  []string // of these, those whose handler cannot work: it has none of their shards while another node could
	Draining bool     // it gets nothing and gives away what it has
	Deaf     bool     // it has stopped acknowledging assignments: it keeps what it has and gets nothing new
}

// Reason says why a shard moves.
type Reason uint8

const (
	ReasonUnowned  Reason = iota + 1 // no node owned it
	ReasonGone                       // its owner is gone
	ReasonDraining                   // its owner is draining
	ReasonHandler                    // its owner no longer handles the queue
	ReasonUnready                    // its owner's handler is not ready
	ReasonBalance                    // its owner has more than its share
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

// Move is a shard that gets another owner; To is "" if no node can own it.
type Move struct {
	Change
	Reason Reason
}

// Planned is the outcome of Plan.
type Planned struct {
	Next      *Assignment // its generation is still that of the assignment planned from
	Moves     []Move      // ordered by queue and shard index
	Unhandled []string    // queues whose shards stay without owner: no node handles them
	Left      bool        // shards had lost their owner: totals may be evened out by the next plan
}

// evens reports whether all that the plan does is to make owners more even: no shard is
// without an owner that may have it.
func (p *Planned) evens() bool {
	return len(p.Moves) > 0 && !slices.ContainsFunc(p.Moves, func(m Move) bool { return m.Reason != ReasonBalance })
}

// Plan returns the next assignment. It is a function of its arguments as sets:
// their order does not matter, and the same sets give the same plan on any node.
//
// Of each queue's shards every node that handles it gets its quota, shards x
// weight / sum of weights, rounded down or up. Which quotas are rounded up is decided
// for all queues together: first so that the totals of nodes are as even as they can
// be, by weight, then so that as few shards as possible move (I5). See [planner.round].
//
// When a shard has lost its owner, the order is the other way round: first as few moves
// as possible, so that those who live keep what they have, then totals that are as even
// as that allows. The next plan evens out what is left.
//
// Owners keep what they have as far as their quota goes. Shards without owner go to
// whoever is furthest below its quota; ties go by rendezvous hash (Thaler and
// Ravishankar, 1998). A queue that is not in queues is dropped.
//
// A node whose handler of a queue is not ready counts as one that does not handle it, as
// long as a node is there whose handler is ready. If none is, the marks say nothing of who
// would do better, and count for nothing.
//
// From a balanced assignment, and with equal weights, a departure moves the departed
// node's shards only. With unequal weights no rounding of quotas can promise that
// (Balinski and Young, Fair Representation, 1982); then the number of moves is still the
// least possible.
func Plan(current *Assignment, nodes []Node, queues []lowkiq.Queue) Planned {
	p := newPlanner(current, nodes, queues)
	for i := range p.queues {
		p.keep(&p.queues[i])
		p.share(&p.queues[i])
	}
	p.round()
	for i := range p.queues {
		p.shed(&p.queues[i])
		p.deal(&p.queues[i])
	}
	return p.planned()
}

// planner is the state of one Plan. Nodes are known by their index.
type planner struct {
	current *Assignment
	nodes   []Node   // ascending by name
	hashes  []uint64 // of the nodes' names
	index   []int32  // from current.Nodes to nodes, None for a node that is gone
	totals  []int64  // per node: the shards it gets of all queues, but for those of deaf nodes
	seats   []int32  // per node: its seat in the queue at hand, or noSeat, deafSeat
	queues  []queuePlan
	left    bool // a shard has lost its owner: it is gone, leaves, or cannot handle the queue any more
}

const (
	noSeat   int32 = -1 // the node may not own shards of the queue
	deafSeat int32 = -2 // the node keeps its shards of the queue, outside the quotas
)

// queuePlan is the plan of one queue. A seat is a node that may be given shards.
type queuePlan struct {
	name   string
	was    []int32 // owners as indexes into current.Nodes; may be shorter than owners
	owners []int32 // owners as indexes into nodes
	deaf   []int32 // nodes that keep what they have
	nodes  []int32 // per seat: the node
	have   []int32 // per seat: shards owned
	want   []int32 // per seat: shards to own
	part   []bool  // per seat: its quota has a fraction, and may be rounded up
	pinned int     // shards kept by deaf nodes
	spare  int     // quotas to round up
}

func newPlanner(current *Assignment, nodes []Node, queues []lowkiq.Queue) *planner {
	p := &planner{
		current: current,
		nodes:   slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }),
		hashes:  make([]uint64, len(nodes)),
		index:   make([]int32, len(current.Nodes)),
		totals:  make([]int64, len(nodes)),
		seats:   make([]int32, len(nodes)),
	}
	for i, n := range p.nodes {
		p.hashes[i] = hashName(n.Name)
	}
	for i, name := range current.Nodes {
		p.index[i] = p.find(name)
	}
	p.openQueues(queues)
	p.seatNodes()
	return p
}

func (p *planner) find(name string) int32 {
	i, ok := slices.BinarySearchFunc(p.nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return None
	}
	return int32(i)
}

func (p *planner) openQueues(queues []lowkiq.Queue) {
	p.queues = make([]queuePlan, len(queues))
	for i, q := range queues {
		p.queues[i] = queuePlan{name: q.Name, was: p.current.placement(q.Name), owners: make([]int32, q.Shards)}
	}
	slices.SortFunc(p.queues, func(a, b queuePlan) int { return cmp.Compare(a.name, b.name) })
}

// seatNodes gives each node a seat at the queues it handles; those whose handler is not
// ready have one only where all others stand or fall with them.
func (p *planner) seatNodes() {
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
			case !n.Deaf && slices.Contains(n.Unready, name):
				unready[q] = append(unready[q], int32(i))
			default:
				q.seat(int32(i), n.Deaf)
			}
		}
	}
	for q, nodes := range unready {
		if len(q.nodes) > 0 {
			continue // somebody is ready
		}
		for _, node := range nodes {
			q.seat(node, false)
		}
	}
}

func (q *queuePlan) seat(node int32, deaf bool) {
	if deaf {
		q.deaf = append(q.deaf, node)
	} else if k := len(q.nodes); k == 0 || q.nodes[k-1] != node { // a name listed twice counts once
		q.nodes = append(q.nodes, node)
	}
}

// keep leaves every shard with its owner where the owner may keep it, and counts.
func (p *planner) keep(q *queuePlan) {
	p.sit(q)
	q.have = make([]int32, len(q.nodes))
	for i := range q.owners {
		q.owners[i] = None
		if i >= len(q.was) || q.was[i] == None {
			continue
		}
		node := p.index[q.was[i]]
		if node == None || p.seats[node] == noSeat {
			p.left = true
			continue
		}
		q.owners[i] = node
		if seat := p.seats[node]; seat == deafSeat {
			q.pinned++
		} else {
			q.have[seat]++
		}
	}
}

// sit fills p.seats for the queue.
func (p *planner) sit(q *queuePlan) {
	for i := range p.seats {
		p.seats[i] = noSeat
	}
	for _, node := range q.deaf {
		p.seats[node] = deafSeat
	}
	for seat, node := range q.nodes {
		p.seats[node] = int32(seat)
	}
}

// planned builds the outcome.
func (p *planner) planned() Planned {
	next := &Assignment{Generation: p.current.Generation, Queues: make([]Placement, 0, len(p.queues))}
	out := Planned{Next: next, Left: p.left}
	renamed := p.owning(next)
	for i := range p.queues {
		q := &p.queues[i]
		if len(q.nodes)+len(q.deaf) == 0 && len(q.owners) > 0 {
			out.Unhandled = append(out.Unhandled, q.name)
		}
		out.Moves = p.moves(q, out.Moves)
		for s, owner := range q.owners {
			if owner != None {
				q.owners[s] = renamed[owner]
			}
		}
		next.Queues = append(next.Queues, Placement{Queue: q.name, Owners: q.owners})
	}
	return out
}

// owning lists in next the nodes that own something, and returns their new indexes.
func (p *planner) owning(next *Assignment) []int32 {
	owns := make([]bool, len(p.nodes))
	for i := range p.queues {
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
	return renamed
}

// moves appends the queue's moves.
func (p *planner) moves(q *queuePlan, moves []Move) []Move {
	for i, owner := range q.owners {
		from, was := "", None
		if i < len(q.was) && q.was[i] != None {
			from, was = p.current.Nodes[q.was[i]], p.index[q.was[i]]
		}
		to := ""
		if owner != None {
			to = p.nodes[owner].Name
		}
		if from != to {
			change := Change{lowkiq.Shard{Queue: q.name, Index: i}, from, to}
			moves = append(moves, Move{change, p.reason(q, from, was)})
		}
	}
	return moves
}

func (p *planner) reason(q *queuePlan, from string, was int32) Reason {
	switch {
	case from == "":
		return ReasonUnowned
	case was == None:
		return ReasonGone
	case p.nodes[was].Draining:
		return ReasonDraining
	case !slices.Contains(p.nodes[was].Queues, q.name):
		return ReasonHandler
	case slices.Contains(p.nodes[was].Unready, q.name) && !slices.Contains(q.nodes, was):
		return ReasonUnready
	}
	return ReasonBalance
}
