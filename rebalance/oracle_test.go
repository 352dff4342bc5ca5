package rebalance

import (
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// checkPlan is the judge of the plan tests: it says which rule of Plan a plan
// breaks, if any. It shares no code with Plan.
func checkPlan(current *Assignment, nodes []Node, queues []lowkiq.Queue, got Planned) error {
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
	return nil
}

func checkQueue(current *Assignment, nodes []Node, q lowkiq.Queue, got Planned) (moves int, err error) {
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
			case n.Deaf && may(n) && n.Name == to && from != to:
				return 0, fmt.Errorf("deaf: shard %d went to %s", i, to)
			case n.Deaf && may(n) && n.Name == from && from != to:
				return 0, fmt.Errorf("deaf: shard %d left %s", i, from)
			case n.Deaf && may(n) && n.Name == from:
				pinned++
			}
		}
	}
	total, deaf := 0, false
	for _, n := range nodes {
		if may(n) && !n.Deaf {
			total += n.Weight
		}
		deaf = deaf || may(n) && n.Deaf
	}
	if reported := slices.Contains(got.Unhandled, q.Name); reported != (total == 0 && !deaf) {
		return 0, fmt.Errorf("unhandled: reported %v with total weight %d", reported, total)
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
		if !may(n) || n.Deaf {
			continue
		}
		low, high := quota(q.Shards-pinned, n.Weight, total)
		if owned[n.Name] < low || owned[n.Name] > high {
			return 0, fmt.Errorf("quota: %s owns %d, want %d to %d", n.Name, owned[n.Name], low, high)
		}
	}
	if least := leastMoves(current, nodes, q, pinned, total); moves != least {
		return 0, fmt.Errorf("moves: got %d, want %d", moves, least)
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

// leastMoves is the lower bound of moves, by a minimum-cost flow: source -> shard
// -> node -> sink, where a node other than the owner costs one, and the quota
// rounded down is so cheap that it is always filled.
func leastMoves(current *Assignment, nodes []Node, q lowkiq.Queue, pinned, total int) int {
	const fill = 1000
	g := newFlow(2 + q.Shards + len(nodes))
	source, sink := 0, 1
	floors, shards := 0, 0
	for i := range q.Shards {
		from := current.Owner(lowkiq.Shard{Queue: q.Name, Index: i})
		if slices.ContainsFunc(nodes, func(n Node) bool {
			return n.Name == from && n.Deaf && !n.Draining && slices.Contains(n.Queues, q.Name)
		}) {
			continue
		}
		shards++
		g.edge(source, 2+i, 1, 0)
		for k, n := range nodes {
			cost := 1
			if n.Name == from {
				cost = 0
			}
			g.edge(2+i, 2+q.Shards+k, 1, cost)
		}
	}
	for k, n := range nodes {
		if n.Draining || n.Deaf || !slices.Contains(n.Queues, q.Name) {
			continue
		}
		low, high := quota(q.Shards-pinned, n.Weight, total)
		floors += low
		g.edge(2+q.Shards+k, sink, low, 0)
		g.edge(2+q.Shards+k, sink, high-low, fill)
	}
	return g.cheapest(source, sink) - (shards-floors)*fill
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

const unreached = 1 << 30

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
