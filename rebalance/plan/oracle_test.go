package plan

import (
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// checkPlan is the judge of the plan tests: it says which rule of Plan a plan
// breaks, if any. It shares no code with Plan.
func checkPlan(current *Assignment, nodes []Node, queues []lowkiq.Queue, got Result) error {
	if len(got.Next.Queues) != len(queues) {
		return fmt.Errorf("coverage: got %d queues, want %d", len(got.Next.Queues), len(queues))
	}
	moves := 0
	for _, q := range queues {
		n, err := checkQueue(current, nodes, q, got)
		if err != nil {
			return fmt.Errorf("queue %s: %w", q.Name, err)
		}
		moves += n
	}
	if len(got.Moves) != moves {
		return fmt.Errorf("moves: %d listed, %d made", len(got.Moves), moves)
	}
	o := newOracle(current, nodes, queues)
	if o.ownerLost != got.OwnerLost {
		return fmt.Errorf("owner lost: got %v, want %v", got.OwnerLost, o.ownerLost)
	}
	if uneven, least := o.uneven(got.Next), o.least(); o.price(moves, uneven) != least {
		return fmt.Errorf("best: %d moves and sum of squares %d cost %d, want %d (owner lost %v)", moves, uneven, o.price(moves, uneven), least, o.ownerLost)
	}
	return nil
}

func checkQueue(current *Assignment, nodes []Node, q lowkiq.Queue, got Result) (moves int, err error) {
	may := func(n Node) bool { return !n.Draining && slices.Contains(n.Queues, q.Name) }
	owned := map[string]int{}
	pinned := 0
	for i := range q.Shards {
		shard := lowkiq.Shard{Queue: q.Name, Index: i}
		from, to := current.Owner(shard), got.Next.Owner(shard)
		owned[to]++
		if from != to {
			moves++
		}
		for _, n := range nodes {
			switch {
			case n.Name == to && !may(n):
				return 0, fmt.Errorf("eligibility: shard %d went to %s", i, to)
			case n.Laggard && may(n) && n.Name == to && from != to:
				return 0, fmt.Errorf("laggard: shard %d went to %s", i, to)
			case n.Laggard && may(n) && n.Name == from && from != to:
				return 0, fmt.Errorf("laggard: shard %d left %s", i, from)
			case n.Laggard && may(n) && n.Name == from:
				pinned++
			}
		}
	}
	total := 0
	for _, n := range nodes {
		if may(n) && !n.Laggard {
			total += n.Weight
		}
	}
	if total == 0 {
		if owned[""] != q.Shards-pinned {
			return 0, fmt.Errorf("coverage: %d shards without owner, want %d", owned[""], q.Shards-pinned)
		}
		return moves, nil
	}
	if owned[""] > 0 {
		return 0, fmt.Errorf("coverage: %d shards without owner", owned[""])
	}
	for _, n := range nodes {
		if !may(n) || n.Laggard {
			continue
		}
		low, high := quota(q.Shards-pinned, n.Weight, total)
		if owned[n.Name] < low || owned[n.Name] > high {
			return 0, fmt.Errorf("quota: %s owns %d, want %d to %d", n.Name, owned[n.Name], low, high)
		}
	}
	return moves, nil
}

func quota(shards, weight, total int) (low, high int) {
	low = shards * weight / total
	high = low
	if low*total != shards*weight {
		high++
	}
	return low, high
}

// oracle knows what the best plan costs, by a minimum-cost flow: source -> shard ->
// queue at a node -> node -> sink. An owner other than the present one is a move, each
// shard more on a node is dearer than the one before, and a quota rounded down is so
// cheap that it is always filled.
type oracle struct {
	current   *Assignment
	nodes     []Node
	queues    []lowkiq.Queue
	ownerLost bool // a shard has lost its owner, so moves are dearer than unevenness, else the other way round
}

const (
	dear   = 1_000_000        // the dearer of moves and unevenness: the other one never adds up to it
	filled = dear * 1_000_000 // a quota rounded down
	twelve = 12               // 1 to 4, the weights of tests, divide it
)

func newOracle(current *Assignment, nodes []Node, queues []lowkiq.Queue) *oracle {
	o := &oracle{current, nodes, queues, false}
	for _, q := range queues {
		for i := range q.Shards {
			from := current.Owner(lowkiq.Shard{Queue: q.Name, Index: i})
			keeps := slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == from && takes(n, q) })
			o.ownerLost = o.ownerLost || from != "" && !keeps
		}
	}
	return o
}

