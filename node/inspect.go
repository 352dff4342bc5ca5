package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// What the node answers when it is asked about the cluster. A node that is in none
// answers from the leases and claims in Redis.

// Status describes the cluster and its nodes, without the queues.
func (n *Node) Status(ctx context.Context) (status.Status, error) {
	known := status.Status{Cluster: n.cfg.Cluster}
	if n.cluster != nil {
		n.describe(&known)
	}
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	left, err := n.client.LeasesLeft(ctx, instances...)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	for i, other := range instances {
		known.Nodes = append(known.Nodes, n.nodeStatus(other, left[i]))
		known.Warnings = append(append(known.Warnings, refusalsOf(other)...), unreadyOf(other)...)
	}
	entries, damaged, err := n.client.ReadRegistry(ctx)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	for name, entry := range entries {
		if err := entry.Readable(name); err != nil {
			damaged[name] = fmt.Errorf("%w; this node shows nothing of it", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(damaged)) {
		known.Warnings = append(known.Warnings, damaged[name].Error())
	}
	return known, nil
}

// describe adds what Raft says, and what is wrong with the cluster.
func (n *Node) describe(known *status.Status) {
	record := n.cluster.Status().Record
	known.Generation = status.Generation{Record: strconv.FormatUint(record, 10), Index: n.cluster.Assignment().Generation.Index}
	known.Leader = n.cluster.Leader()
	known.Warnings = append(known.Warnings, n.cluster.Warnings()...)
}

// Owners judges shards by the assignment and the leases of now.
func (n *Node) Owners(ctx context.Context) (status.Owners, error) {
	live, err := n.holders(ctx)
	if err != nil {
		return nil, err
	}
	agreed := n.agreed()
	return func(s lowkiq.Shard, holder string) (assigned string, state status.ShardState) {
		if agreed != nil {
			assigned = agreed.Owner(s)
		}
		return assigned, shardState(s.Queue, holder, assigned, agreed != nil, live)
	}, nil
}

// nodeStatus is what the lease of an instance says, with what is left of it.
func (n *Node) nodeStatus(other queue.Instance, left time.Duration) status.Node {
	if other.Lease == nil {
		return status.Node{Name: identity.NodeOf(other.Name), Instance: other.Name, State: status.Gone}
	}
	info, err := identity.ParseLease(other.Lease)
	if err != nil {
		return status.Node{Name: identity.NodeOf(other.Name), Instance: other.Name, State: status.Live}
	}
	s := status.Node{Name: info.Node, Instance: info.Instance, State: status.Live, HTTP: info.HTTP}
	s.LeaseAge = max(0, time.Duration(info.TTL)*time.Millisecond-left).Seconds()
	if n.cluster != nil {
		s.Voter = slices.Contains(n.cluster.Status().Voters, info.RaftInfo.Server)
	}
	if info.Draining {
		s.State = status.Draining
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	return s
}

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
func (n *Node) holders(ctx context.Context) (map[string]identity.Lease, error) {
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return nil, err
	}
	live := map[string]identity.Lease{}
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

func shardStatus(s lowkiq.Shard, stats queue.Stats, agreed *plan.Assignment, live map[string]identity.Lease) status.Shard {
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
func shardState(queueName, owner, assigned string, agreed bool, live map[string]identity.Lease) status.ShardState {
	holder, alive := live[owner]
	taker := func(info identity.Lease) bool {
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
	newest := map[string]identity.Lease{}
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

// Where is an id in flight: does it wait for a process, or has a handler begun? Only the node that
// popped it knows.

func (in *instance) whereabouts(s lowkiq.Shard, id string) queue.Whereabouts {
	if o := in.claims.Get(s); o != nil {
		return o.Runner.Whereabouts(id)
	}
	return queue.Whereabouts{}
}

const (
	askPatience    = time.Second            // with the node that is asked
	answerPatience = 250 * time.Millisecond // of the one that answers: news of shards wait behind it
)

// answer tells whoever asks where an id is.
func (in *instance) answer(q *queue.Question) {
	ctx, cancel := context.WithTimeout(in.io, answerPatience)
	defer cancel()
	if err := in.node.client.Answer(ctx, q, in.whereabouts(q.Shard, q.ID)); err != nil {
		in.trouble("answer", q.Shard, err)
	}
}

// ask finds out where the owner of a shard has an id. One that does not answer leaves it open.
func (n *Node) ask(ctx context.Context, s *queue.Shard, owner, id string) (queue.Whereabouts, error) {
	if in := n.current.Load(); in != nil && in.name == owner {
		return in.whereabouts(s.Shard, id), nil
	}
	return n.client.Whereabouts(ctx, owner, s, id, askPatience)
}
