package rebalance

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

// TestDelta: whatever is assigned, a delta leads where the whole leads, and is refused or read when it is damaged.
func TestDelta(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		base, next := scattered(r), scattered(r)
		began, err := (&state{assignment: &Assignment{}}).apply(recordEntry(7, base), 3)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := began.apply(assignEntry(next), 9)
		if err != nil {
			t.Fatal(err)
		}
		entry := deltaEntry(began.assignment, next)
		delta, err := began.apply(entry, 9)
		if err != nil || !bytes.Equal(delta.encode(), whole.encode()) {
			t.Fatalf("from %+v to %+v: got %+v, %v", base, next, delta, err)
		}
		if later, err := whole.apply(entry, 10); err != nil || later != whole {
			t.Fatalf("of another assignment: got %+v, %v; want no change", later, err)
		}
		if short, err := began.apply(entry[:len(entry)-1], 9); err == nil {
			t.Fatalf("cut off: got %+v, want an error", short.assignment)
		}
		damaged := slices.Clone(entry)
		damaged[r.IntN(len(damaged))] ^= byte(1 << r.IntN(8))
		if after, err := began.apply(damaged, 9); err == nil {
			if err := new(state).decode(after.encode()); err != nil {
				t.Fatalf("damaged %q: a snapshot of what it makes: %v", damaged, err)
			}
		}
	}
	if _, err := (&state{assignment: &Assignment{}}).apply(deltaEntry(&Assignment{}, &Assignment{}), 1); err == nil {
		t.Error("before the record id: got no error")
	}
}

// TestBytesOfAPlan: what a plan costs each of 1,000 nodes follows what it moves, not how much there is.
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
		next := Plan(base, nodes, queues).Next
		next.Generation = Generation{1, base.Generation.Index + 1}
		return next
	}
	first := place(&Assignment{}, nodes(count))
	whole := len(assignEntry(first))
	for _, c := range []struct {
		what string
		with []Node
		most int
	}{
		{"one joins", nodes(count + 1), 150}, {"one leaves", nodes(count)[1:], 150}, {"a hundred leave", nodes(count)[100:], 6000}, {"nothing", nodes(count), 16},
	} {
		next := place(first, c.with)
		moves, bytes := len(first.Diff(next)), len(planEntry(first, next))
		t.Logf("%s: %d moves, %d bytes; the whole has %d", c.what, moves, bytes, len(assignEntry(next)))
		if bytes > c.most {
			t.Errorf("%s: %d bytes for %d moves, want at most %d", c.what, bytes, moves, c.most)
		}
	}
	if got := len(planEntry(&Assignment{}, first)); got > whole {
		t.Errorf("the first plan has %d bytes, the whole %d", got, whole)
	}
}