func takes(n Node, q lowkiq.Queue) bool { return !n.Draining && slices.Contains(n.Queues, q.Name) }

func (o *oracle) price(moves, uneven int) int {
	if o.ownerLost {
		return moves*dear + uneven
	}
	return moves + uneven*dear
}

// uneven is the sum of total^2 / weight of the nodes that are no laggards, in twelfths.
func (o *oracle) uneven(a *Assignment) int {
	sum := 0
	for _, n := range o.nodes {
		if total := len(a.Owned(n.Name)); !n.Laggard {
			sum += total * total * twelve / n.Weight
		}
	}
	return sum
}

func (o *oracle) least() int {
	shards := 0
	for _, q := range o.queues {
		shards += q.Shards
	}
	const source, sink = 0, 1
	seats := 2 + shards
	ends := seats + len(o.queues)*len(o.nodes)
	g := newFlow(ends + len(o.nodes))
	at, fill := 2, 0
	for k, q := range o.queues {
		total, pinned := 0, 0
		for _, n := range o.nodes {
			if takes(n, q) && n.Laggard {
				pinned += len(slices.DeleteFunc(o.current.Owned(n.Name), func(s lowkiq.Shard) bool { return s.Queue != q.Name || s.Index >= q.Shards }))
			} else if takes(n, q) {
				total += n.Weight
			}
		}
		for i := range q.Shards {
			from := o.current.Owner(lowkiq.Shard{Queue: q.Name, Index: i})
			if total > 0 && !slices.ContainsFunc(o.nodes, func(n Node) bool { return n.Name == from && n.Laggard && takes(n, q) }) {
				g.edge(source, at, 1, 0)
			} else if total == 0 && from != "" && !slices.ContainsFunc(o.nodes, func(n Node) bool { return n.Name == from && takes(n, q) }) {
				fill -= o.price(1, 0) // it stays without owner
			}
			for j, n := range o.nodes {
				cost := o.price(1, 0)
				if n.Name == from {
					cost = 0
				}
				g.edge(at, seats+k*len(o.nodes)+j, 1, cost)
			}
			at++
		}
		for j, n := range o.nodes {
			if !takes(n, q) || n.Laggard {
				continue
			}
			low, high := quota(q.Shards-pinned, n.Weight, total)
			g.edge(seats+k*len(o.nodes)+j, ends+j, low, -filled)
			g.edge(seats+k*len(o.nodes)+j, ends+j, high-low, 0)
			fill += low * -filled
		}
	}
	for j, n := range o.nodes {
		for t := range shards {
			g.edge(ends+j, sink, 1, o.price(0, (2*t+1)*twelve/n.Weight))
		}
	}
	return g.cheapest(source, sink) - fill
}

// flow is a network for successive cheapest paths (Bellman and Ford).
type flow struct {
	edges []flowEdge
	out   [][]int // per node: indexes into edges; an edge's reverse is its index ^ 1
}

type flowEdge struct{ to, room, cost int }

func newFlow(nodes int) *flow { return &flow{out: make([][]int, nodes)} }

func (g *flow) edge(from, to, room, cost int) {
	g.out[from] = append(g.out[from], len(g.edges))
	g.out[to] = append(g.out[to], len(g.edges)+1)
	g.edges = append(g.edges, flowEdge{to, room, cost}, flowEdge{from, 0, -cost})
}

// cheapest sends as much as fits, one unit at a time, and returns the cost.
func (g *flow) cheapest(source, sink int) int {
	cost := 0
	for {
		dist, via := g.paths(source)
		if dist[sink] == unreached {
			return cost
		}
		cost += dist[sink]
		for at := sink; at != source; {
			e := via[at]
			g.edges[e].room--
			g.edges[e^1].room++
			at = g.edges[e^1].to
		}
	}
}

const unreached = 1 << 60

func (g *flow) paths(source int) (dist, via []int) {
	dist, via = make([]int, len(g.out)), make([]int, len(g.out))
	for i := range dist {
		dist[i] = unreached
	}
	dist[source] = 0
	for changed := true; changed; {
		changed = false
		for from, out := range g.out {
			for _, e := range out {
				to := g.edges[e]
				if dist[from] != unreached && to.room > 0 && dist[from]+to.cost < dist[to.to] {
					dist[to.to], via[to.to], changed = dist[from]+to.cost, e, true
				}
			}
		}
	}
	return dist, via
}
