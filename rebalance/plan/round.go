package plan

import (
	"cmp"
	"slices"
)

// fraction is a share whose quota has a fraction. Each of a queue's spare shards goes to one of the
// queue's fractions, which is rounded up.
type fraction struct {
	queue, node int32
	share       int32 // index into the queue's shares
	up          bool  // rounded up
	moves       int8  // moves that rounding up costs: 0 if the node has the shard already, 1 otherwise
}

// roundShares rounds up as many quotas of each queue as the queue has spare shards. It makes
//
//	sum over nodes of total^2 / weight
//
// the least possible. If every node handles every queue, that is the method of Webster and
// Sainte-Laguë, and equal nodes differ by at most one shard. Among those it takes a rounding with
// the fewest moves. If a shard has lost its owner, it considers only roundings with the fewest moves.
//
// A rounding is a flow from queues through fractions to nodes. Its cost grows with each node's total.
// It is the best if no exchange along a chain of fractions makes it better (Harvey, Ladner, Lovász
// and Tamir, Semi-matchings for bipartite graphs, 2006). So these steps find it:
//
//	chooseExtras  a good rounding of each queue by itself, in sight of the totals so far
//	isBest        a check without a search, which ends most plans
//	evenTotals    exchanges along chains from a node that has too much to a node that has too
//	              little: in queue q1 node A is rounded down and B up, in q2 B down and C up, ...
//	saveMoves     exchanges that leave totals as they are and save moves
func (p *planner) roundShares() {
	r := &rounding{p: p, first: make([]int, 0, len(p.queues)+1)}
	r.guess = r.guessCounts()
	for i := range p.queues {
		r.first = append(r.first, len(r.fractions))
		r.chooseExtras(int32(i))
	}
	r.first = append(r.first, len(r.fractions))
	if !r.isBest() {
		r.indexNodes()
		r.evenTotals()
		r.saveMoves()
	}
	for _, f := range r.fractions {
		if f.up {
			p.queues[f.queue].shares[f.share].quota++
		}
	}
}

// rounding is the state of roundShares.
type rounding struct {
	p         *planner
	guess     []int64    // by node; its part of all shards by weight, rounded up
	fractions []fraction // fractions that may be exchanged, ordered by queue
	first     []int      // by queue; its first fraction, and the end of the last queue
	at        []int32    // indexes of fractions, ordered by node
	atNode    []int      // by node; its first entry of at, and the end of the last node
}

// compareCosts compares the cost of one more shard at two nodes, (2 total + 1) / weight. takenA and
// takenB are subtracted from their totals first.
func (p *planner) compareCosts(a int32, takenA int64, b int32, takenB int64) int {
	x := (2*(p.totals[a]-takenA) + 1) * p.weights[b]
	y := (2*(p.totals[b]-takenB) + 1) * p.weights[a]
	return cmp.Compare(x, y)
}

// guessCounts returns a first guess at each node's total, by the weights of the nodes that may get
// shards.
func (r *rounding) guessCounts() []int64 {
	takes, weight, shards := make([]bool, len(r.p.nodes)), int64(0), int64(0)
	for _, q := range r.p.queues {
		shards += int64(q.spare)
		for _, s := range q.shares {
			takes[s.node] = true
		}
	}
	for node := range takes {
		shards += r.p.totals[node]
		if takes[node] {
			weight += r.p.weights[node]
		}
	}
	guesses := make([]int64, len(r.p.nodes))
	for node := range takes {
		if takes[node] {
			guesses[node] = (shards*r.p.weights[node] + weight - 1) / weight
		}
	}
	return guesses
}

// candidate is a fraction with its rank.
type candidate struct {
	fraction
	class int8 // 0 before 1
	hash  uint64
}

// chooseExtras rounds up as many of a queue's fractions as the queue has spare shards. Fractions that
// save a move come first, then those of the nodes with the lowest cost.
func (r *rounding) chooseExtras(queue int32) {
	q := &r.p.queues[queue]
	if q.spare == 0 {
		return
	}
	name, above := hashName(q.name), 0
	candidates := make([]candidate, 0, len(q.shares))
	for i, s := range q.shares {
		if !s.fractional {
			continue
		}
		c := candidate{fraction{queue, s.node, int32(i), false, 1}, 1, mixHashes(name, r.p.hashes[s.node])}
		if s.have > s.quota {
			c.moves = 0
			above++
			if r.p.ownerLost || r.p.totals[s.node] < r.guess[s.node] {
				c.class = 0
			}
		}
		candidates = append(candidates, c)
	}
	selectFirst(candidates, q.spare, r.compareCandidates)
	for i := range candidates {
		c := &candidates[i]
		if c.up = i < q.spare; c.up {
			r.p.totals[c.node]++
		}
		// To have the fewest moves, fractions that save a move are exchanged only among each other.
		switch {
		case !r.p.ownerLost, above >= q.spare && c.moves == 0, above < q.spare && c.moves > 0:
			r.fractions = append(r.fractions, c.fraction)
		case c.up:
			q.shares[c.share].quota++
		}
	}
}

