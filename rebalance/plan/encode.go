package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
)

// The forms in which assignments are sent and kept, of unsigned varints and strings with
// their length before them:
//
//	whole     version, record, index, nodes, queues with the owner of each shard
//	delta     what differs from the assignment before; see AppendDelta
//	snapshot  a whole one with its length, and the index of each shard's last move
//
// An owner is 0 for none, or 1 + the index of the node. So a shard of a whole assignment
// costs one byte in a cluster of up to 127 nodes and two beyond.

// Version is the first byte of an encoded assignment. A change of the format is a new
// number, so that nodes of two releases do not misread each other.
const Version = 1

// Append appends the encoding of the whole assignment, without MovedAt.
func (a *Assignment) Append(b []byte) []byte {
	b = append(b, Version)
	b = binary.AppendUvarint(b, a.Generation.Record)
	b = binary.AppendUvarint(b, a.Generation.Index)
	b = appendStrings(b, a.Nodes)
	b = binary.AppendUvarint(b, uint64(len(a.Queues)))
	for _, q := range a.Queues {
		b = appendString(b, q.Queue)
		b = binary.AppendUvarint(b, uint64(len(q.Owners)))
		b = appendOwners(b, q.Owners)
	}
	return b
}

// Decode reads what Append wrote; anything else is an error.
func Decode(data []byte) (*Assignment, error) {
	if len(data) == 0 || data[0] != Version {
		return nil, fmt.Errorf("decode assignment: unknown version in %d bytes, want version %d", len(data), Version)
	}
	r := reader{rest: data[1:]}
	a := &Assignment{Generation: Generation{Record: r.uvarint(), Index: r.uvarint()}}
	for range r.count(1) {
		a.Nodes = append(a.Nodes, r.string())
	}
	for range r.count(2) {
		p := Placement{Queue: r.string()}
		shards := r.count(1)
		r.limit(p.Queue, uint64(shards))
		p.Owners = r.owners(slices.Grow(p.Owners, shards), shards, len(a.Nodes))
		a.Queues = append(a.Queues, p)
	}
	if err := r.end(a); err != nil {
		return nil, fmt.Errorf("decode assignment: %w", err)
	}
	return a, nil
}

// AppendSnapshot appends the assignment with its length and, in its order, the index at
// which each shard last moved.
func (a *Assignment) AppendSnapshot(b []byte) []byte {
	b = appendString(b, string(a.Append(nil)))
	for _, q := range a.Queues {
		for _, index := range a.MovedAt[q.Queue] {
			b = binary.AppendUvarint(b, index)
		}
	}
	return b
}

// DecodeSnapshot reads what AppendSnapshot wrote.
func DecodeSnapshot(data []byte) (*Assignment, error) {
	r := reader{rest: data}
	a, err := Decode([]byte(r.string()))
	if err != nil {
		return nil, err
	}
	a.MovedAt = make(map[string][]uint64, len(a.Queues))
	for _, q := range a.Queues {
		at := make([]uint64, len(q.Owners))
		for i := range at {
			at[i] = r.uvarint()
		}
		a.MovedAt[q.Queue] = at
	}
	return a, r.end(a)
}

// A plan moves few shards of many, and each of its bytes goes to every node. So where that
// is shorter a Raft entry says what differs from the assignment before: a node that joins a
// cluster of 1,000 with 10,000 shards costs some 70 bytes each instead of 37,000.

// AppendDelta appends what makes next of the assignment base: the Raft index of base; which
// of its nodes are gone, by index; the names of the new ones; which of its queues are gone,
// by index; and of each queue that differs its name, how many shards it has, the index and
// the owner of each that moved of those that base has too, and the owners of all beyond.
func AppendDelta(b []byte, base, next *Assignment) []byte {
	b = binary.AppendUvarint(b, base.Generation.Index)
	b = appendGone(b, base.Nodes, next.Nodes)
	b = appendStrings(b, slices.DeleteFunc(slices.Clone(next.Nodes), func(name string) bool { return has(base.Nodes, name) }))
	b = appendGone(b, base.queues(), next.queues())
	differ := uint64(0)
	var placements []byte
	index := indexes(base.Nodes, next.Nodes)
	for _, q := range next.Queues {
		was := base.placement(q.Queue)
		shared := min(len(was), len(q.Owners))
		var moves []int
		for i := range shared {
			if translate(was[i], index) != q.Owners[i] {
				moves = append(moves, i)
			}
		}
		if len(moves) == 0 && was != nil && len(was) == len(q.Owners) {
			continue
		}
		differ++
		placements = appendString(placements, q.Queue)
		placements = binary.AppendUvarint(placements, uint64(len(q.Owners)))
		placements = binary.AppendUvarint(placements, uint64(len(moves)))
		for _, i := range moves {
			placements = binary.AppendUvarint(placements, uint64(i))
			placements = appendOwners(placements, q.Owners[i:i+1])
		}
		placements = appendOwners(placements, q.Owners[shared:])
	}
	return append(binary.AppendUvarint(b, differ), placements...)
}

