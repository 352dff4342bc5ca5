package node

import (
	"context"
	"runtime/debug"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// figures reads the owned shards for a scrape, and those without an owner if this node leads.
func (n *Node) figures(ctx context.Context) (map[string]metrics.Figures, error) {
	in := n.current.Load()
	if in == nil {
		return nil, nil
	}
	var shards []*queue.Shard
	for _, o := range in.claims.All() {
		shards = append(shards, o.Claim.Shard)
	}
	shards = append(shards, n.orphans.except(in.claims)...)
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
		all[name] = metrics.Figures{Lag: sum.Lag, Failed: sum.Jobs.Failed, Morgue: sum.Morgue, Unlogged: sum.Unlogged, Jobs: map[string]int{
			"ready": sum.Jobs.Ready, "scheduled": sum.Jobs.Scheduled, "retry": sum.Jobs.Retry, "held": sum.Jobs.Held,
			"in_flight": sum.Jobs.InFlight, "blocked": sum.Jobs.Blocked,
		}}
	}
	return all, nil
}

// slotsInUse are those of the instance that works; without one none can be taken.
func (n *Node) slotsInUse() metrics.Use {
	if in := n.current.Load(); in != nil {
		return in.slots.Use()
	}
	return metrics.Use{Total: n.cfg.Concurrency}
}

// release is the version of lowkiq: as configured, else as the program was linked with it.
func (cfg Config) release() string {
	if cfg.Version != "" {
		return cfg.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/lowkiq/lowkiq" {
				return module.Version
			}
		}
	}
	return "devel"
}
