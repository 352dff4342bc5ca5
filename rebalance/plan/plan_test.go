package plan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
)

var empty = &Assignment{}

// drawCluster draws a small cluster; plain means that all nodes are alike but for
// the queues they handle.
func drawCluster(t *rapid.T, plain bool) ([]Node, []lowkiq.Queue) {
	var queues []lowkiq.Queue
	var names []string
	for i := range rapid.IntRange(1, 6).Draw(t, "queues") {
		names = append(names, fmt.Sprintf("q%d", i))
		queues = append(queues, lowkiq.Queue{Name: names[i], Shards: rapid.IntRange(1, 5).Draw(t, "shards")})
	}
	var nodes []Node
	for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
		nodes = append(nodes, drawNode(t, fmt.Sprintf("n%d", i), names, plain))
	}
	return nodes, queues
}

func drawNode(t *rapid.T, name string, queues []string, plain bool) Node {
	n := Node{Name: name, Weight: 1}
	for _, q := range queues {
		if rapid.IntRange(0, 3).Draw(t, "handles") > 0 {
			n.Queues = append(n.Queues, q)
		}
	}
	if plain {
		return n
	}
	n.Weight = rapid.IntRange(1, 4).Draw(t, "weight")
	n.Draining = rapid.IntRange(0, 5).Draw(t, "draining") == 0
	n.Laggard = rapid.IntRange(0, 5).Draw(t, "laggard") == 0
	for _, q := range n.Queues {
		if rapid.IntRange(0, 3).Draw(t, "unready") == 0 {
			n.Unready = append(n.Unready, q)
		}
	}
	return n
}

// unmarked returns nodes without marks, for which the same plan is right: a handler that is not
// ready is none, where another one is.
func unmarked(nodes []Node) (plain []Node) {
	for _, n := range nodes {
		unready := n.Unready
		n.Unready = nil
		n.Queues = slices.DeleteFunc(slices.Clone(n.Queues), func(q string) bool {
			return !n.Laggard && slices.Contains(unready, q) && slices.ContainsFunc(nodes, func(other Node) bool {
				return !other.Draining && !other.Laggard && slices.Contains(other.Queues, q) && !slices.Contains(other.Unready, q)
			})
		})
		plain = append(plain, n)
	}
	return plain
}

// drawAssignment draws any assignment, also of nodes and shards that no longer are.
func drawAssignment(t *rapid.T, queues []lowkiq.Queue) *Assignment {
	a := &Assignment{Nodes: []string{"n0", "n1", "n2", "n3", "x"}}
	for _, q := range queues {
		owners := rapid.SliceOfN(rapid.Int32Range(None, 4), 0, q.Shards+1).Draw(t, "owners")
		a.Queues = append(a.Queues, Placement{q.Name, owners})
	}
	return a
}

// stayed returns the assignment without the owners that may not keep their shards.
func stayed(a *Assignment, nodes []Node, queues []lowkiq.Queue) *Assignment {
	out := &Assignment{Nodes: a.Nodes}
	for _, q := range queues {
		owners := make([]int32, q.Shards)
		for i := range owners {
			name := a.Owner(lowkiq.Shard{Queue: q.Name, Index: i})
			owners[i] = None
			if slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == name && takes(n, q) }) {
				owners[i] = int32(slices.Index(a.Nodes, name))
			}
		}
		out.Queues = append(out.Queues, Placement{q.Name, owners})
	}
	return out
}

func TestPlanKeepsItsRules(t *testing.T) {
	t.Parallel()
	for range 5 { // a wrong exchange shows in few of the clusters drawn
		rapid.Check(t, checkDrawnPlan)
	}
}

func checkDrawnPlan(t *rapid.T) {
	nodes, queues := drawCluster(t, false)
	current := drawAssignment(t, queues)
	plain := unmarked(nodes)
	if rapid.Bool().Draw(t, "none left") {
		current = stayed(current, plain, queues)
	}
	got := Compute(current, nodes, queues)
	if err := checkPlan(current, plain, queues, got); err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(got.Next.Append(nil)); err != nil { // it checks the order
		t.Fatal(err)
	}
	settled := got
	if got.OwnerLost { // what a departure leaves uneven is the next plan's
		settled = Compute(got.Next, nodes, queues)
		if err := checkPlan(got.Next, plain, queues, settled); err != nil {
			t.Fatalf("second plan: %v", err)
		}
	}
	if again := Compute(settled.Next, nodes, queues); len(again.Moves) > 0 || !again.Next.SamePlaces(settled.Next) {
		t.Fatalf("idempotent: planning again moved %v", again.Moves)
	}
	shuffled := rapid.Permutation(nodes).Draw(t, "nodes shuffled")
	turned := slices.Clone(queues)
	slices.Reverse(turned)
	if other := Compute(current, shuffled, turned); !other.Next.SamePlaces(got.Next) {
		t.Fatalf("order: got %v and %v", got.Next, other.Next)
	}
}

