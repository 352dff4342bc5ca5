package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/lowkiq/lowkiq"
)

// Generation says which of two assignments is newer. Record is compared first. If a cluster founds
// its Raft group again, Raft indexes begin anew under a higher record id.
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

// None is the owner of a shard without an owner.
const None int32 = -1

// Assignment is the agreed map from shards to nodes. It does not change, so goroutines may share it.
// The zero Assignment assigns nothing.
type Assignment struct {
	Generation Generation
	Nodes      []string    // the names of nodes that own shards, ascending
	Queues     []Placement // ascending by name

	// MovedAt has the Raft index of each shard's last move, by queue and shard index. It is 0 for a
	// shard that has not moved under this record. It is nil if unknown.
	MovedAt map[string][]uint64
}

// Placement says who owns the shards of a queue.
type Placement struct {
	Queue  string
	Owners []int32 // by shard index; an index into Assignment.Nodes, or None
}

// ownersOf returns the owners of a queue's shards, nil if the queue is unknown.
func (a *Assignment) ownersOf(queue string) []int32 {
	i, ok := sort.Find(len(a.Queues), func(i int) int { return cmp.Compare(queue, a.Queues[i].Queue) })
	if !ok {
		return nil
	}
	return a.Queues[i].Owners
}

// Owner returns the name of the node that should own the shard, "" if there is none.
func (a *Assignment) Owner(shard lowkiq.Shard) string {
	if shard.Index < 0 {
		return ""
	}
	return a.ownerAt(a.ownersOf(shard.Queue), shard.Index)
}

// ownerAt returns the owner's name at index i, "" if there is none or i is past the end.
func (a *Assignment) ownerAt(owners []int32, i int) string {
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

// SamePlaces reports whether a and other give every shard the same owner. It ignores generations.
func (a *Assignment) SamePlaces(other *Assignment) bool {
	return slices.Equal(a.Nodes, other.Nodes) &&
		slices.EqualFunc(a.Queues, other.Queues, func(x, y Placement) bool {
			return x.Queue == y.Queue && slices.Equal(x.Owners, y.Owners)
		})
}

// Change is a shard with another owner in another assignment. An empty name means no owner.
type Change struct {
	Shard    lowkiq.Shard
	From, To string
}

// Diff returns the changes from a to next, ordered by queue and index. A shard that only one of the
// two knows has no owner in the other.
func (a *Assignment) Diff(next *Assignment) []Change {
	var changes []Change
	queues := append(a.queueNames(), next.queueNames()...)
	slices.Sort(queues)
	for _, queue := range slices.Compact(queues) {
		was, is := a.ownersOf(queue), next.ownersOf(queue)
		for i := range max(len(was), len(is)) {
			if from, to := a.ownerAt(was, i), next.ownerAt(is, i); from != to {
				changes = append(changes, Change{lowkiq.Shard{Queue: queue, Index: i}, from, to})
			}
		}
	}
	return changes
}

// queueNames returns the names of the queues, ascending.
func (a *Assignment) queueNames() []string {
	names := make([]string, len(a.Queues))
	for i, q := range a.Queues {
		names[i] = q.Queue
	}
	return names
}

// Follow makes a the assignment that is agreed after base. It sets the generation. It records moved as
// the index of the last move of each shard that has another owner than in base.
func (a *Assignment) Follow(base *Assignment, agreed Generation, moved uint64) {
	a.Generation, a.MovedAt = agreed, make(map[string][]uint64, len(a.Queues))
	for _, q := range a.Queues {
		was, at := base.ownersOf(q.Queue), make([]uint64, len(q.Owners))
		for i := range q.Owners {
			at[i] = moved
			if i < len(was) && base.ownerAt(was, i) == a.ownerAt(q.Owners, i) {
				at[i] = base.movedAt(q.Queue, i)
			}
		}
		a.MovedAt[q.Queue] = at
	}
}

// movedAt returns the Raft index of a shard's last move, 0 if it is unknown.
func (a *Assignment) movedAt(queue string, shard int) uint64 {
	if at := a.MovedAt[queue]; shard < len(at) {
		return at[shard]
	}
	return 0
}

// Moved reports whether any shard has moved under this record.
func (a *Assignment) Moved() bool {
	for _, at := range a.MovedAt {
		if slices.ContainsFunc(at, func(index uint64) bool { return index > 0 }) {
			return true
		}
	}
	return false
}

// withoutUnapplied returns the assignment without the shards that laggards do not know of. A laggard got
// them after the last generation that it has applied.
func (a *Assignment) withoutUnapplied(nodes []Node) *Assignment {
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
			upTo, laggard := known[a.ownerAt(owners, i)]
			given := Generation{a.Generation.Record, a.movedAt(q.Queue, i)}
			if laggard && given.Index > 0 && upTo.Compare(given) < 0 {
				owners[i] = None
			}
		}
		kept.Queues[k] = Placement{q.Queue, owners}
	}
	return &kept
}
