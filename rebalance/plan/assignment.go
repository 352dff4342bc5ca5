package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/lowkiq/lowkiq"
)

// Generation says which of two assignments is newer. Record is compared first: a
// cluster whose Raft group was founded again counts Raft indexes from the start, under
// a higher record id.
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

// Assignment is the agreed map shard -> node. It is never changed once it is made, so
// goroutines may share it. The zero Assignment assigns nothing.
type Assignment struct {
	Generation Generation
	Nodes      []string    // the names that own something, ascending
	Queues     []Placement // ascending by name

	// MovedAt is the Raft index of each shard's last move, by queue and shard index; 0 is
	// a shard that has not moved under this record. nil if unknown.
	MovedAt map[string][]uint64
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
	if shard.Index < 0 {
		return ""
	}
	return a.at(a.placement(shard.Queue), shard.Index)
}

// at returns the owner's name at index i, "" if there is none or i is past the end.
func (a *Assignment) at(owners []int32, i int) string {
	if i >= len(owners) || owners[i] == None {
		return ""
	}
	return a.Nodes[owners[i]]
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
	queues := append(a.queues(), next.queues()...)
	slices.Sort(queues)
	for _, queue := range slices.Compact(queues) {
		was, is := a.placement(queue), next.placement(queue)
		for i := range max(len(was), len(is)) {
			if from, to := a.at(was, i), next.at(is, i); from != to {
				changes = append(changes, Change{lowkiq.Shard{Queue: queue, Index: i}, from, to})
			}
		}
	}
	return changes
}

// queues returns the names of the queues, ascending.
func (a *Assignment) queues() []string {
	names := make([]string, len(a.Queues))
	for i, q := range a.Queues {
		names[i] = q.Queue
	}
	return names
}

// Follow makes a the assignment that is agreed after base: it sets the generation, and
// notes of the shards whose owner is another than in base that they moved at the index.
func (a *Assignment) Follow(base *Assignment, agreed Generation, moved uint64) {
	a.Generation, a.MovedAt = agreed, make(map[string][]uint64, len(a.Queues))
	for _, q := range a.Queues {
		was, at := base.placement(q.Queue), make([]uint64, len(q.Owners))
		for i := range q.Owners {
			at[i] = moved
			if i < len(was) && base.at(was, i) == a.at(q.Owners, i) {
				at[i] = base.movedAt(q.Queue, i)
			}
		}
		a.MovedAt[q.Queue] = at
	}
}

// movedAt returns the Raft index of a shard's last move, 0 if none is known.
func (a *Assignment) movedAt(queue string, shard int) uint64 {
	if at := a.MovedAt[queue]; shard < len(at) {
		return at[shard]
	}
	return 0
}

// Moved reports whether any shard was moved under this record.
func (a *Assignment) Moved() bool {
	for _, at := range a.MovedAt {
		if slices.ContainsFunc(at, func(index uint64) bool { return index > 0 }) {
			return true
		}
	}
	return false
}

// applied returns the assignment without those shards of the laggards that they were
// given after the generation they have applied: they do not know of them.
func (a *Assignment) applied(nodes []Node) *Assignment {
	known := map[string]Generation{}
	for _, n := range nodes {
		if n.Laggard {
			known[n.Name] = n.Applied
		}
	}
	if len(known) == 0 {
		return a
	}
	kept := *a
	kept.Queues = make([]Placement, len(a.Queues))
	for k, q := range a.Queues {
		owners := slices.Clone(q.Owners)
		for i := range owners {
			upTo, laggard := known[a.at(owners, i)]
			given := Generation{a.Generation.Record, a.movedAt(q.Queue, i)}
			if laggard && given.Index > 0 && upTo.Compare(given) < 0 {
				owners[i] = None
			}
		}
		kept.Queues[k] = Placement{q.Queue, owners}
	}
	return &kept
}
