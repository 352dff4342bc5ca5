package rebalance

import (
	"cmp"
	"slices"
)

// place is a quota with a fraction: of one queue at one node. A queue's spare shards go
// to as many of its places, one each.
type place struct {
	queue, node, seat int32
	up                bool // rounded up
	moves             int8 // moves that rounding up costs: 0 if the node has the shard already, else 1
}

// round rounds up as many quotas of each queue as it has spare shards. It makes
//
//	sum over nodes of total^2 / weight
//
// the least possible, which is the method of Webster and Sainte-Laguë where every node
// handles every queue: equal nodes then differ by at most one shard. Among those it takes
// one with the fewest moves. If a shard has lost its owner, only roundings with the fewest
// moves come into question.
//
// Which places to round up is a flow from queues through places to nodes, whose cost grows
// with each node's total. A choice is the best if no exchange along a chain of places
// makes it better (Harvey, Ladner, Lovász and Tamir, Semi-matchings for bipartite graphs,
// 2006): first choose well, then exchange until none is left.
func (p *planner) round() {
	e := &evener{planner: p, first: make([]int, 0, len(p.queues)+1)}
	e.limit = e.shares()
	for i := range p.queues {
		e.first = append(e.first, len(e.places))
		e.choose(int32(i))
	}
	e.first = append(e.first, len(e.places))
	if !e.settled() {
		e.index()
		e.even()
		e.save()
	}
	for _, pl := range e.places {
		if pl.up {
			p.queues[pl.queue].want[pl.seat]++
		}
	}
}

// evener is the state of one rounding.
type evener struct {
	*planner
	limit  []int64 // per node: its share of all shards, rounded up
	places []place // those that may be exchanged, by queue
	first  []int   // per queue: its first place; one more at the end
	at     []int32 // indexes of places, by node
	atNode []int   // per node: its first entry of at; one more at the end
}

// costs compares what one more shard costs at two nodes, (2 total + 1) / weight, as if
// they had lost what is taken from their totals.
func (p *planner) costs(a int32, takenA int64, b int32, takenB int64) int {
	x := (2*(p.totals[a]-takenA) + 1) * int64(p.weight(b))
	y := (2*(p.totals[b]-takenB) + 1) * int64(p.weight(a))
	return cmp.Compare(x, y)
}

// shares returns each node's share of all shards that it could get, as a first guess at
// its total.
func (e *evener) shares() []int64 {
	shares := make([]int64, len(e.nodes))
	for i := range e.queues {
		for _, node := range e.queues[i].nodes {
			shares[node] = 1
		}
	}
	weight, shards := int64(0), int64(0)
	for node, seated := range shares {
		weight += seated * int64(e.weight(int32(node)))
		shards += e.totals[node]
	}
	for i := range e.queues {
		shards += int64(e.queues[i].spare)
	}
	for node, seated := range shares {
		if seated > 0 {
			shares[node] = (shards*int64(e.weight(int32(node))) + weight - 1) / weight
		}
	}
	return shares
}

// candidate is a place, and how soon it is rounded up.
type candidate struct {
	place
	class int8 // 0 before 1
	hash  uint64
}

// choose rounds up as many of a queue's places as it has spare shards: those that spare a
// move first, then where a node has least.
func (e *evener) choose(queue int32) {
	q := &e.queues[queue]
	if q.spare == 0 {
		return
	}
	name, above := hashName(q.name), 0
	candidates := make([]candidate, 0, len(q.nodes))
	for seat, node := range q.nodes {
		if !q.part[seat] {
			continue
		}
		c := candidate{place{queue, node, int32(seat), false, 1}, 1, mix(name, e.hashes[node])}
		if q.have[seat] > q.want[seat] {
			c.moves = 0
			above++
			if e.left || e.totals[node] < e.limit[node] {
				c.class = 0
			}
		}
		candidates = append(candidates, c)
	}
	selectFirst(candidates, q.spare, e.compare)
	for i := range candidates {
		c := &candidates[i]
		if c.up = i < q.spare; c.up {
			e.totals[c.node]++
		}
		// With the fewest moves, places that spare one are not exchanged for others.
		switch {
		case !e.left, above >= q.spare && c.moves == 0, above < q.spare && c.moves > 0:
			e.places = append(e.places, c.place)
		case c.up:
			q.want[c.seat]++
		}
	}
}

func (e *evener) compare(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.class, b.class), e.costs(a.node, 0, b.node, 0), cmp.Compare(a.moves, b.moves),
		cmp.Compare(a.hash, b.hash), cmp.Compare(a.seat, b.seat))
}

// selectFirst moves the k first candidates to the front, in any order (quickselect:
// Hoare, 1961). Sorting all of them would be most of the work of a large plan.
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

