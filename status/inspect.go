package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Source is what a node knows by itself. A *node.Node is a Source.
type Source interface {
	Name() string
	Client() *queue.Client
	// Rules returns the rules of a queue in the node's configuration, by key. They are nil if the node does not handle the queue.
	Rules(queue string) map[string]rules.Base
	// Recurring returns the recurring entries in the node's configuration.
	Recurring() map[string]recurring.Spec
	// Then returns the rules then in force of the queues that the node handles, by queue.
	Then() map[string]rules.Then
	// Raft returns what the node knows of its Raft group, and the assignment that it has applied last. The status is nil if the
	// node is in no cluster, the assignment if none is known.
	Raft() (*rebalance.Status, *plan.Assignment)
	// Peers returns the processes that gossip knows, nil if the node is in no cluster.
	Peers() []membership.Member
	// View reads the nodes and the queues that a leader's plan would cover now.
	View(context.Context) (rebalance.View, error)
	// Warnings returns what an operator should mend, as the node sees it.
	Warnings() []string
	// RedisFull says which Redis is full, "" if none is.
	RedisFull() string
	// RedisRefuses returns why Redis refuses the node's lease, "" if it does not.
	RedisRefuses() string
	// Static says which shards a static node owns, "" for other nodes.
	Static() string
	// LocateOrCancel returns where the node's process has an id, if it is the instance owner. It cancels the handler call of the id
	// unless cancel is nil. A node that drains answers, too, although it hears no questions of others any more.
	LocateOrCancel(owner string, s lowkiq.Shard, id string, cancel *protocol.Cancellation) (where protocol.Whereabouts, ok bool)
}

// Of returns answers that come from a node, and from the leases and claims in Redis. If the node is in no cluster, they come from Redis alone.
func Of(node Source) Cluster { return inspector{node} }

type inspector struct{ Source }