// TestPlanIsMonotone checks that a departure moves the shards of the departed node and nothing else (I5, for equal
// weights).
func TestPlanIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, queues := drawCluster(t, true)
		if len(nodes) == 0 {
			return
		}
		few, one := nodes[1:], nodes[0].Name
		joined := Compute(Compute(empty, few, queues).Next, nodes, queues)
		left := Compute(joined.Next, few, queues)
		for _, m := range left.Moves {
			if m.From != one {
				t.Fatalf("death of %s: moved %v", one, m)
			}
		}
		drained := slices.Clone(nodes)
		drained[0].Draining = true
		if other := Compute(joined.Next, drained, queues); !other.Next.SamePlaces(left.Next) {
			t.Fatalf("drain: got %v, want as death: %v", other.Next, left.Next)
		}
	})
}

// TestPlanEvensTotals checks that all nodes share queues of few shards, at a start and when nodes join. A queue that
// few nodes handle leaves the others to the rest.
func TestPlanEvensTotals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                  string
		nodes, queues, shards int
		first                 int // nodes that are there before the others join
		moves                 int // of the join
		want                  int // shards of each
	}{
		{"20 queues of two shards", 4, 20, 2, 4, 0, 10},
		{"100 queues of one shard", 5, 100, 1, 5, 0, 20},
		{"20 queues of two shards, two nodes join two", 4, 20, 2, 2, 20, 10},
		{"100 queues of one shard, four nodes join one", 5, 100, 1, 1, 80, 20},
		{"100 queues of one shard, one node joins four", 5, 100, 1, 4, 20, 20},
		{"ten queues of a shard more than nodes", 10, 10, 11, 10, 0, 11},
	}
	for _, tt := range tests {
		nodes, queues := cluster(tt.nodes, tt.queues, tt.shards)
		before := Compute(empty, nodes[:tt.first], queues).Next
		got := Compute(before, nodes, queues)
		for _, n := range nodes {
			if owned := len(got.Next.Owned(n.Name)); owned != tt.want {
				t.Errorf("%s: %s got %d shards, want %d", tt.name, n.Name, owned, tt.want)
			}
		}
		if len(got.Moves) != tt.moves {
			t.Errorf("%s: got %d moves, want %d", tt.name, len(got.Moves), tt.moves)
		}
	}
}

// uneven returns a balanced assignment in which node 0 shares its ten queues with node 1, so
// that nodes 2 and 3 get all that it has when it departs.
func uneven() ([]Node, []lowkiq.Queue, *Assignment) {
	nodes, queues := cluster(4, 20, 2)
	current := &Assignment{}
	for i, q := range queues {
		pair := int32(i % 2 * 2)
		current.Queues = append(current.Queues, Placement{q.Name, []int32{pair, pair + 1}})
	}
	for _, n := range nodes {
		current.Nodes = append(current.Nodes, n.Name)
	}
	return nodes, queues, current
}

// TestPlanAfterADeparture checks that only the shards of the departed move at once. The next plan moves others, where
// totals would stay further apart than they need.
func TestPlanAfterADeparture(t *testing.T) {
	t.Parallel()
	nodes, queues, current := uneven()
	died := Compute(current, nodes[1:], queues)
	if len(died.Moves) != 10 || !died.OwnerLost {
		t.Errorf("got %d moves, left %v; want the 10 shards of %s", len(died.Moves), died.OwnerLost, nodes[0].Name)
	}
	totals := func(a *Assignment) (list []int) {
		for _, n := range nodes[1:] {
			list = append(list, len(a.Owned(n.Name)))
		}
		return list
	}
	if got := totals(died.Next); !slices.Equal(got, []int{10, 15, 15}) {
		t.Errorf("after the departure: got totals %v, want 10, 15, 15", got)
	}
	evened := Compute(died.Next, nodes[1:], queues)
	got := totals(evened.Next)
	slices.Sort(got)
	if !slices.Equal(got, []int{13, 13, 14}) || len(evened.Moves) != 3 || evened.OwnerLost {
		t.Errorf("the next plan: got totals %v with %d moves, left %v; want 13, 13, 14 with 3", got, len(evened.Moves), evened.OwnerLost)
	}
}