// settled reports, without a search, that no exchange can make the choice better.
func (e *evener) settled() bool {
	fullest, emptiest, dear := None, None, false
	for _, pl := range e.places {
		switch {
		case !pl.up:
			if emptiest == None || e.costs(pl.node, 0, emptiest, 0) < 0 {
				emptiest = pl.node
			}
		case fullest == None || e.costs(pl.node, 1, fullest, 1) > 0:
			fullest = pl.node
		}
		dear = dear || pl.up && pl.moves > 0
	}
	even := fullest == None || emptiest == None || e.costs(fullest, 1, emptiest, 0) <= 0
	return even && (e.left || !dear)
}

// index lists the places of each node.
func (e *evener) index() {
	e.atNode = make([]int, len(e.nodes)+2)
	for _, pl := range e.places {
		e.atNode[pl.node+2]++
	}
	for i := range len(e.nodes) {
		e.atNode[i+2] += e.atNode[i+1]
	}
	e.at = make([]int32, len(e.places))
	for i, pl := range e.places {
		e.at[e.atNode[pl.node+1]] = int32(i)
		e.atNode[pl.node+1]++
	}
}

// even exchanges until totals are as even as they can be. It serves the node that has
// least: all from whom a chain leads to it are looked at, and where one of them has too
// much, a shard goes along the chain. When none has, nothing can be gained for any of
// these, and no chain from elsewhere leads to them: they are done.
func (e *evener) even() {
	s := &search{evener: e, done: make([]bool, len(e.nodes)), seen: make([]int, len(e.nodes)),
		passed: make([]int, len(e.queues)), via: make([]int32, len(e.nodes)), into: make([]int32, len(e.queues))}
	s.ups = make([]int32, len(e.nodes))
	for _, pl := range e.places {
		if pl.up {
			s.ups[pl.node]++
		}
	}
	for s.pass() {
	}
}

// pass serves each node that may gain something, from the one that has least. It reports
// whether there is more to do.
func (s *search) pass() bool {
	s.order()
	if s.fullest == None || len(s.live) == 0 {
		return false
	}
	for i, node := range s.live {
		if i > 0 && s.costs(node, 0, s.fullest, 1) >= 0 {
			break
		}
		from := s.from(node)
		if from == None {
			if i == 0 {
				for _, node := range s.found {
					s.done[node] = true
				}
			}
			break
		}
		s.exchange(from, node)
	}
	return true
}

// search finds chains that lead to a node.
type search struct {
	*evener
	done   []bool
	ups    []int32 // per node: its places that are rounded up
	round  int
	seen   []int   // per node: the round that found it
	passed []int   // per queue: the round that passed it
	via    []int32 // per node found: its place, which is rounded up, in the queue that leads on
	into   []int32 // per queue passed: the place to round up instead
	found  []int32 // nodes from which a chain leads to the one at hand, nearest first

	live    []int32 // nodes that are not done, from the one that had least
	fullest int32   // the one that had most
}

// order lists the nodes that are not done, from the one that has least, and finds the
// fullest that could give one.
func (s *search) order() {
	s.live, s.fullest = s.live[:0], None
	for node := range int32(len(s.nodes)) {
		if s.done[node] || s.atNode[node] == s.atNode[node+1] {
			continue
		}
		s.live = append(s.live, node)
		if s.ups[node] > 0 && (s.fullest == None || s.costs(node, 1, s.fullest, 1) > 0) {
			s.fullest = node
		}
	}
	slices.SortFunc(s.live, func(a, b int32) int { return cmp.Or(s.costs(a, 0, b, 0), cmp.Compare(a, b)) })
}

// from returns one of the nearest nodes that have too much, compared with the given one: as
// full as the fullest if there is such a one. It is None if no chain leads from such a node.
func (s *search) from(least int32) int32 {
	s.round++
	s.seen[least] = s.round
	s.found = append(s.found[:0], least)
	best := None
	for next, level := 0, 1; next < len(s.found); next++ {
		if next == level { // all as near as the last have been looked at
			if best != None {
				return best
			}
			level = len(s.found)
		}
		node := s.found[next]
		for _, i := range s.at[s.atNode[node]:s.atNode[node+1]] {
			q := s.places[i].queue
			if s.places[i].up || s.passed[q] == s.round {
				continue
			}
			s.passed[q], s.into[q] = s.round, i
			for k := s.first[q]; k < s.first[q+1]; k++ {
				pl := &s.places[k]
				if !pl.up || s.seen[pl.node] == s.round || s.done[pl.node] {
					continue
				}
				s.seen[pl.node], s.via[pl.node] = s.round, int32(k)
				s.found = append(s.found, pl.node)
				if s.costs(pl.node, 1, least, 0) > 0 && (best == None || s.costs(pl.node, 1, best, 1) > 0) {
					if best = pl.node; s.costs(best, 1, s.fullest, 1) >= 0 {
						return best
					}
				}
			}
		}
	}
	return best
}

