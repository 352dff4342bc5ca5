package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// inspector answers what is asked of the cluster. A node that is in none answers from the leases
// and claims in Redis.
type inspector struct {
	client  *queue.Client
	cluster *atomic.Pointer[cluster.Cluster] // holds nil before Run, and without a cluster
	groups  func(queue string) rules.Groups  // in force here; its zero value, too, if this node does not handle the queue
	// here says where this process has an id, if it is the owner that is asked for, and ends its run, unless cancel is nil.
	here func(owner string, s lowkiq.Shard, id string, cancel *queue.Cancellation) (where queue.Whereabouts, isOwner bool)
}

// Status describes the cluster and its nodes, without the queues.
func (x *inspector) Status(ctx context.Context) (status.Status, error) {
	known := status.Status{Cluster: x.client.Cluster()}
	joined := x.cluster.Load()
	if joined != nil {
		describe(joined, &known)
	}
	instances, err := x.client.Leases().All(ctx)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	left, err := x.client.Leases().Left(ctx, instances...)
	if err != nil {
		return known, fmt.Errorf("status: %w", err)
	}
	for i, other := range instances {
		info, err := identity.ParseLease(other.Lease)
		if err != nil {
			info = identity.Lease{} // there is none, or it tells nothing
		}
		known.Nodes = append(known.Nodes, nodeStatus(other, info, left[i], joined))
		known.Warnings = slices.Concat(known.Warnings, refusalsOf(info), unreadyOf(info), unloggedOf(info))
	}
	entries, damaged, err := x.client.Registry().Read(ctx)
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

// unloggedOf is what an instance's lease tells of its log, for people.
func unloggedOf(info identity.Lease) (warnings []string) {
	if info.Unlogged > 0 {
		warnings = append(warnings, fmt.Sprintf("node %s has dropped %d lines of its log: what takes them (a pipe, a disk, a slog.Handler) is too slow, hangs or is gone",
			info.Node, info.Unlogged))
	}
	return warnings
}

// describe adds what Raft says, and what is wrong with the cluster.
func describe(joined *cluster.Cluster, known *status.Status) {
	record := joined.Status().Record
	known.Generation = status.Generation{Record: strconv.FormatUint(record, 10), Index: joined.Assignment().Generation.Index}
	known.Leader = joined.Leader()
	known.Warnings = append(known.Warnings, joined.Warnings()...)
}

// Owners judges shards by the assignment and the leases of now.
func (x *inspector) Owners(ctx context.Context) (status.Owners, error) {
	_, owners, err := x.owners(ctx)
	return owners, err
}

// owners also returns the leases, by instance.
func (x *inspector) owners(ctx context.Context) (map[string]identity.Lease, status.Owners, error) {
	live, err := leased(ctx, x.client.Leases())
	agreed := x.cluster.Load().Agreed()
	return live, func(s lowkiq.Shard, holder string) (assigned string, state status.ShardState) {
		if agreed != nil {
			assigned = agreed.Owner(s)
		}
		return assigned, shardState(s.Queue, holder, assigned, agreed != nil, live)
	}, err
}

// nodeStatus is what the lease of an instance says, with what is left of it.
func nodeStatus(other lease.Instance, info identity.Lease, left time.Duration, joined *cluster.Cluster) status.Node {
	s := status.Node{
		Name: cmp.Or(info.Node, identity.NodeOf(other.Name)), Instance: other.Name, State: status.Live, HTTP: info.HTTP,
	}
	switch {
	case other.Lease == nil:
		s.State = status.Gone
	case info.Draining:
		s.State = status.Draining
	}
	if info.TTL > 0 {
		s.LeaseAge = max(0, time.Duration(info.TTL)*time.Millisecond-left).Seconds()
	}
	if joined != nil {
		s.Voter = slices.Contains(joined.Status().Voters, info.RaftInfo.Server)
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	return s
}

// Handled names, for each queue, the nodes whose leases say that they handle it.
func (x *inspector) Handled(ctx context.Context) (status.Handled, error) {
	instances, err := x.client.Leases().All(ctx)
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

// MayBegin names the instances that may still begin jobs of a queue that is paused.
func (x *inspector) MayBegin(ctx context.Context, queueName string) ([]string, error) {
	instances, err := x.client.Leases().All(ctx)
	return identity.MayBegin(queueName, instances), err
}

// leased are the instances that have a lease, by name.
func leased(ctx context.Context, index *lease.Index) (map[string]identity.Lease, error) {
	instances, err := index.All(ctx)
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

// Shards lists the shards of all queues, by queue and index, and how they are looked after.
func (x *inspector) Shards(ctx context.Context) ([]status.Shard, error) {
	_, owners, err := x.owners(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := x.client.Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	var list []status.Shard
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		q, err := x.client.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		shards := q.All()
		stats, err := x.client.Stats(ctx, shards...)
		if err != nil {
			return nil, err
		}
		for i, s := range shards {
			list = append(list, shardStatus(s.Shard, stats[i], owners))
		}
	}
	return list, nil
}

func shardStatus(s lowkiq.Shard, stats queue.Stats, owners status.Owners) status.Shard {
	assigned, state := owners(s, stats.Owner.Instance)
	return status.Shard{
		Queue: s.Queue, Index: s.Index, Assigned: assigned, State: state,
		Owner: stats.Owner.Instance, Fence: stats.Owner.Fence, Lag: stats.Lag.Seconds(),
	}
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
func (x *inspector) Members() ([]status.Member, error) {
	joined := x.cluster.Load()
	if joined == nil {
		return nil, status.ErrNoCluster
	}
	var list []status.Member
	for _, m := range joined.Members() {
		list = append(list, status.Member{
			Node: m.Instance.Node, Instance: m.Instance.String(), Boot: m.Instance.Boot, State: m.State.String(),
			Address: m.Address, Since: float64(m.Since.UnixMilli()) / 1000, Draining: m.Meta.Draining,
		})
	}
	return list, nil
}

// Plan says what would move: it plans with nodes added and removed. An added node is taken to
// handle every queue, with weight 1.
func (x *inspector) Plan(ctx context.Context, add, remove []string) ([]status.Move, error) {
	joined := x.cluster.Load()
	if joined == nil {
		return nil, status.ErrNoCluster
	}
	view, err := joined.Look(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := change(view, add, remove)
	if err != nil {
		return nil, err
	}
	var moves []status.Move
	for _, m := range plan.Compute(joined.Assignment(), nodes, view.Queues).Moves {
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
func (x *inspector) Drain(ctx context.Context, name string, on bool) (string, error) {
	live, err := leased(ctx, x.client.Leases())
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
	got, err := x.client.Drain(ctx, info.Instance, on)
	if err == nil && !got {
		err = fmt.Errorf("drain %s: %w", info.Instance, status.ErrNotHeard)
	}
	return info.Instance, err
}

// Why says why an id is not with a handler now.
func (x *inspector) Why(ctx context.Context, q *queue.Queue, id string) (status.Why, error) {
	var f status.Facts
	var err error
	if f.Job, f.Found, err = browse.Of(q).Job(ctx, id); err != nil {
		return status.Why{}, err
	}
	if f.Position, err = browse.Of(q).Position(ctx, id); err != nil {
		return status.Why{}, err
	}
	entries, err := x.client.Registry().Entries(ctx)
	if err != nil {
		return status.Why{}, err
	}
	live, owners, err := x.owners(ctx)
	if err != nil {
		return status.Why{}, err
	}
	f.Paused = entries[q.Name].Paused
	f.Shard = shardStatus(q.Of(id).Shard, queue.Stats{Owner: f.Position.Owner}, owners)
	f.Handled = shardState(q.Name, "", "", false, live) == status.Claiming
	f.Refused = live[f.Shard.Owner].RefusedFor(q.Of(id).Shard)
	f.Unready = live[f.Shard.Owner].Unready[q.Name]
	if f.Job.State == browse.StateInFlight && f.Alive() {
		if f.Where, err = x.ask(ctx, q.Of(id), f.Shard.Owner, id); err != nil {
			return status.Why{}, err
		}
	}
	if f.Where.Stage == queue.ForPermit {
		f.Permits, _ = x.client.Permits(q.Name).Holders(ctx) // without them the answer says less
	}
	if group := x.groups(q.Name).Of(id); group != "" {
		f.Group = group
		f.InGroup, _ = x.client.Group(ctx, q.Name, group)
		f.GroupLimit = x.groups(q.Name).Limit
	}
	if f.Found && f.Job.State != browse.StateMorgue && f.Job.State != browse.StateInFlight {
		f.Held = heldBy(ctx, x.client, q.Name, id)
	}
	return f.Why(id), nil
}

// Cancel ends the handler call that an id is in.
func (x *inspector) Cancel(ctx context.Context, q *queue.Queue, id string, why queue.Cancellation) error {
	job, found, err := browse.Of(q).Job(ctx, id)
	if err != nil {
		return err
	}
	if !found || job.State != browse.StateInFlight {
		return fmt.Errorf("%q: %w", id, status.ErrNotRunning)
	}
	position, err := browse.Of(q).Position(ctx, id)
	if err != nil {
		return err
	}
	owner := position.Owner.Instance
	where, isOwner := x.here(owner, q.Of(id).Shard, id, &why)
	if !isOwner {
		if where, err = x.client.Cancel(ctx, owner, q.Of(id), id, why, askPatience); err != nil {
			return err
		}
	}
	switch {
	case where.Cancelled:
		return nil
	case where.Stage == "":
		return fmt.Errorf("%q, which %s has: %w", id, owner, status.ErrNoAnswer)
	case where.Stage == queue.Handled:
		return fmt.Errorf("%q: %w any more: its handler on %s has just answered, or was told to stop as the node leaves", id, status.ErrNotRunning, owner)
	}
	return fmt.Errorf("%q: %w: %s has it, and no handler has begun", id, status.ErrNotRunning, owner)
}

// heldBy says who holds an id, until when and why; "" if nobody does, or that cannot be read.
func heldBy(ctx context.Context, c *queue.Client, name, id string) string {
	set, now, err := rules.In(c.DB()).Queue(ctx, name)
	if err != nil {
		return ""
	}
	values, _ := set.Values(now) // what this release cannot read of other rules is not asked
	hold := rules.NewHeld(values.Holds).Of(id)
	if hold == nil {
		return ""
	}
	text := " by " + hold.By.String()
	if hold.Prefix != "" {
		text += fmt.Sprintf(", as all ids that begin with %q are", hold.Prefix)
	}
	if !hold.Until.IsZero() {
		text += ", until " + hold.Until.UTC().Format(time.RFC3339)
	}
	if hold.Why != "" {
		text += fmt.Sprintf(" (%s)", hold.Why)
	}
	return text
}

// askPatience is how long another node may take to say where it has an id.
const askPatience = time.Second

// ask finds out where the owner of a shard has an id in flight: only the owner knows whether it
// waits for a process or a handler has begun. An owner that does not answer leaves it open.
func (x *inspector) ask(ctx context.Context, s *queue.Shard, owner, id string) (queue.Whereabouts, error) {
	if where, isOwner := x.here(owner, s.Shard, id, nil); isOwner {
		return where, nil
	}
	return x.client.Whereabouts(ctx, owner, s, id, askPatience)
}
