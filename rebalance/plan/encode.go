package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
)

// Assignments are sent and kept in three forms. They consist of unsigned varints, and of strings with
// their length before them:
//
//	whole     version, record, index, nodes, queues with the owner of each shard
//	delta     the differences from the assignment before; see AppendDelta
//	snapshot  a whole assignment with its length, and the index of each shard's last move
//
// An owner is 0 for none, or 1 + the index of the node. So a shard of a whole assignment costs one
// byte in a cluster of up to 127 nodes, and two bytes in a larger cluster.

// Version is the first byte of an encoded assignment. A new format gets a new number, so that nodes
// of two releases do not misread each other.
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

// Decode reads the output of Append. It returns an error for anything else.
func Decode(data []byte) (*Assignment, error) {
	if len(data) == 0 || data[0] != Version {
		return nil, fmt.Errorf("decode assignment: unknown version in %d bytes, want version %d", len(data), Version)
	}
	r := reader{rest: data[1:]}
	a := &Assignment{Generation: Generation{Record: r.readUvarint(), Index: r.readUvarint()}}
	for range r.readList(1) {
		a.Nodes = append(a.Nodes, r.readString())
	}
	for range r.readList(2) {
		p := Placement{Queue: r.readString()}
		shards := r.readCount(1)
		if r.checkSize(p.Queue, uint64(shards)); r.err != nil {
			break
		}
		p.Owners = r.readOwners(slices.Grow(p.Owners, shards), shards, len(a.Nodes))
		a.Queues = append(a.Queues, p)
	}
	if err := r.finish(a); err != nil {
		return nil, fmt.Errorf("decode assignment: %w", err)
	}
	return a, nil
}

// AppendSnapshot appends the assignment with its length. Then it appends the index of each shard's last
// move, in the order of the assignment.
func (a *Assignment) AppendSnapshot(b []byte) []byte {
	b = appendString(b, string(a.Append(nil)))
	for _, q := range a.Queues {
		for _, index := range a.MovedAt[q.Queue] {
			b = binary.AppendUvarint(b, index)
		}
	}
	return b
}

// DecodeSnapshot reads the output of AppendSnapshot.
func DecodeSnapshot(data []byte) (*Assignment, error) {
	r := reader{rest: data}
	a, err := Decode([]byte(r.readString()))
	if err != nil {
		return nil, err
	}
	a.MovedAt = make(map[string][]uint64, len(a.Queues))
	for _, q := range a.Queues {
		at := make([]uint64, len(q.Owners))
		for i := range at {
			at[i] = r.readUvarint()
		}
		a.MovedAt[q.Queue] = at
	}
	return a, r.finish(a)
}

// A plan moves few of many shards, and each of its bytes goes to every node. So a Raft entry has only
// the differences from the assignment before, if that is shorter. When a node joins a cluster of 1,000
// with 10,000 shards, that costs some 70 bytes for each node instead of 37,000.