func TestPlanReasons(t *testing.T) {
	t.Parallel()
	queues := []lowkiq.Queue{{Name: "q", Shards: 4}}
	on := func(name string) Node { return Node{Name: name, Queues: []string{"q"}} }
	a := Compute(empty, []Node{on("a")}, queues).Next
	draining := on("a")
	draining.Draining = true
	unready := func(name string) Node { return Node{Name: name, Queues: []string{"q"}, Unready: []string{"q"}} }
	laggard := on("b")
	laggard.Laggard = true
	tests := []struct {
		name    string
		current *Assignment
		nodes   []Node
		moves   int
		want    Reason
	}{
		{"first", empty, []Node{on("a")}, 4, ReasonUnowned},
		{"gone", a, []Node{on("b")}, 4, ReasonGone},
		{"draining", a, []Node{draining, on("b")}, 4, ReasonDraining},
		{"handler", a, []Node{{Name: "a"}, on("b")}, 4, ReasonHandler},
		{"balance", a, []Node{on("a"), on("b")}, 2, ReasonBalance},
		{"unready", a, []Node{unready("a"), on("b")}, 4, ReasonUnready},
		{"unready, alone", a, []Node{unready("a")}, 0, 0},
		{"unready, as all are", a, []Node{unready("a"), unready("b")}, 2, ReasonBalance},
		{"unready, and who is ready leaves", a, []Node{unready("a"), func() Node { b := on("b"); b.Draining = true; return b }()}, 0, 0},
		{"unready, and who is ready is a laggard", a, []Node{unready("a"), laggard}, 0, 0},
		{"unready for another queue", a, []Node{{Name: "a", Queues: []string{"q", "r"}, Unready: []string{"r"}}, on("b")}, 2, ReasonBalance},
		{"unready, and is given nothing", a, []Node{on("a"), unready("b")}, 0, 0},
	}
	for _, tt := range tests {
		moves := Compute(tt.current, tt.nodes, queues).Moves
		if len(moves) != tt.moves {
			t.Errorf("%s: got %d moves, want %d", tt.name, len(moves), tt.moves)
		}
		for _, m := range moves {
			if m.Reason != tt.want {
				t.Errorf("%s: got reason %q, want %q", tt.name, m.Reason, tt.want)
			}
		}
	}
}

func TestPlanWeights(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(3, 1, 100)
	nodes[0].Weight, nodes[1].Weight, nodes[2].Weight = 1, 3, 6
	got := Compute(empty, nodes, queues).Next
	for i, want := range []int{10, 30, 60} {
		if owned := len(got.Owned(nodes[i].Name)); owned != want {
			t.Errorf("%s: got %d shards, want %d", nodes[i].Name, owned, want)
		}
	}
}

// TestCheckPlanObjects breaks each rule on purpose.
func TestCheckPlanObjects(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(3, 1, 6)
	nodes = append(nodes, Node{Name: "z", Weight: 1, Queues: nodes[0].Queues, Draining: true})
	current := Compute(empty, nodes[:3], queues).Next
	laggard := slices.Clone(nodes)
	laggard[1].Laggard = true
	owners := func(p Result) []int32 { return p.Next.Queues[0].Owners }
	tests := []struct {
		name  string
		nodes []Node
		spoil func(p *Result)
		want  string
	}{
		{"no owner", nodes, func(p *Result) { owners(*p)[0] = None }, "coverage"},
		{"queue left out", nodes, func(p *Result) { p.Next.Queues = nil }, "coverage"},
		{"draining", nodes, func(p *Result) { p.Next.Nodes = append(p.Next.Nodes, "z"); owners(*p)[0] = 3 }, "eligibility"},
		{"uneven", nodes, func(p *Result) {
			for i := range 4 {
				owners(*p)[i] = 0
			}
		}, "quota"},
		{"needless", nodes, func(p *Result) {
			o := owners(*p)
			j := slices.IndexFunc(o, func(x int32) bool { return x != o[0] })
			o[0], o[j] = o[j], o[0]
		}, "moves"},
		{"laggard", laggard, func(p *Result) {
			o := owners(*p)
			i, j := slices.Index(o, 1), slices.Index(o, 0)
			o[i], o[j] = o[j], o[i]
		}, "laggard"},
		{"unlisted", nodes, func(p *Result) { p.Moves = make([]Move, 1) }, "moves"},
	}
	for _, tt := range tests {
		p := Compute(current, tt.nodes, queues)
		if err := checkPlan(current, tt.nodes, queues, p); err != nil {
			t.Fatalf("%s: before: %v", tt.name, err)
		}
		tt.spoil(&p)
		if err := checkPlan(current, tt.nodes, queues, p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an objection about %q", tt.name, err, tt.want)
		}
	}
}

