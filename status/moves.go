package status

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Plan returns the moves of a plan with some nodes added and some removed. An added node handles every queue, with weight 1.
func (x inspector) Plan(ctx context.Context, add, remove []string) ([]Move, error) {
	raft, assignment := x.Raft()
	if raft == nil {
		return nil, x.noCluster()
	}
	if assignment == nil {
		assignment = &plan.Assignment{}
	}
	view, err := x.View(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := changeNodes(view, add, remove)
	if err != nil {
		return nil, err
	}
	var moves []Move
	for _, m := range plan.Compute(assignment, nodes, view.Queues).Moves {
		moves = append(moves, Move{Queue: m.Shard.Queue, Index: m.Shard.Index, From: m.From, To: m.To, Reason: m.Reason.String()})
	}
	return moves, nil
}

// changeNodes returns the nodes of a view with some added, and some draining.
func changeNodes(view rebalance.View, add, remove []string) ([]plan.Node, error) {
	byName := map[string]plan.Node{}
	for _, p := range view.Peers {
		if p.Leased && !p.Superseded {
			byName[p.Name] = p.Node
		}
	}
	for _, name := range remove {
		leaver, there := byName[name]
		if !there {
			return nil, unknownNode(name, byName)
		}
		leaver.Draining = true
		byName[name] = leaver
	}
	var queues []string
	for _, q := range view.Queues {
		queues = append(queues, q.Name)
	}
	for _, name := range add {
		if _, there := byName[name]; there {
			return nil, fmt.Errorf("add %q: %w", name, ErrNodeExists)
		}
		byName[name] = plan.Node{Name: name, Queues: queues}
	}
	return slices.Collect(maps.Values(byName)), nil
}

func unknownNode[T any](name string, known map[string]T) error {
	return fmt.Errorf("%w %q%s", ErrUnknownNode, name, suggest.Among(name, slices.Sorted(maps.Keys(known))))
}
