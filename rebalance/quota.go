package rebalance

import (
	"cmp"
	"math/bits"
	"slices"
)

// one is a whole shard in fixed point.
const one = int64(1) << 32

// share computes the quotas, rounded down, and how many are to be rounded up.
func (p *planner) share(q *queuePlan) {
	q.want = make([]int32, len(q.nodes))
	q.part = make([]int64, len(q.nodes))
	if len(q.nodes) == 0 {
		return
	}
	shards, total := uint64(len(q.owners)-q.pinned), uint64(0)
	for _, node := range q.nodes {
		total += p.weight(node)
	}
	q.spare = int(shards)
	for seat, node := range q.nodes {
		product := shards * p.weight(node) // at most 10^6 x 10^6
		q.want[seat] = int32(product / total)
		q.spare -= int(q.want[seat])
		// The remainder is below total, so the quotient fits 32 bits; a fraction that is
		// not zero must not become zero.
		rest := product % total
		part, _ := bits.Div64(rest>>32, rest<<32, total)
		if rest > 0 {
			part = max(part, 1)
		}
		q.part[seat] = int64(part)
		p.excess[node] -= q.part[seat]
	}
	p.roundUpFree(q)
}

func (p *planner) weight(node int32) uint64 {
	return uint64(min(max(p.nodes[node].Weight, 1), MaxWeight))
}

// roundUpFree rounds up the quotas of nodes that have more than their quota rounded
// down, if all of them can be: each such rounding spares a move.
func (p *planner) roundUpFree(q *queuePlan) {
	above := 0
	for seat := range q.nodes {
		if q.mayRound(seat) && q.have[seat] > q.want[seat] {
			above++
		}
	}
	if above > q.spare {
		return
	}
	for seat := range q.nodes {
		if q.mayRound(seat) && q.have[seat] > q.want[seat] {
			p.round(q, seat)
		}
	}
}

// mayRound reports whether the seat's quota has a fraction that is not yet rounded
// up. A rounded seat's fraction is set to zero.
func (q *queuePlan) mayRound(seat int) bool { return q.part[seat] > 0 }

func (p *planner) round(q *queuePlan, seat int) {
	q.want[seat]++
	q.part[seat] = 0
	q.spare--
	p.excess[q.nodes[seat]] += one
}

// candidate is a seat whose quota may be rounded up.
type candidate struct {
	seat   int32
	above  bool // it has more than its quota rounded down: rounding up spares a move
	excess int64
	hash   uint64
}

// roundUp rounds up as many quotas as the queue has spare shards: first where that
// spares a move, then where the node has the least of all queues together.
func (p *planner) roundUp(q *queuePlan) {
	if q.spare == 0 {
		return
	}
	queue := hashName(q.name)
	candidates := make([]candidate, 0, len(q.nodes))
	for seat, node := range q.nodes {
		if q.mayRound(seat) {
			candidates = append(candidates, candidate{int32(seat), q.have[seat] > q.want[seat],
				p.excess[node], mix(queue, p.hashes[node])})
		}
	}
	selectFirst(candidates, q.spare)
	for _, c := range candidates[:q.spare] {
		p.round(q, int(c.seat))
	}
}

func (c candidate) compare(other candidate) int {
	if c.above != other.above {
		if c.above {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(c.excess, other.excess), cmp.Compare(c.hash, other.hash), cmp.Compare(c.seat, other.seat))
}

// selectFirst moves the k first candidates to the front, in any order (quickselect:
// Hoare, 1961). Sorting all of them would be most of the work of a large plan.
func selectFirst(candidates []candidate, k int) {
	lo, hi := 0, len(candidates)
	for hi-lo > 1 {
		pivot, last, at := candidates[lo+(hi-lo)/2], hi-1, lo
		candidates[lo+(hi-lo)/2], candidates[last] = candidates[last], candidates[lo+(hi-lo)/2]
		for i := lo; i < last; i++ {
			if candidates[i].compare(pivot) < 0 {
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

// shed takes from each node what it has beyond its quota: what moved last goes first,
// then the highest index. So a node that is restarted gets back what the others took
// over from it, and a rolling restart moves each shard twice.
func (p *planner) shed(q *queuePlan) {
	over := 0
	for seat := range q.nodes {
		over += int(max(0, q.have[seat]-q.want[seat]))
	}
	if over == 0 {
		return
	}
	p.sit(q)
	for _, i := range p.lastMovedFirst(q) {
		if over == 0 {
			return
		}
		owner := q.owners[i]
		if owner == None {
			continue
		}
		if seat := p.seats[owner]; seat >= 0 && q.have[seat] > q.want[seat] {
			q.owners[i] = None
			q.have[seat]--
			over--
		}
	}
}

// lastMovedFirst lists a queue's shards, from the one that moved last.
func (p *planner) lastMovedFirst(q *queuePlan) []int {
	order := make([]int, len(q.owners))
	for i := range order {
		order[i] = len(order) - 1 - i
	}
	since := p.current.since[q.name]
	if len(since) == 0 {
		return order
	}
	at := func(i int) uint64 {
		if i < len(since) {
			return since[i]
		}
		return 0
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(at(j), at(i)) })
	return order
}

// need is what a seat still has to be given.
type need struct {
	node, missing int32
	hash          uint64
}

// deal gives the shards without owner to the nodes below their quota, one at a
// time, always to one that misses most.
func (p *planner) deal(q *queuePlan) {
	queue := hashName(q.name)
	var needs []need
	for seat, node := range q.nodes {
		if missing := q.want[seat] - q.have[seat]; missing > 0 {
			needs = append(needs, need{node, missing, mix(queue, p.hashes[node])})
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

// hashName is FNV-1a (Fowler, Noll and Vo), 64 bits.
func hashName(name string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 1099511628211
	}
	return hash
}

// mix joins two hashes with the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
func mix(a, b uint64) uint64 {
	x := a ^ bits.RotateLeft64(b, 32)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