// cluster returns nodes that all handle all queues.
func cluster(nodeCount, queueCount, shards int) ([]Node, []lowkiq.Queue) {
	var queues []lowkiq.Queue
	var names []string
	for i := range queueCount {
		names = append(names, fmt.Sprintf("queue-%03d", i))
		queues = append(queues, lowkiq.Queue{Name: names[i], Shards: shards})
	}
	var nodes []Node
	for i := range nodeCount {
		nodes = append(nodes, Node{Name: fmt.Sprintf("node-%04d", i), Weight: 1, Queues: names})
	}
	return nodes, queues
}

// BenchmarkPlan plans 1,000 nodes and 100,000 shards in all.
func BenchmarkPlan(b *testing.B) {
	for _, queueCount := range []int{1, 10, 100, 150} {
		nodes, queues := cluster(1000, queueCount, 100_000/queueCount)
		rng := rand.New(rand.NewPCG(1, 1))
		rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		full := Compute(empty, nodes, queues).Next
		most, half := Compute(empty, nodes[1:], queues).Next, Compute(empty, nodes[500:], queues).Next
		for _, bm := range []struct {
			name    string
			current *Assignment
			nodes   []Node
		}{{"full", empty, nodes}, {"one-died", full, nodes[1:]}, {"half-died", full, nodes[500:]}, {"same", full, nodes},
			{"one-joined", most, nodes}, {"half-joined", half, nodes}} {
			b.Run(fmt.Sprintf("queues=%d/%s", queueCount, bm.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Compute(bm.current, bm.nodes, queues)
				}
			})
		}
	}
}

// A laggard keeps what it was given up to what it has applied, and what it had when the
// record began.
func TestAppliedByLaggards(t *testing.T) {
	t.Parallel()
	var a *Assignment
	for i, owners := range [][]int32{{0, 1, 1, 1}, {0, 0, 1, 1}, {0, 0, 0, 1}} {
		next, moved := &Assignment{Nodes: []string{"a", "b"}, Queues: []Placement{{"q", owners}}}, uint64(i)
		next.Follow(cmp.Or(a, empty), Generation{7, moved + 1}, min(moved, 1)*(moved+1))
		a = next
	}
	for _, tt := range []struct {
		name    string
		applied Generation
		want    []int32
	}{
		{"all", Generation{7, 3}, []int32{0, 0, 0, 1}},
		{"not the last", Generation{7, 2}, []int32{0, 0, None, 1}},
		{"an older record", Generation{6, 99}, []int32{0, None, None, 1}},
	} {
		got := a.withoutUnapplied([]Node{{Name: "a", Laggard: true, Applied: tt.applied}, {Name: "b"}}).Queues[0].Owners
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A rolling restart, each node out and in again, moves each shard at most twice.
func TestRollingRestartMovesTwice(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(5, 3, 40)
	current, moves := empty, map[lowkiq.Shard]int{}
	compute := func(nodes []Node) {
		next := Compute(current, nodes, queues).Next
		for _, c := range current.Diff(next) {
			moves[c.Shard]++
		}
		index := current.Generation.Index + 1
		next.Follow(current, Generation{1, index}, index)
		current = next
	}
	for i := range nodes { // they join one by one
		compute(nodes[:i+1])
	}
	clear(moves)
	for i := range nodes {
		rest := slices.Clone(nodes)
		rest[i].Draining = true
		compute(rest)
		compute(nodes)
	}
	for shard, n := range moves {
		if n > 2 {
			t.Errorf("%v moved %d times, want at most 2", shard, n)
		}
	}
}
