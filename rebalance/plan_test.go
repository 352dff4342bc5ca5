package rebalance

import (
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
	for i := range rapid.IntRange(1, 3).Draw(t, "queues") {
		names = append(names, fmt.Sprintf("q%d", i))
		queues = append(queues, lowkiq.Queue{Name: names[i], Shards: rapid.IntRange(1, 9).Draw(t, "shards")})
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
	n.Deaf = rapid.IntRange(0, 5).Draw(t, "deaf") == 0
	return n
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

func TestPlanKeepsItsRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, queues := drawCluster(t, false)
		current := drawAssignment(t, queues)
		got := Plan(current, nodes, queues)
		if err := checkPlan(current, nodes, queues, got); err != nil {
			t.Fatal(err)
		}
		if err := got.Next.check(); err != nil {
			t.Fatal(err)
		}
		if again := Plan(got.Next, nodes, queues); len(again.Moves) > 0 || !again.Next.SamePlaces(got.Next) {
			t.Fatalf("idempotent: planning again moved %v", again.Moves)
		}
		shuffled := rapid.Permutation(nodes).Draw(t, "nodes shuffled")
		turned := slices.Clone(queues)
		slices.Reverse(turned)
		if other := Plan(current, shuffled, turned); !other.Next.SamePlaces(got.Next) {
			t.Fatalf("order: got %v and %v", got.Next, other.Next)
		}
	})
}

// TestPlanIsMonotone: I5 for equal weights.
func TestPlanIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, queues := drawCluster(t, true)
		if len(nodes) == 0 {
			return
		}
		few, one := nodes[1:], nodes[0].Name
		before := Plan(Plan(empty, few, queues).Next, few, queues).Next
		joined := Plan(before, nodes, queues)
		for _, m := range joined.Moves {
			if m.To != one {
				t.Fatalf("join of %s: moved %v", one, m)
			}
		}
		left := Plan(joined.Next, few, queues)
		for _, m := range left.Moves {
			if m.From != one {
				t.Fatalf("death of %s: moved %v", one, m)
			}
		}
		drained := slices.Clone(nodes)
		drained[0].Draining = true
		if other := Plan(joined.Next, drained, queues); !other.Next.SamePlaces(left.Next) {
			t.Fatalf("drain: got %v, want as death: %v", other.Next, left.Next)
		}
	})
}

func TestPlanReasons(t *testing.T) {
	t.Parallel()
	queues := []lowkiq.Queue{{Name: "q", Shards: 4}}
	on := func(name string) Node { return Node{Name: name, Queues: []string{"q"}} }
	a := Plan(empty, []Node{on("a")}, queues).Next
	draining := on("a")
	draining.Draining = true
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
	}
	for _, tt := range tests {
		moves := Plan(tt.current, tt.nodes, queues).Moves
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

// TestPlanSpreadsRemainders: ten queues of one shard on ten nodes are one shard each.
func TestPlanSpreadsRemainders(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(10, 10, 11)
	got := Plan(empty, nodes, queues).Next
	for _, n := range nodes {
		if owned := len(got.Owned(n.Name)); owned != 11 {
			t.Errorf("%s: got %d shards, want 11", n.Name, owned)
		}
	}
}

func TestPlanWeights(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(3, 1, 100)
	nodes[0].Weight, nodes[1].Weight, nodes[2].Weight = 1, 3, 6
	got := Plan(empty, nodes, queues).Next.Counts(queues[0].Name)
	for i, want := range []int{10, 30, 60} {
		if got[nodes[i].Name] != want {
			t.Errorf("%s: got %d shards, want %d", nodes[i].Name, got[nodes[i].Name], want)
		}
	}
}

// TestCheckPlanObjects breaks each rule on purpose.
func TestCheckPlanObjects(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(3, 1, 6)
	nodes = append(nodes, Node{Name: "z", Weight: 1, Queues: nodes[0].Queues, Draining: true})
	current := Plan(empty, nodes[:3], queues).Next
	deaf := slices.Clone(nodes)
	deaf[1].Deaf = true
	owners := func(p Planned) []int32 { return p.Next.Queues[0].Owners }
	tests := []struct {
		name  string
		nodes []Node
		spoil func(p *Planned)
		want  string
	}{
		{"no owner", nodes, func(p *Planned) { owners(*p)[0] = None }, "coverage"},
		{"queue left out", nodes, func(p *Planned) { p.Next.Queues = nil }, "coverage"},
		{"draining", nodes, func(p *Planned) { p.Next.Nodes = append(p.Next.Nodes, "z"); owners(*p)[0] = 3 }, "eligibility"},
		{"uneven", nodes, func(p *Planned) {
			for i := range 4 {
				owners(*p)[i] = 0
			}
		}, "quota"},
		{"needless", nodes, func(p *Planned) {
			o := owners(*p)
			j := slices.IndexFunc(o, func(x int32) bool { return x != o[0] })
			o[0], o[j] = o[j], o[0]
		}, "moves"},
		{"deaf", deaf, func(p *Planned) {
			o := owners(*p)
			i, j := slices.Index(o, 1), slices.Index(o, 0)
			o[i], o[j] = o[j], o[i]
		}, "deaf"},
		{"unlisted", nodes, func(p *Planned) { p.Moves = make([]Move, 1) }, "moves"},
		{"false alarm", nodes, func(p *Planned) { p.Unhandled = []string{queues[0].Name} }, "unhandled"},
	}
	for _, tt := range tests {
		p := Plan(current, tt.nodes, queues)
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

// BenchmarkPlan: 1,000 nodes and 100,000 shards in all.
func BenchmarkPlan(b *testing.B) {
	for _, queueCount := range []int{1, 10, 100} {
		nodes, queues := cluster(1000, queueCount, 100_000/queueCount)
		rng := rand.New(rand.NewPCG(1, 1))
		rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		full := Plan(empty, nodes, queues).Next
		for _, bm := range []struct {
			name    string
			current *Assignment
			nodes   []Node
		}{{"full", empty, nodes}, {"one-died", full, nodes[1:]}, {"half-died", full, nodes[500:]}, {"same", full, nodes}} {
			b.Run(fmt.Sprintf("queues=%d/%s", queueCount, bm.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Plan(bm.current, bm.nodes, queues)
				}
			})
		}
	}
}
