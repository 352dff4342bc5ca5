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
	"github.com/lowkiq/lowkiq/web"
)

// What the node answers when it is asked about the cluster. A node that is in none
// answers from the leases and claims in Redis.

func (n *Node) answers() web.Cluster {
	return web.Cluster{Shards: n.shardList, Members: n.members, Plan: n.dryRun, Why: n.why, Drain: n.askDrain, Handled: n.handledBy}
}

// handledBy names, for each queue, the nodes whose leases say that they handle it.
func (n *Node) handledBy(ctx context.Context) (web.Handled, error) {
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return nil, err
	}
	handled := web.Handled{}
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
	a := n.cluster.agent.Assignment()
	if a.Generation == (plan.Generation{}) {
		return nil
	}
	return a
}

func (n *Node) shardList(ctx context.Context) ([]web.ShardStatus, error) {
	live, err := n.holders(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := n.client.Registry(ctx)
	if err != nil {
		return nil, err
	}
	var list []web.ShardStatus
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

func shardStatus(s lowkiq.Shard, stats queue.Stats, agreed *plan.Assignment, live map[string]LeaseInfo) web.ShardStatus {
	status := web.ShardStatus{
		Queue: s.Queue, Index: s.Index, Owner: stats.Owner.Instance, Fence: stats.Owner.Fence, Lag: stats.Lag.Seconds(),
	}
	if agreed != nil {
		status.Assigned = agreed.Owner(s)
	}
	status.State = shardState(s.Queue, status.Owner, status.Assigned, agreed != nil, live)
	return status
}

// shardState says how a shard is looked after. Without an assignment every live node
// that handles the queue should own it.
func shardState(queueName, owner, assigned string, agreed bool, live map[string]LeaseInfo) web.ShardState {
	holder, alive := live[owner]
	taker := func(info LeaseInfo) bool {
		_, handles := info.Queues[queueName]
		return handles && !info.Draining && (!agreed || info.Node == assigned)
	}
	switch {
	case alive && (holder.Draining || agreed && holder.Node != assigned):
		return web.Leaving
	case alive:
		return web.Owned
	case slices.ContainsFunc(slices.Collect(maps.Values(live)), taker):
		return web.Claiming
	}
	return web.NobodyOwns
}

func (n *Node) members() ([]web.MemberStatus, error) {
	if n.cluster == nil {
		return nil, web.ErrNoCluster
	}
	var list []web.MemberStatus
	for _, m := range n.cluster.gossip.Members() {
		list = append(list, web.MemberStatus{
			Node: m.Instance.Node, Instance: m.Instance.String(), Boot: m.Instance.Boot, State: m.State.String(),
			Address: m.Address, Since: float64(m.Since.UnixMilli()) / 1000, Draining: m.Meta.Draining,
		})
	}
	return list, nil
}

// dryRun plans with nodes added and removed. An added node is taken to handle every
// queue, with weight 1.
func (n *Node) dryRun(ctx context.Context, add, remove []string) ([]web.Move, error) {
	if n.cluster == nil {
		return nil, web.ErrNoCluster
	}
	view, err := n.cluster.look(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := change(view, add, remove)
	if err != nil {
		return nil, err
	}
	var moves []web.Move
	for _, m := range plan.Compute(n.cluster.agent.Assignment(), nodes, view.Queues).Moves {
		moves = append(moves, web.Move{Queue: m.Shard.Queue, Index: m.Shard.Index, From: m.From, To: m.To, Reason: m.Reason.String()})
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
			return nil, fmt.Errorf("add %q: %w", name, web.ErrNodeExists)
		}
		byName[name] = plan.Node{Name: name, Queues: queues}
	}
	return slices.Collect(maps.Values(byName)), nil
}

func unknownNode[T any](name string, known map[string]T) error {
	return fmt.Errorf("%w %q (known: %s)", web.ErrUnknownNode, name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}

// askDrain passes a wish on to the newest live instance of a node, be it this one.
func (n *Node) askDrain(ctx context.Context, name string, on bool) (string, error) {
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
		err = fmt.Errorf("drain %s: %w", info.Instance, web.ErrNotHeard)
	}
	return info.Instance, err
}