// exchange moves a shard's rounding along the chain.
func (s *search) exchange(from, to int32) {
	s.totals[from]--
	s.ups[from]--
	s.totals[to]++
	s.ups[to]++
	for node := from; node != to; {
		out := &s.places[s.via[node]]
		in := &s.places[s.into[out.queue]]
		out.up, in.up = false, true
		node = in.node
	}
}

// save exchanges places for ones that spare moves, while totals stay as even: along
// cycles of places, and along chains between two nodes where one has the one shard more
// that the other may have instead. Negative cycles are found by Bellman and Ford's method.
func (e *evener) save() {
	if e.left {
		return // all places cost the same
	}
	for {
		s := newSaver(e)
		cycles := 0
		for cycles == 0 && s.relax() {
			cycles = s.cancel()
		}
		if cycles == 0 {
			return
		}
	}
}

// saver looks for cycles in a graph of nodes, queues and levels: from a node that is
// rounded up to its queue, from there to nodes that are not. A level joins the nodes that
// would be as full with one more to those that are now.
type saver struct {
	*evener
	levels []level
	cost   []int32 // per vertex: nodes, then queues, then levels
	parent []int32 // per vertex: for a node -1, a place or ^level; for a queue -1 or a place; for a level -1 or a node
}

type level struct{ more, less []int32 } // nodes

func newSaver(e *evener) *saver {
	s := &saver{evener: e}
	s.group()
	vertices := len(e.nodes) + len(e.queues) + len(s.levels)
	s.cost, s.parent = make([]int32, vertices), make([]int32, vertices)
	for i := range s.parent {
		s.parent[i] = None
	}
	return s
}

// group makes the levels.
func (s *saver) group() {
	type end struct {
		node int32
		less int64 // 1: as full as it is now, 0: with one more
	}
	var ends []end
	for node := range int32(len(s.nodes)) {
		if s.atNode[node] < s.atNode[node+1] {
			ends = append(ends, end{node, 0}, end{node, 1})
		}
	}
	by := func(a, b end) int { return s.costs(a.node, a.less, b.node, b.less) }
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

// lower notes a cheaper way to a vertex.
func (s *saver) lower(vertex int, cost, parent int32) bool {
	if cost >= s.cost[vertex] {
		return false
	}
	s.cost[vertex], s.parent[vertex] = cost, parent
	return true
}

// relax follows each edge once, and reports whether a way has become cheaper.
func (s *saver) relax() bool {
	cheaper := false
	for q := range s.queues {
		vertex := len(s.nodes) + q
		for i := s.first[q]; i < s.first[q+1]; i++ {
			if pl := &s.places[i]; pl.up && s.lower(vertex, s.cost[pl.node]-int32(pl.moves), int32(i)) {
				cheaper = true
			}
		}
		for i := s.first[q]; i < s.first[q+1]; i++ {
			if pl := &s.places[i]; !pl.up && s.lower(int(pl.node), s.cost[vertex]+int32(pl.moves), int32(i)) {
				cheaper = true
			}
		}
	}
	for k, l := range s.levels {
		vertex := len(s.nodes) + len(s.queues) + k
		for _, node := range l.more {
			cheaper = s.lower(vertex, s.cost[node], node) || cheaper
		}
		for _, node := range l.less {
			cheaper = s.lower(int(node), s.cost[vertex], -2-int32(k)) || cheaper
		}
	}
	return cheaper
}

// before returns the vertex that the cheapest way known comes from.
func (s *saver) before(vertex int) int {
	parent := s.parent[vertex]
	switch queues, levels := len(s.nodes), len(s.nodes)+len(s.queues); {
	case parent == None:
		return -1
	case vertex >= levels:
		return int(parent) // a node
	case vertex >= queues:
		return int(s.places[parent].node)
	case parent < None:
		return levels + int(-2-parent)
	default:
		return queues + int(s.places[parent].queue)
	}
}

// cancel exchanges along each cycle of parents, and returns how many there were.
func (s *saver) cancel() int {
	cycles, mark := 0, make([]int, len(s.parent))
	for start := range s.parent {
		vertex := start
		for vertex >= 0 && mark[vertex] == 0 {
			mark[vertex] = start + 1
			vertex = s.before(vertex)
		}
		if vertex >= 0 && mark[vertex] == start+1 {
			s.turn(vertex)
			cycles++
		}
	}
	return cycles
}

// turn exchanges along the cycle through a vertex.
func (s *saver) turn(start int) {
	queues, levels := len(s.nodes), len(s.nodes)+len(s.queues)
	for vertex := start; ; {
		parent := s.parent[vertex]
		switch {
		case vertex >= levels:
			s.totals[parent]++
		case vertex >= queues:
			s.places[parent].up = false
		case parent < None:
			s.totals[vertex]--
		default:
			s.places[parent].up = true
		}
		if vertex = s.before(vertex); vertex == start {
			return
		}
	}
}