func (r *rounding) compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.class, b.class), r.p.compareCosts(a.node, 0, b.node, 0), cmp.Compare(a.moves, b.moves),
		cmp.Compare(a.hash, b.hash), cmp.Compare(a.share, b.share))
}

// selectFirst moves the k first candidates to the front, in any order (quickselect, Hoare, 1961).
// Sorting all candidates would be most of the work of a large plan.
func selectFirst(candidates []candidate, k int, compare func(a, b candidate) int) {
	lo, hi := 0, len(candidates)
	for hi-lo > 1 {
		pivot, last, at := candidates[lo+(hi-lo)/2], hi-1, lo
		candidates[lo+(hi-lo)/2], candidates[last] = candidates[last], candidates[lo+(hi-lo)/2]
		for i := lo; i < last; i++ {
			if compare(candidates[i], pivot) < 0 {
				candidates[i], candidates[at] = candidates[at], candidates[i]
				at++
			}
		}
		candidates[at], candidates[last] = candidates[last], candidates[at]
		switch {
		case at == k || at+1 == k:
			return
		case at > k:
			hi = at
		default:
			lo = at + 1
		}
	}
}

// isBest reports that no exchange can make the rounding better. It does not search, and may return
// false for the best rounding.
func (r *rounding) isBest() bool {
	fullest, emptiest, mayMove := None, None, false
	for _, f := range r.fractions {
		switch {
		case !f.up:
			if emptiest == None || r.p.compareCosts(f.node, 0, emptiest, 0) < 0 {
				emptiest = f.node
			}
		case fullest == None || r.p.compareCosts(f.node, 1, fullest, 1) > 0:
			fullest = f.node
		}
		mayMove = mayMove || f.up && f.moves > 0
	}
	even := fullest == None || emptiest == None || r.p.compareCosts(fullest, 1, emptiest, 0) <= 0
	return even && (r.p.ownerLost || !mayMove)
}

// indexNodes lists the fractions of each node.
func (r *rounding) indexNodes() {
	r.atNode = make([]int, len(r.p.nodes)+2)
	for _, f := range r.fractions {
		r.atNode[f.node+2]++
	}
	for i := range len(r.p.nodes) {
		r.atNode[i+2] += r.atNode[i+1]
	}
	r.at = make([]int32, len(r.fractions))
	for i, f := range r.fractions {
		r.at[r.atNode[f.node+1]] = int32(i)
		r.atNode[f.node+1]++
	}
}

// evenTotals exchanges fractions until totals are as even as they can be. It serves the node that has
// least. It looks at all nodes with a chain to that node. If such a node has too much, a shard goes
// along the chain. If none has, nothing can be gained for any of these nodes, and no chain from
// elsewhere leads to them. They are done.
func (r *rounding) evenTotals() {
	s := &search{r: r, done: make([]bool, len(r.p.nodes)), seen: make([]int, len(r.p.nodes)),
		passed: make([]int, len(r.p.queues)), via: make([]int32, len(r.p.nodes)), into: make([]int32, len(r.p.queues))}
	s.ups = make([]int32, len(r.p.nodes))
	for _, f := range r.fractions {
		if f.up {
			s.ups[f.node]++
		}
	}
	for s.runPass() {
	}
}

// runPass serves each node that may gain a shard, beginning with the node that has least. It reports
// whether there may be more to do.
func (s *search) runPass() bool {
	s.orderNodes()
	if s.fullest == None || len(s.live) == 0 {
		return false
	}
	for i, node := range s.live {
		if i > 0 && s.r.p.compareCosts(node, 0, s.fullest, 1) >= 0 {
			break
		}
		from := s.searchFrom(node)
		if from == None {
			if i == 0 {
				for _, node := range s.found {
					s.done[node] = true
				}
			}
			break
		}
		s.exchangeAlong(from, node)
	}
	return true
}