// Status describes the cluster and its nodes, without the queues.
func (x inspector) Status(ctx context.Context) (Status, error) {
	client := x.Client().Protocol()
	known := Status{Cluster: client.Cluster(), Warnings: x.Warnings()}
	raft, assignment := x.Raft()
	if raft != nil {
		known.Generation.Record = strconv.FormatUint(raft.Record, 10)
		if assignment != nil {
			known.Generation.Index = assignment.Generation.Index
		}
		if raft.Leading {
			known.Leader = x.Name()
		}
	}
	instances, err := client.Leases().All(ctx)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	left, err := client.Leases().Left(ctx, instances...)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	var live []identity.Lease
	for i, other := range instances {
		info, err := identity.ParseLease(other.Lease)
		if err != nil {
			info = identity.Lease{} // there is none, or it tells nothing
		} else {
			live = append(live, info)
		}
		node, server := nodeStatus(other, info, left[i]), info.RaftInfo.Server
		if raft != nil && server != "" {
			node.Voter = slices.Contains(raft.Voters, server)
			if server == raft.Leader && !raft.Leading {
				known.Leader = node.Name
			}
		}
		known.Nodes = append(known.Nodes, node)
		known.Warnings = slices.Concat(known.Warnings, refusalsOf(info), unreadyOf(info), outgoingOf(info), unloggedOf(info))
	}
	entries, damaged, err := client.Registry().Read(ctx)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	registered := slices.AppendSeq(slices.Collect(maps.Keys(entries)), maps.Keys(damaged))
	known.Warnings = slices.Concat(known.Warnings, warnOfShares(live, entries), recurring.UnknownQueues(x.Recurring(), registered),
		rules.UnknownQueues(x.Then(), registered))
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

// refusalsOf returns warnings about the refusals of Redis that the lease of an instance reports.
func refusalsOf(info identity.Lease) (warnings []string) {
	for _, text := range info.Refused {
		warnings = append(warnings, fmt.Sprintf("jobs of node %s wait for a person to mend something: %s", info.Node, text))
	}
	return warnings
}

// maxUnready is the maximum number of an instance's queues with a warning each.
const maxUnready = 3

// unreadyOf returns warnings about the handlers that cannot work, as the lease of an instance reports.
func unreadyOf(info identity.Lease) (warnings []string) {
	for i, name := range slices.Sorted(maps.Keys(info.Unready)) {
		if i == maxUnready {
			return append(warnings, fmt.Sprintf("the handlers of %d more queues on node %s are not ready", len(info.Unready)-i, info.Node))
		}
		warnings = append(warnings, fmt.Sprintf("the handler of queue %s on node %s is not ready: %s", name, info.Node, info.Unready[name]))
	}
	return warnings
}

// outgoingOf returns warnings about the waiting follow-ups that the lease of an instance reports.
func outgoingOf(info identity.Lease) (warnings []string) {
	for i, name := range slices.Sorted(maps.Keys(info.Outgoing)) {
		if i == maxUnready {
			return append(warnings, fmt.Sprintf("follow-ups of %d more queues of node %s are not delivered", len(info.Outgoing)-i, info.Node))
		}
		warnings = append(warnings, fmt.Sprintf("follow-ups of queue %s are not delivered: %s; see lowkiq-node outgoing %s", name, info.Outgoing[name], name))
	}
	return warnings
}

// unloggedOf returns a warning if the lease of an instance reports dropped lines of its log.
func unloggedOf(info identity.Lease) (warnings []string) {
	if info.Unlogged > 0 {
		warnings = append(warnings, fmt.Sprintf("node %s has dropped %d lines of its log: what takes them (a pipe, a disk, a slog.Handler) is too slow, hangs or is gone",
			info.Node, info.Unlogged))
	}
	return warnings
}

// Owners returns a function that judges shards by the present assignment and leases.
func (x inspector) Owners(ctx context.Context) (Owners, error) {
	_, owners, err := x.owners(ctx)
	return owners, err
}

// owners also returns the leases, by instance.
func (x inspector) owners(ctx context.Context) (map[string]identity.Lease, Owners, error) {
	live, err := identity.Live(ctx, x.Client().Protocol().Leases())
	_, agreed := x.Raft()
	return live, func(s lowkiq.Shard, holder string) (assigned string, state ShardState) {
		if agreed != nil {
			assigned = agreed.Owner(s)
		} else {
			assigned = staticOwner(s, live)
		}
		return assigned, shardState(s.Queue, holder, assigned, agreed != nil, live)
	}, err
}

// nodeStatus returns the status of an instance, from its lease. left is the time until the lease ends.
func nodeStatus(other lease.Instance, info identity.Lease, left time.Duration) Node {
	s := Node{
		Name: cmp.Or(info.Node, identity.NodeOf(other.Name)), Instance: other.Name, State: Live, Static: info.Static.String(), HTTP: info.HTTP, Version: info.Version,
	}
	switch {
	case other.Lease == nil:
		s.State = Gone
	case info.Draining:
		s.State = Draining
	}
	if info.TTL > 0 {
		s.LeaseAge = max(0, time.Duration(info.TTL)*time.Millisecond-left).Seconds()
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	if !info.Start.IsZero() {
		s.Since = float64(info.Start.UnixMicro()) / 1e6
	}
	s.Applied = info.RaftInfo.Applied.Index
	if l := info.Load; l != nil {
		s.Load = &Load{CPU: l.CPU, Memory: l.Memory << 20, Slots: l.Slots, Busy: l.Busy}
	}
	return s
}

// Handled returns the instances that have a lease now, and the state of their queues.
func (x inspector) Handled(ctx context.Context) (Handled, error) {
	instances, err := x.Client().Protocol().Leases().All(ctx)
	if err != nil {
		return nil, err
	}
	handled := Handled{}
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		info, err := identity.ParseLease(other.Lease)
		if err != nil {
			handled = append(handled, Instance{Node: identity.NodeOf(other.Name), Name: other.Name, Unreadable: true})
			continue
		}
		handled = append(handled, handledBy(other.Name, info))
	}
	return handled, nil
}

// handledBy returns the state of an instance's queues, from its lease.
func handledBy(name string, info identity.Lease) Instance {
	return Instance{
		Node: info.Node, Name: name, Draining: info.Draining, Static: info.Static.String(), Queues: info.Queues, Unready: info.Unready,
		Waits: info.Waits, Refused: info.Refused, Outgoing: info.Outgoing,
	}
}

// MayBegin returns the instances that may still begin jobs of a paused queue.
func (x inspector) MayBegin(ctx context.Context, queueName string) ([]string, error) {
	instances, err := x.Client().Protocol().Leases().All(ctx)
	return identity.MayBegin(queueName, instances), err
}

// Shards returns the shards of all queues, by queue and index.
func (x inspector) Shards(ctx context.Context) ([]Shard, error) {
	_, owners, err := x.owners(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := x.Client().Protocol().Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	var list []Shard
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		q, err := x.Client().Protocol().Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		shards := q.All()
		stats, err := x.Client().Protocol().Stats(ctx, shards...)
		if err != nil {
			return nil, err
		}
		for i, s := range shards {
			list = append(list, shardStatus(s.Shard, stats[i], owners))
		}
	}
	return list, nil
}

func shardStatus(s lowkiq.Shard, stats protocol.Stats, owners Owners) Shard {
	assigned, state := owners(s, stats.Owner.Instance)
	return Shard{
		Queue: s.Queue, Index: s.Index, Assigned: assigned, State: state,
		Owner: stats.Owner.Instance, Fence: stats.Owner.Fence, Lag: stats.Lag.Seconds(),
	}
}

// staticOwner returns the live static node that has a shard by its number, "" if there is none. If several nodes have the
// same number, it returns the first.
func staticOwner(s lowkiq.Shard, live map[string]identity.Lease) string {
	first := ""
	for name, info := range live {
		if info.Static.Includes(s.Index) && takesShards(info, s.Queue) && (first == "" || name < first) {
			first = name
		}
	}
	return live[first].Node
}

// takesShards reports whether a process handles a queue and takes shards.
func takesShards(info identity.Lease, queueName string) bool {
	_, handles := info.Queues[queueName]
	return handles && !info.Draining
}

// shardState returns the state of a shard. Without an assignment every live node that handles the queue should own it,
// except static nodes without this shard.
func shardState(queueName, owner, assigned string, agreed bool, live map[string]identity.Lease) ShardState {
	holder, alive := live[owner]
	taker := func(info identity.Lease) bool {
		return takesShards(info, queueName) && (info.Node == assigned || !agreed && info.Static == nil)
	}
	switch {
	case alive && (holder.Draining || agreed && holder.Static == nil && holder.Node != assigned):
		return Leaving
	case alive:
		return Owned
	case slices.ContainsFunc(slices.Collect(maps.Values(live)), taker):
		return Claiming
	}
	return Unowned
}

// noCluster returns the error of questions that only a node in a cluster can answer.
func (x inspector) noCluster() error {
	if share := x.Static(); share != "" {
		return fmt.Errorf("%w: it is static, %s, so it has no gossip and follows no plan; lowkiq-node shards shows the owners", ErrNoCluster, share)
	}
	return fmt.Errorf("%w: it was started without a gossip address (node.bind)", ErrNoCluster)
}

// Members returns the processes that gossip knows.
func (x inspector) Members() ([]Member, error) {
	if raft, _ := x.Raft(); raft == nil {
		return nil, x.noCluster()
	}
	var list []Member
	for _, m := range x.Peers() {
		list = append(list, Member{
			Node: m.Instance.Node, Instance: m.Instance.String(), Boot: m.Instance.Boot, State: m.State.String(),
			Address: m.Address, Since: float64(m.Since.UnixMilli()) / 1000, Draining: m.Meta.Draining,
		})
	}
	return list, nil
}
