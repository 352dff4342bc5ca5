package rebalance

import (
	"cmp"
	"math/bits"
	"slices"
)

// share computes the quotas, rounded down, and how many are to be rounded up.
func (p *planner) share(q *queuePlan) {
	q.want = make([]int32, len(q.nodes))
	q.part = make([]bool, len(q.nodes))
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
		q.part[seat] = product%total > 0
		q.spare -= int(q.want[seat])
		p.totals[node] += int64(q.want[seat])
	}
}

func (p *planner) weight(node int32) uint64 {
	return uint64(min(max(p.nodes[node].Weight, 1), MaxWeight))
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
