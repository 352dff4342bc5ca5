package rebalance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// assignmentVersion is the first byte of an encoded assignment. A change of the
// format is a new number, so that nodes of two versions do not misread each other.
const assignmentVersion = 1

// AppendBinary appends the assignment's encoding to b: the version byte, then
// unsigned varints and length-prefixed strings: record, index, nodes, and per queue
// its name and its owners, each as 0 for none or the node's index + 1. A shard
// costs one byte in a cluster of up to 127 nodes and two beyond.
func (a *Assignment) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, assignmentVersion)
	b = binary.AppendUvarint(b, a.Generation.Record)
	b = binary.AppendUvarint(b, a.Generation.Index)
	b = binary.AppendUvarint(b, uint64(len(a.Nodes)))
	for _, name := range a.Nodes {
		b = appendString(b, name)
	}
	b = binary.AppendUvarint(b, uint64(len(a.Queues)))
	for _, q := range a.Queues {
		b = appendString(b, q.Queue)
		b = binary.AppendUvarint(b, uint64(len(q.Owners)))
		for _, owner := range q.Owners {
			b = binary.AppendUvarint(b, uint64(owner+1))
		}
	}
	return b, nil
}

// MarshalBinary returns the assignment's encoding; it never fails.
func (a *Assignment) MarshalBinary() ([]byte, error) { return a.AppendBinary(nil) }

// UnmarshalBinary reads what MarshalBinary wrote. Anything else is an error, and
// leaves a as it was.
func (a *Assignment) UnmarshalBinary(data []byte) error {
	if len(data) == 0 || data[0] != assignmentVersion {
		return fmt.Errorf("decode assignment: unknown version in %d bytes, want version %d", len(data), assignmentVersion)
	}
	r := reader{rest: data[1:]}
	var next Assignment
	next.Generation = Generation{Record: r.uvarint(), Index: r.uvarint()}
	for range r.count(1) {
		next.Nodes = append(next.Nodes, r.string())
	}
	for range r.count(2) {
		next.Queues = append(next.Queues, r.placement(len(next.Nodes)))
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.rest))
	}
	if r.err == nil {
		r.err = next.check()
	}
	if r.err != nil {
		return fmt.Errorf("decode assignment: %w", r.err)
	}
	*a = next
	return nil
}

// check verifies the order that lookups rely on.
func (a *Assignment) check() error {
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

var errShort = errors.New("ends too early")

// reader takes values off the front of a byte slice; after the first error it
// yields zeros.
type reader struct {
	rest []byte
	err  error
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

func (r *reader) placement(nodes int) Placement {
	p := Placement{Queue: r.string()}
	n := r.count(1)
	if n > lowkiq.MaxShards {
		r.fail(fmt.Errorf("queue %q has %d shards, the limit is %d", p.Queue, n, lowkiq.MaxShards))
		return p
	}
	p.Owners = slices.Grow(p.Owners, n)
	for i := range n {
		owner := r.uvarint()
		if owner > uint64(nodes) {
			r.fail(fmt.Errorf("shard %s/%d: owner %d of %d nodes", p.Queue, i, owner, nodes))
		}
		if r.err != nil {
			return p
		}
		p.Owners = append(p.Owners, int32(owner)-1)
	}
	return p
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
