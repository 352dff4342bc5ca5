package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/status"
)

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
