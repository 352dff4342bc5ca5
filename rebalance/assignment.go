package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/lowkiq/lowkiq"
)

// Generation says which of two assignments is newer. Record is compared first: a
// cluster that was born again counts Raft indexes from the start, under a higher
// record id.
type Generation struct {
	Record uint64 `json:"record"` // the cluster record's id
	Index  uint64 `json:"index"`  // the Raft index at which it was agreed
}

// Compare returns -1, 0 or +1 as g is older than, the same as or newer than other.
func (g Generation) Compare(other Generation) int {
	return cmp.Or(cmp.Compare(g.Record, other.Record), cmp.Compare(g.Index, other.Index))
}

// String returns "record.index".
func (g Generation) String() string { return fmt.Sprintf("%d.%d", g.Record, g.Index) }

// None is the owner of a shard that no node should own.
const None int32 = -1

// Assignment is the agreed map shard -> node. It is a value that nobody changes
// once it is made, so it may be shared between goroutines. The zero Assignment
// assigns nothing.
type Assignment struct {
	Generation Generation
	Nodes      []string    // the names that own something, ascending
	Queues     []Placement // ascending by name

	// since is the Raft index of each shard's last move, by queue; nil if unknown.
	since map[string][]uint64
}

// Placement says who owns the shards of one queue.
type Placement struct {
	Queue  string
	Owners []int32 // by shard index: an index into Assignment.Nodes, or None
}

// placement returns the owners of a queue's shards, nil if the queue is unknown.
func (a *Assignment) placement(queue string) []int32 {
	i, ok := sort.Find(len(a.Queues), func(i int) int { return cmp.Compare(queue, a.Queues[i].Queue) })
	if !ok {
		return nil
	}
	return a.Queues[i].Owners
}

// Owner returns the name of the node that should own the shard, "" if none.
func (a *Assignment) Owner(shard lowkiq.Shard) string {
	owners := a.placement(shard.Queue)
	if shard.Index < 0 || shard.Index >= len(owners) {
		return ""
	}
	return a.name(owners[shard.Index])
}

// name returns the name behind an entry of Owners.
func (a *Assignment) name(owner int32) string {
	if owner == None {
		return ""
	}
	return a.Nodes[owner]
}

// Owned returns the shards that the node should own, ordered by queue and index.
func (a *Assignment) Owned(node string) []lowkiq.Shard {
	n, ok := slices.BinarySearch(a.Nodes, node)
	if !ok {
		return nil
	}
	var shards []lowkiq.Shard
	for _, q := range a.Queues {
		for i, owner := range q.Owners {
			if owner == int32(n) {
				shards = append(shards, lowkiq.Shard{Queue: q.Queue, Index: i})
			}
		}
	}
	return shards
}

// Counts returns how many shards of the queue each node should own.
func (a *Assignment) Counts(queue string) map[string]int {
	counts := map[string]int{}
	for _, owner := range a.placement(queue) {
		if owner != None {
			counts[a.Nodes[owner]]++
		}
	}
	return counts
}

// SamePlaces reports whether a and other assign every shard alike, at whatever
// generations.
func (a *Assignment) SamePlaces(other *Assignment) bool {
	return slices.Equal(a.Nodes, other.Nodes) &&
		slices.EqualFunc(a.Queues, other.Queues, func(x, y Placement) bool {
			return x.Queue == y.Queue && slices.Equal(x.Owners, y.Owners)
		})
}

// Change is a shard whose owner differs between two assignments. An empty name
// means no owner.
type Change struct {
	Shard    lowkiq.Shard
	From, To string
}

// Diff returns what changes from a to next, ordered by queue and index. Shards that
// only one of the two knows count as having no owner in the other.
func (a *Assignment) Diff(next *Assignment) []Change {
	var changes []Change
	for _, queue := range queueNames(a, next) {
		was, is := a.placement(queue), next.placement(queue)
		for i := range max(len(was), len(is)) {
			from, to := a.at(was, i), next.at(is, i)
			if from != to {
				changes = append(changes, Change{lowkiq.Shard{Queue: queue, Index: i}, from, to})
			}
		}
	}
	return changes
}

// at returns the owner's name at index i, "" past the end.
func (a *Assignment) at(owners []int32, i int) string {
	if i >= len(owners) {
		return ""
	}
	return a.name(owners[i])
}

// queueNames returns the names of the queues of both assignments, ascending.
func queueNames(a, b *Assignment) []string {
	names := make([]string, 0, len(a.Queues)+len(b.Queues))
	for _, q := range a.Queues {
		names = append(names, q.Queue)
	}
	for _, q := range b.Queues {
		names = append(names, q.Queue)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