// ApplyDelta returns the assignment that a delta makes of a. A delta of another assignment
// than a changes nothing, on whatever node it is read: the result is nil.
func (a *Assignment) ApplyDelta(delta []byte) (*Assignment, error) {
	r := reader{rest: delta}
	if base := r.uvarint(); r.err == nil && base != a.Generation.Index {
		return nil, nil
	}
	next := &Assignment{Nodes: r.remain(a.Nodes)}
	for range r.count(1) {
		next.Nodes = append(next.Nodes, r.string())
	}
	slices.Sort(next.Nodes)
	index := indexes(a.Nodes, next.Nodes)
	for _, name := range r.remain(a.queues()) {
		owners := slices.Clone(a.placement(name))
		for i, owner := range owners {
			owners[i] = translate(owner, index)
		}
		next.Queues = append(next.Queues, Placement{name, owners})
	}
	for range r.count(3) {
		r.placement(next)
	}
	if err := r.end(next); err != nil {
		return nil, fmt.Errorf("decode delta of assignment %s: %w", a.Generation, err)
	}
	return next, nil
}

// indexes returns for each of the names its index in others, which are ascending, or None.
func indexes(names, others []string) []int32 {
	list := make([]int32, len(names))
	for i, name := range names {
		list[i] = None
		if k, is := slices.BinarySearch(others, name); is {
			list[i] = int32(k)
		}
	}
	return list
}

// translate returns what an owner is under the new indexes.
func translate(owner int32, index []int32) int32 {
	if owner == None {
		return None
	}
	return index[owner]
}

func has(ascending []string, name string) bool {
	_, is := slices.BinarySearch(ascending, name)
	return is
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func appendOwners(b []byte, owners []int32) []byte {
	for _, owner := range owners {
		b = binary.AppendUvarint(b, uint64(owner+1))
	}
	return b
}

// appendGone appends how many of the names are not among the others, and their indexes.
// Both are ascending.
func appendGone(b []byte, names, others []string) []byte {
	gone, indexes := uint64(0), []byte(nil)
	for i, name := range names {
		if !has(others, name) {
			gone++
			indexes = binary.AppendUvarint(indexes, uint64(i))
		}
	}
	return append(binary.AppendUvarint(b, gone), indexes...)
}

var errShort = errors.New("ends too early")

// reader takes values off the front of a byte slice; after the first error it
// yields zeros.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// count reads a number of things that take at least size bytes each, so that a
// damaged count cannot ask for more memory than its bytes could fill.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.rest)/size) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.count(1)
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// limit refuses a queue of more shards than there may be.
func (r *reader) limit(queue string, shards uint64) {
	if shards > lowkiq.MaxShards {
		r.fail(fmt.Errorf("queue %q has %d shards, the limit is %d", queue, shards, lowkiq.MaxShards))
	}
}

// owners appends the owners of shards to list until it has the given length.
func (r *reader) owners(list []int32, length, nodes int) []int32 {
	for r.err == nil && len(list) < length {
		owner := r.uvarint()
		if owner > uint64(nodes) {
			r.fail(fmt.Errorf("owner %d of %d nodes", owner, nodes))
		}
		list = append(list, int32(owner)-1)
	}
	return list
}

// remain reads which of the names are gone and returns the others.
func (r *reader) remain(names []string) []string {
	gone := make([]bool, len(names))
	for range r.count(1) {
		if i := r.uvarint(); i < uint64(len(names)) {
			gone[i] = true
		} else {
			r.fail(fmt.Errorf("%d of %d names is gone", i, len(names)))
		}
	}
	var rest []string
	for i, name := range names {
		if !gone[i] {
			rest = append(rest, name)
		}
	}
	return rest
}

// placement reads one queue of a delta and puts it into next.
func (r *reader) placement(next *Assignment) {
	name, shards := r.string(), r.uvarint()
	r.limit(name, shards)
	at, known := slices.BinarySearchFunc(next.Queues, name, func(p Placement, name string) int { return strings.Compare(p.Queue, name) })
	if !known {
		next.Queues = slices.Insert(next.Queues, at, Placement{Queue: name})
	}
	owners := next.Queues[at].Owners
	owners = owners[:min(uint64(len(owners)), shards)]
	for range r.count(2) {
		i, owner := r.uvarint(), r.owners(nil, 1, len(next.Nodes))
		switch {
		case r.err != nil:
			return
		case i >= uint64(len(owners)):
			r.fail(fmt.Errorf("queue %q: shard %d moves of %d", name, i, len(owners)))
			return
		}
		owners[i] = owner[0]
	}
	if r.err == nil {
		owners = r.owners(owners, int(shards), len(next.Nodes))
	}
	next.Queues[at].Owners = owners
}

// end returns what was wrong with the bytes or with the assignment read from them: lookups
// rely on its order.
func (r *reader) end(a *Assignment) error {
	switch {
	case r.err != nil:
		return r.err
	case len(r.rest) > 0:
		return fmt.Errorf("%d bytes too many", len(r.rest))
	}
	for i := 1; i < len(a.Nodes); i++ {
		if a.Nodes[i-1] >= a.Nodes[i] {
			return fmt.Errorf("node %q after %q: not ascending", a.Nodes[i], a.Nodes[i-1])
		}
	}
	for i := 1; i < len(a.Queues); i++ {
		if a.Queues[i-1].Queue >= a.Queues[i].Queue {
			return fmt.Errorf("queue %q after %q: not ascending", a.Queues[i].Queue, a.Queues[i-1].Queue)
		}
	}
	return nil
}
