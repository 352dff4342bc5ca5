package plan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// scattered is a random assignment of few nodes and queues.
func scattered(r *rand.Rand) *Assignment {
	owners := map[string]bool{}
	names := [][]string{}
	a := &Assignment{}
	for _, queue := range []string{"a", "b", "c"} {
		if r.IntN(4) == 0 {
			continue
		}
		list := make([]string, r.IntN(6))
		for i := range list {
			if list[i] = []string{"", "n1", "n2", "n3", "n4"}[r.IntN(5)]; list[i] != "" {
				owners[list[i]] = true
			}
		}
		a.Queues = append(a.Queues, Placement{Queue: queue})
		names = append(names, list)
	}
	for name := range owners {
		a.Nodes = append(a.Nodes, name)
	}
	slices.Sort(a.Nodes)
	for k, list := range names {
		for _, name := range list {
			i, is := slices.BinarySearch(a.Nodes, name)
			if !is {
				i = int(None)
			}
			a.Queues[k].Owners = append(a.Queues[k].Owners, int32(i))
		}
	}
	return a
}

// TestDelta checks that a delta leads to the same assignment as the whole plan, and that a damaged delta is refused or
// read.
func TestDelta(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		base, next := scattered(r), scattered(r)
		base.Follow(&Assignment{}, Generation{7, 3}, 0)
		next.Follow(base, Generation{7, 9}, 9)
		delta := AppendDelta(nil, base, next)
		got, err := base.ApplyDelta(delta)
		if err != nil {
			t.Fatal(err)
		}
		got.Follow(base, Generation{7, 9}, 9)
		if !bytes.Equal(got.AppendSnapshot(nil), next.AppendSnapshot(nil)) {
			t.Fatalf("from %+v to %+v: got %+v", base, next, got)
		}
		if later, err := next.ApplyDelta(delta); err != nil || later != nil {
			t.Fatalf("of another assignment: got %+v, %v; want no change", later, err)
		}
		if short, err := base.ApplyDelta(delta[:len(delta)-1]); err == nil && len(delta) > 1 {
			t.Fatalf("cut off: got %+v, want an error", short)
		}
		damaged := slices.Clone(delta)
		damaged[r.IntN(len(damaged))] ^= byte(1 << r.IntN(8))
		if after, err := base.ApplyDelta(damaged); err == nil && after != nil {
			after.Follow(base, Generation{7, 9}, 9)
			if got, err := DecodeSnapshot(after.AppendSnapshot(nil)); err != nil || !got.SamePlaces(after) {
				t.Fatalf("damaged %q: a snapshot of what it makes: %+v, %v", damaged, got, err)
			}
		}
	}
}

// TestBytesOfAPlan checks that the cost of a plan for each of 1,000 nodes follows the moves, not the number of shards.
func TestBytesOfAPlan(t *testing.T) {
	t.Parallel()
	const count, shards = 1000, 10000
	nodes := func(n int) (list []Node) {
		for i := range n {
			list = append(list, Node{Name: fmt.Sprintf("node-%04d.example", i), Weight: 1, Queues: []string{"a", "b"}})
		}
		return list
	}
	queues := []lowkiq.Queue{{Name: "a", Shards: shards / 2}, {Name: "b", Shards: shards / 2}}
	place := func(base *Assignment, nodes []Node) *Assignment {
		next := Compute(base, nodes, queues).Next
		next.Generation = Generation{1, base.Generation.Index + 1}
		return next
	}
	first := place(&Assignment{}, nodes(count))
	for _, c := range []struct {
		what string
		with []Node
		most int
	}{
		{"one joins", nodes(count + 1), 150}, {"one leaves", nodes(count)[1:], 150}, {"a hundred leave", nodes(count)[100:], 6000}, {"nothing", nodes(count), 16},
	} {
		next := place(first, c.with)
		moves, bytes := len(first.Diff(next)), len(AppendDelta(nil, first, next))
		t.Logf("%s: %d moves, %d bytes; the whole has %d", c.what, moves, bytes, len(next.Append(nil)))
		if bytes > c.most {
			t.Errorf("%s: %d bytes for %d moves, want at most %d", c.what, bytes, moves, c.most)
		}
	}
}
