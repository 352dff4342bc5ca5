package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// What the node answers when it is asked about the cluster. A node that is in none
// answers from the leases and claims in Redis.

// Handled names, for each queue, the nodes whose leases say that they handle it.
func (n *Node) Handled(ctx context.Context) (status.Handled, error) {
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return nil, err
	}
	handled := status.Handled{}
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		info, err := identity.ParseLease(other.Lease)
		if err != nil {
			handled.Add("", identity.NodeOf(other.Name)+" (its lease cannot be read)")
		}
		for name := range info.Queues {
			handled.Add(name, info.Node)
		}
	}
	return handled, nil
}

// holders are the instances that have a lease, by name.
func (n *Node) holders(ctx context.Context) (map[string]LeaseInfo, error) {
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return nil, err
	}
	live := map[string]LeaseInfo{}
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		if info, err := identity.ParseLease(other.Lease); err == nil {
			live[other.Name] = info
		}
	}
	return live, nil
}

// agreed is the assignment, nil if none is known.
func (n *Node) agreed() *plan.Assignment {
	if n.cluster == nil {
		return nil
	}
	a := n.cluster.Assignment()
	if a.Generation == (plan.Generation{}) {
		return nil
	}
	return a
}

// Shards lists the shards of all queues, by queue and index, and how they are looked after.
func (n *Node) Shards(ctx context.Context) ([]status.Shard, error) {
	live, err := n.holders(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := n.client.Registry(ctx)
	if err != nil {
		return nil, err
	}
	var list []status.Shard
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		q, err := n.client.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		shards := q.All()
		stats, err := n.client.Stats(ctx, shards...)
		if err != nil {
			return nil, err
		}
		for i, s := range shards {
			list = append(list, shardStatus(s.Shard, stats[i], n.agreed(), live))
		}
	}
	return list, nil
}

func shardStatus(s lowkiq.Shard, stats queue.Stats, agreed *plan.Assignment, live map[string]LeaseInfo) status.Shard {
	one := status.Shard{
		Queue: s.Queue, Index: s.Index, Owner: stats.Owner.Instance, Fence: stats.Owner.Fence, Lag: stats.Lag.Seconds(),
	}
	if agreed != nil {
		one.Assigned = agreed.Owner(s)
	}
	one.State = shardState(s.Queue, one.Owner, one.Assigned, agreed != nil, live)
	return one
}

// shardState says how a shard is looked after. Without an assignment every live node
// that handles the queue should own it.
func shardState(queueName, owner, assigned string, agreed bool, live map[string]LeaseInfo) status.ShardState {
	holder, alive := live[owner]
	taker := func(info LeaseInfo) bool {
		_, handles := info.Queues[queueName]
		return handles && !info.Draining && (!agreed || info.Node == assigned)
	}
	switch {
	case alive && (holder.Draining || agreed && holder.Node != assigned):
		return status.Leaving
	case alive:
		return status.Owned
	case slices.ContainsFunc(slices.Collect(maps.Values(live)), taker):
		return status.Claiming
	}
	return status.Unowned
}

// Members lists what gossip says of processes.
func (n *Node) Members() ([]status.Member, error) {
	if n.cluster == nil {
		return nil, status.ErrNoCluster
	}
	var list []status.Member
	for _, m := range n.cluster.Members() {
		list = append(list, status.Member{
			Node: m.Instance.Node, Instance: m.Instance.String(), Boot: m.Instance.Boot, State: m.State.String(),
			Address: m.Address, Since: float64(m.Since.UnixMilli()) / 1000, Draining: m.Meta.Draining,
		})
	}
	return list, nil
}

// Plan says what would move: it plans with nodes added and removed. An added node is taken to handle every
// queue, with weight 1.
func (n *Node) Plan(ctx context.Context, add, remove []string) ([]status.Move, error) {
	if n.cluster == nil {
		return nil, status.ErrNoCluster
	}
	view, err := n.cluster.Look(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := change(view, add, remove)
	if err != nil {
		return nil, err
	}
	var moves []status.Move
	for _, m := range plan.Compute(n.cluster.Assignment(), nodes, view.Queues).Moves {
		moves = append(moves, status.Move{Queue: m.Shard.Queue, Index: m.Shard.Index, From: m.From, To: m.To, Reason: m.Reason.String()})
	}
	return moves, nil
}

// change returns the nodes of a view with some added, and some draining.
func change(view rebalance.View, add, remove []string) ([]plan.Node, error) {
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
			return nil, fmt.Errorf("add %q: %w", name, status.ErrNodeExists)
		}
		byName[name] = plan.Node{Name: name, Queues: queues}
	}
	return slices.Collect(maps.Values(byName)), nil
}

func unknownNode[T any](name string, known map[string]T) error {
	return fmt.Errorf("%w %q (known: %s)", status.ErrUnknownNode, name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}

// Drain passes a wish on to the newest live instance of a node, be it this one.
func (n *Node) Drain(ctx context.Context, name string, on bool) (string, error) {
	live, err := n.holders(ctx)
	if err != nil {
		return "", err
	}
	newest := map[string]LeaseInfo{}
	for _, info := range live {
		if best, ok := newest[info.Node]; !ok || info.Start.After(best.Start) {
			newest[info.Node] = info
		}
	}
	info, ok := newest[name]
	if !ok {
		return "", unknownNode(name, newest)
	}
	heard, err := n.client.Drain(ctx, info.Instance, on)
	if err == nil && !heard {
		err = fmt.Errorf("drain %s: %w", info.Instance, status.ErrNotHeard)
	}
	return info.Instance, err
}

// Why says why an id is not with a handler now.
func (n *Node) Why(ctx context.Context, q *queue.Queue, id string) (status.Why, error) {
	var f status.Facts
	var err error
	if f.Job, f.Found, err = q.Job(ctx, id); err != nil {
		return status.Why{}, err
	}
	if f.Standing, err = q.Standing(ctx, id); err != nil {
		return status.Why{}, err
	}
	entries, err := n.client.Registry(ctx)
	if err != nil {
		return status.Why{}, err
	}
	live, err := n.holders(ctx)
	if err != nil {
		return status.Why{}, err
	}
	f.Paused = entries[q.Name].Paused
	f.Shard = shardStatus(q.Of(id).Shard, queue.Stats{Owner: f.Standing.Owner}, n.agreed(), live)
	f.Handled = shardState(q.Name, "", "", false, live) == status.Claiming
	f.Refused = live[f.Shard.Owner].RefusedFor(q.Of(id).Shard)
	f.Unready = live[f.Shard.Owner].Unready[q.Name]
	if f.Job.State == queue.InFlight && f.Alive() {
		if f.Where, err = n.ask(ctx, q.Of(id), f.Shard.Owner, id); err != nil {
			return status.Why{}, err
		}
	}
	return f.Why(id), nil
}