// search finds chains that lead to a node.
type search struct {
	r      *rounding
	done   []bool
	ups    []int32 // by node; its fractions that are rounded up
	round  int
	seen   []int   // by node; the round that has found it
	passed []int   // by queue; the round that has passed it
	via    []int32 // by found node; its fraction, rounded up, in the next queue of the chain
	into   []int32 // by passed queue; the fraction to round up instead
	found  []int32 // nodes with a chain to the node at hand, nearest first

	live    []int32 // nodes that are not done, beginning with the node that had least
	fullest int32   // the node that had most
}

// orderNodes lists the nodes that are not done, beginning with the node that has least. It also finds
// the fullest node that could give a shard.
func (s *search) orderNodes() {
	s.live, s.fullest = s.live[:0], None
	for node := range int32(len(s.r.p.nodes)) {
		if s.done[node] || s.r.atNode[node] == s.r.atNode[node+1] {
			continue
		}
		s.live = append(s.live, node)
		if s.ups[node] > 0 && (s.fullest == None || s.r.p.compareCosts(node, 1, s.fullest, 1) > 0) {
			s.fullest = node
		}
	}
	slices.SortFunc(s.live, func(a, b int32) int { return cmp.Or(s.r.p.compareCosts(a, 0, b, 0), cmp.Compare(a, b)) })
}

// searchFrom returns one of the nearest nodes that have too much, compared with the given node. It
// prefers nodes as full as the fullest. It returns None if no chain leads from such a node.
func (s *search) searchFrom(least int32) int32 {
	s.round++
	s.seen[least] = s.round
	s.found = append(s.found[:0], least)
	best := None
	for next, level := 0, 1; next < len(s.found); next++ {
		if next == level { // all nodes at this distance were checked
			if best != None {
				return best
			}
			level = len(s.found)
		}
		node := s.found[next]
		for _, i := range s.r.at[s.r.atNode[node]:s.r.atNode[node+1]] {
			q := s.r.fractions[i].queue
			if s.r.fractions[i].up || s.passed[q] == s.round {
				continue
			}
			s.passed[q], s.into[q] = s.round, i
			for k := s.r.first[q]; k < s.r.first[q+1]; k++ {
				f := &s.r.fractions[k]
				if !f.up || s.seen[f.node] == s.round || s.done[f.node] {
					continue
				}
				s.seen[f.node], s.via[f.node] = s.round, int32(k)
				s.found = append(s.found, f.node)
				if s.r.p.compareCosts(f.node, 1, least, 0) > 0 && (best == None || s.r.p.compareCosts(f.node, 1, best, 1) > 0) {
					if best = f.node; s.r.p.compareCosts(best, 1, s.fullest, 1) >= 0 {
						return best
					}
				}
			}
		}
	}
	return best
}

// exchangeAlong rounds a fraction down and another up in each queue of the chain.
func (s *search) exchangeAlong(from, to int32) {
	s.r.p.totals[from]--
	s.ups[from]--
	s.r.p.totals[to]++
	s.ups[to]++
	for node := from; node != to; {
		out := &s.r.fractions[s.via[node]]
		in := &s.r.fractions[s.into[out.queue]]
		out.up, in.up = false, true
		node = in.node
	}
}

// saveMoves exchanges fractions to save moves, while totals stay as even as they are. It exchanges
// along cycles of fractions. It also exchanges along chains between two nodes if it makes no difference
// which of them has the extra shard. Bellman and Ford's method finds the negative cycles.
func (r *rounding) saveMoves() {
	if r.p.ownerLost {
		return // all fractions cost the same
	}
	for {
		s := newSaver(r)
		cycles := 0
		for cycles == 0 && s.relaxEdges() {
			cycles = s.cancelCycles()
		}
		if cycles == 0 {
			return
		}
	}
}

// saver looks for cycles in a graph of nodes, queues and levels. An edge leads from a node that is
// rounded up to the queue, and from the queue to the nodes that are rounded down. A level connects
// nodes at the same cost: from nodes that would have it with one shard more, to nodes that have it now.
type saver struct {
	r      *rounding
	levels []level
	cost   []int32 // by vertex; the vertices are nodes, then queues, then levels
	parent []int32 // by vertex; None, or: of a node a fraction or -2-level, of a queue a fraction, of a level a node
}

type level struct{ more, less []int32 } // nodes