// AppendDelta appends the differences from base to next. They are the Raft index of base; the indexes
// of its nodes that are gone; the names of new nodes; and the indexes of its queues that are gone. Then
// each queue that differs follows: its name, its number of shards, the index and the owner of each moved
// shard that base has, too, and the owners of all shards that base does not have.
func AppendDelta(b []byte, base, next *Assignment) []byte {
	b = binary.AppendUvarint(b, base.Generation.Index)
	b = appendGone(b, base.Nodes, next.Nodes)
	b = appendStrings(b, slices.DeleteFunc(slices.Clone(next.Nodes), func(name string) bool { return containsName(base.Nodes, name) }))
	b = appendGone(b, base.queueNames(), next.queueNames())
	differ := uint64(0)
	var placements []byte
	index := indexesIn(base.Nodes, next.Nodes)
	for _, q := range next.Queues {
		was := base.ownersOf(q.Queue)
		shared := min(len(was), len(q.Owners))
		var moves []int
		for i := range shared {
			if translateOwner(was[i], index) != q.Owners[i] {
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

// ApplyDelta returns the assignment that a delta makes from a. It returns nil if the delta belongs to
// another assignment than a. All nodes find the same.
func (a *Assignment) ApplyDelta(delta []byte) (*Assignment, error) {
	r := reader{rest: delta}
	if base := r.readUvarint(); r.err == nil && base != a.Generation.Index {
		return nil, nil
	}
	next := &Assignment{Nodes: r.readRemaining(a.Nodes)}
	for range r.readList(1) {
		next.Nodes = append(next.Nodes, r.readString())
	}
	slices.Sort(next.Nodes)
	index := indexesIn(a.Nodes, next.Nodes)
	for _, name := range r.readRemaining(a.queueNames()) {
		owners := slices.Clone(a.ownersOf(name))
		for i, owner := range owners {
			owners[i] = translateOwner(owner, index)
		}
		next.Queues = append(next.Queues, Placement{name, owners})
	}
	for range r.readList(3) {
		r.readPlacement(next)
	}
	if err := r.finish(next); err != nil {
		return nil, fmt.Errorf("decode delta of assignment %s: %w", a.Generation, err)
	}
	return next, nil
}

// indexesIn returns the index of each name in others, or None. others must be ascending.
func indexesIn(names, others []string) []int32 {
	list := make([]int32, len(names))
	for i, name := range names {
		list[i] = None
		if k, is := slices.BinarySearch(others, name); is {
			list[i] = int32(k)
		}
	}
	return list
}

// translateOwner returns the new index of an owner.
func translateOwner(owner int32, index []int32) int32 {
	if owner == None {
		return None
	}
	return index[owner]
}

func containsName(ascending []string, name string) bool {
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

// appendGone appends how many names are not among others, and their indexes. Both lists must be
// ascending.
func appendGone(b []byte, names, others []string) []byte {
	gone, indexes := uint64(0), []byte(nil)
	for i, name := range names {
		if !containsName(others, name) {
			gone++
			indexes = binary.AppendUvarint(indexes, uint64(i))
		}
	}
	return append(binary.AppendUvarint(b, gone), indexes...)
}

var errShort = errors.New("ends too early")

// reader takes values off the front of a byte slice. After the first error it returns zeros.
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

func (r *reader) readUvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// readCount reads a number of things that take at least size bytes each. So a damaged count cannot ask
// for more memory than its bytes could fill.
func (r *reader) readCount(size int) int {
	n := r.readUvarint()
	if n > uint64(len(r.rest)/size) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

// readList reads the number of a list's items, each of at least size bytes, and yields once for each. It ends at the first
// error, so that the items behind a fault cost nothing.
func (r *reader) readList(size int) func(yield func() bool) {
	return func(yield func() bool) {
		for n := r.readCount(size); n > 0 && r.err == nil && yield(); n-- {
		}
	}
}

func (r *reader) readString() string {
	n := r.readCount(1)
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// checkSize refuses a queue with more shards than a queue may have.
func (r *reader) checkSize(queue string, shards uint64) {
	if shards > lowkiq.MaxShards {
		r.fail(fmt.Errorf("queue %q has %d shards, the limit is %d", queue, shards, lowkiq.MaxShards))
	}
}

// readOwners appends the owners of shards to list until list has the given length.
func (r *reader) readOwners(list []int32, length, nodes int) []int32 {
	for r.err == nil && len(list) < length {
		owner := r.readUvarint()
		if owner > uint64(nodes) {
			r.fail(fmt.Errorf("owner %d of %d nodes", owner, nodes))
		}
		list = append(list, int32(owner)-1)
	}
	return list
}

// readRemaining reads which names are gone, and returns the others.
func (r *reader) readRemaining(names []string) []string {
	gone := make([]bool, len(names))
	for range r.readList(1) {
		if i := r.readUvarint(); i < uint64(len(names)) {
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

// readPlacement reads a queue of a delta and puts it into next.
func (r *reader) readPlacement(next *Assignment) {
	name, shards := r.readString(), r.readUvarint()
	r.checkSize(name, shards)
	at, known := slices.BinarySearchFunc(next.Queues, name, func(p Placement, name string) int { return strings.Compare(p.Queue, name) })
	if !known {
		next.Queues = slices.Insert(next.Queues, at, Placement{Queue: name})
	}
	owners := next.Queues[at].Owners
	owners = owners[:min(uint64(len(owners)), shards)]
	for range r.readList(2) {
		i, owner := r.readUvarint(), r.readOwners(nil, 1, len(next.Nodes))
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
		owners = r.readOwners(owners, int(shards), len(next.Nodes))
	}
	next.Queues[at].Owners = owners
}

// finish returns the error of the bytes, or of the assignment that was read from them. Lookups rely
// on the order of an assignment.
func (r *reader) finish(a *Assignment) error {
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
