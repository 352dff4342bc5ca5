package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// What the node tells the world over HTTP.

func (n *Node) server() (*http.Server, error) {
	n.cfg.Registry.MustRegister(&metrics.Shards{
		Read: n.figures, Timeout: n.cfg.TTL, // a scrape must not hang longer than a lease
		Failed: func(err error) { n.log.Warn("figures not read for a scrape", "err", err) },
	})
	handler, err := web.New(web.Config{
		Client: n.client, Status: n.status, Cluster: n.answers(), Ready: n.Ready, Metrics: n.cfg.Registry,
		Token: n.cfg.Token, Log: n.log, Version: n.cfg.Version,
	})
	if err != nil {
		return nil, err
	}
	return web.Server(n.cfg.HTTP, handler), nil
}

// Ready says why the node does not serve all its shards yet, or any more: nil if it
// does. A rolling update waits for it.
func (n *Node) Ready() error {
	in := n.current.Load()
	switch {
	case in == nil:
		return errors.New("no lease yet")
	case in.leaves():
		return errors.New("draining")
	case n.cluster != nil && n.cluster.taken.Load() != nil:
		return fmt.Errorf("name %s is taken by a newer process", n.cfg.Name)
	case !in.mayWork():
		return errors.New("lease lost, taking a new one")
	case !n.settled.Load():
		return errors.New("shards are not claimed yet")
	}
	return nil
}

// figures reads the owned shards for a scrape.
func (n *Node) figures(ctx context.Context) (map[string]metrics.Figures, error) {
	in := n.current.Load()
	if in == nil {
		return nil, nil
	}
	var shards []*queue.Shard
	for _, r := range in.all() {
		shards = append(shards, r.claim.Shard)
	}
	stats, err := n.client.Stats(ctx, shards...)
	if err != nil {
		return nil, err
	}
	byQueue := map[string][]queue.Stats{}
	for i, s := range shards {
		byQueue[s.Queue] = append(byQueue[s.Queue], stats[i])
	}
	all := make(map[string]metrics.Figures, len(byQueue))
	for name, stats := range byQueue {
		sum := queue.Sum(stats)
		all[name] = metrics.Figures{Lag: sum.Lag, Morgue: sum.Morgue, Jobs: map[string]int{
			"ready": sum.Jobs.Ready, "scheduled": sum.Jobs.Scheduled, "retry": sum.Jobs.Retry,
			"in_flight": sum.Jobs.InFlight, "blocked": sum.Jobs.Blocked,
		}}
	}
	return all, nil
}

// status describes the cluster as Redis shows it.
func (n *Node) status(ctx context.Context) (web.Status, error) {
	status := web.Status{Cluster: n.cfg.Cluster}
	if n.cluster != nil {
		n.cluster.describe(&status)
	}
	instances, err := n.client.Instances(ctx)
	if err != nil {
		return status, fmt.Errorf("status: %w", err)
	}
	for _, other := range instances {
		status.Nodes = append(status.Nodes, n.nodeStatus(other))
	}
	status.Queues, err = web.Queues(ctx, n.client)
	return status, err
}

func (n *Node) nodeStatus(other queue.Instance) web.NodeStatus {
	if other.Lease == nil {
		return web.NodeStatus{Name: nodeOf(other.Name), Instance: other.Name, State: web.Gone}
	}
	info, err := parseLease(other.Lease)
	if err != nil {
		return web.NodeStatus{Name: nodeOf(other.Name), Instance: other.Name, State: web.Live}
	}
	s := web.NodeStatus{Name: info.Node, Instance: info.Instance, State: web.Live, HTTP: info.HTTP}
	if in := n.current.Load(); in != nil && !info.Renewed.IsZero() {
		s.LeaseAge = max(0, in.redisNow().Sub(info.Renewed)).Seconds()
	}
	if n.cluster != nil {
		s.Voter = slices.Contains(n.cluster.agent.Status().Voters, info.Seat.Server)
	}
	if info.Draining {
		s.State = web.Draining
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	return s
}