func newSaver(r *rounding) *saver {
	s := &saver{r: r}
	s.groupLevels()
	vertices := len(r.p.nodes) + len(r.p.queues) + len(s.levels)
	s.cost, s.parent = make([]int32, vertices), make([]int32, vertices)
	for i := range s.parent {
		s.parent[i] = None
	}
	return s
}

// groupLevels makes the levels.
func (s *saver) groupLevels() {
	type end struct {
		node int32
		less int64 // 1 for the node as full as it is now, 0 for the node with one shard more
	}
	var ends []end
	for node := range int32(len(s.r.p.nodes)) {
		if s.r.atNode[node] < s.r.atNode[node+1] {
			ends = append(ends, end{node, 0}, end{node, 1})
		}
	}
	by := func(a, b end) int { return s.r.p.compareCosts(a.node, a.less, b.node, b.less) }
	slices.SortStableFunc(ends, by)
	for i, e := range ends {
		if i == 0 || by(ends[i-1], e) != 0 {
			s.levels = append(s.levels, level{})
		}
		if l := &s.levels[len(s.levels)-1]; e.less == 0 {
			l.more = append(l.more, e.node)
		} else {
			l.less = append(l.less, e.node)
		}
	}
}

// lowerCost records a cheaper way to a vertex.
func (s *saver) lowerCost(vertex int, cost, parent int32) bool {
	if cost >= s.cost[vertex] {
		return false
	}
	s.cost[vertex], s.parent[vertex] = cost, parent
	return true
}

// relaxEdges follows each edge once, and reports whether a way has become cheaper.
func (s *saver) relaxEdges() bool {
	cheaper := false
	for q := range s.r.p.queues {
		vertex := len(s.r.p.nodes) + q
		for i := s.r.first[q]; i < s.r.first[q+1]; i++ {
			if f := &s.r.fractions[i]; f.up && s.lowerCost(vertex, s.cost[f.node]-int32(f.moves), int32(i)) {
				cheaper = true
			}
		}
		for i := s.r.first[q]; i < s.r.first[q+1]; i++ {
			if f := &s.r.fractions[i]; !f.up && s.lowerCost(int(f.node), s.cost[vertex]+int32(f.moves), int32(i)) {
				cheaper = true
			}
		}
	}
	for k, l := range s.levels {
		vertex := len(s.r.p.nodes) + len(s.r.p.queues) + k
		for _, node := range l.more {
			cheaper = s.lowerCost(vertex, s.cost[node], node) || cheaper
		}
		for _, node := range l.less {
			cheaper = s.lowerCost(int(node), s.cost[vertex], -2-int32(k)) || cheaper
		}
	}
	return cheaper
}

// vertexBefore returns the vertex before the given vertex on the cheapest known way, -1 if there is
// none.
func (s *saver) vertexBefore(vertex int) int {
	parent := s.parent[vertex]
	switch queues, levels := len(s.r.p.nodes), len(s.r.p.nodes)+len(s.r.p.queues); {
	case parent == None:
		return -1
	case vertex >= levels:
		return int(parent) // a node
	case vertex >= queues:
		return int(s.r.fractions[parent].node)
	case parent < None:
		return levels + int(-2-parent)
	default:
		return queues + int(s.r.fractions[parent].queue)
	}
}

// cancelCycles exchanges along each cycle of parents, and returns how many cycles there were.
func (s *saver) cancelCycles() int {
	cycles, mark := 0, make([]int, len(s.parent))
	for start := range s.parent {
		vertex := start
		for vertex >= 0 && mark[vertex] == 0 {
			mark[vertex] = start + 1
			vertex = s.vertexBefore(vertex)
		}
		if vertex >= 0 && mark[vertex] == start+1 {
			s.turnCycle(vertex)
			cycles++
		}
	}
	return cycles
}

// turnCycle exchanges along the cycle through a vertex.
func (s *saver) turnCycle(start int) {
	queues, levels := len(s.r.p.nodes), len(s.r.p.nodes)+len(s.r.p.queues)
	for vertex := start; ; {
		parent := s.parent[vertex]
		switch {
		case vertex >= levels:
			s.r.p.totals[parent]++
		case vertex >= queues:
			s.r.fractions[parent].up = false
		case parent < None:
			s.r.p.totals[vertex]--
		default:
			s.r.fractions[parent].up = true
		}
		if vertex = s.vertexBefore(vertex); vertex == start {
			return
		}
	}
}
