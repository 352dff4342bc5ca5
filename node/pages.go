package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/oklog/run"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// What the node tells people.

func (n *Node) dashboard() (*dashboard.Dashboard, error) {
	return dashboard.New(dashboard.Config{
		Client: n.client, Status: n.peers, Owners: n.owners, Cluster: n.answers(), Log: n.log, Version: n.cfg.Version,
	})
}

// addPages reads the figures of the pages. It ends before the server does, so that no
// stream of events is left for the server to wait for.
func (n *Node) addPages(group *run.Group, pages *dashboard.Dashboard) {
	ctx, cancel := context.WithCancel(context.Background())
	group.Add(func() error {
		err := pages.Run(ctx)
		<-ctx.Done()
		return err
	}, func(error) { <-n.stopped; cancel() })
}

// peers describes the cluster and its nodes, without the queues.
func (n *Node) peers(ctx context.Context) (web.Status, error) {
	status := web.Status{Cluster: n.cfg.Cluster}
	if n.cluster != nil {
		n.cluster.describe(&status)
	}
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return status, fmt.Errorf("status: %w", err)
	}
	left, err := n.client.LeasesLeft(ctx, instances...)
	if err != nil {
		return status, fmt.Errorf("status: %w", err)
	}
	for i, other := range instances {
		status.Nodes = append(status.Nodes, n.nodeStatus(other, left[i]))
		status.Warnings = append(append(status.Warnings, refusalsOf(other)...), unreadyOf(other)...)
	}
	entries, damaged, err := n.client.ReadRegistry(ctx)
	if err != nil {
		return status, fmt.Errorf("status: %w", err)
	}
	for name, entry := range entries {
		if err := entry.Readable(name); err != nil {
			damaged[name] = fmt.Errorf("%w; this node shows nothing of it", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(damaged)) {
		status.Warnings = append(status.Warnings, damaged[name].Error())
	}
	return status, nil
}

// owners judges shards by the assignment and the leases of now.
func (n *Node) owners(ctx context.Context) (dashboard.Owners, error) {
	live, err := n.holders(ctx)
	if err != nil {
		return nil, err
	}
	agreed := n.agreed()
	return func(s lowkiq.Shard, holder string) (assigned string, state web.ShardState) {
		if agreed != nil {
			assigned = agreed.Owner(s)
		}
		return assigned, shardState(s.Queue, holder, assigned, agreed != nil, live)
	}, nil
}
