package node

import (
	"context"
	"runtime/debug"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// readFigures reads the figures of the owned shards for a scrape. If this node leads, it also reads shards without an owner.
func (n *Node) readFigures(ctx context.Context) (map[string]metrics.Figures, error) {
	in := n.current.Load()
	if in == nil {
		return nil, nil
	}
	var shards []*protocol.Shard
	for _, o := range in.claims.All() {
		shards = append(shards, o.Claim.Shard)
	}
	shards = append(shards, n.orphans.notOwnedBy(in.claims)...)
	stats, err := n.client.Stats(ctx, shards...)
	if err != nil {
		return nil, err
	}
	byQueue := map[string][]protocol.Stats{}
	for i, s := range shards {
		byQueue[s.Queue] = append(byQueue[s.Queue], stats[i])
	}
	all := make(map[string]metrics.Figures, len(byQueue))
	for name, stats := range byQueue {
		sum := protocol.Sum(stats)
		all[name] = metrics.Figures{Lag: sum.Lag, Failed: sum.Jobs.Failed, Morgue: sum.Morgue, Unlogged: sum.Unlogged, Outgoing: sum.Outgoing, Jobs: map[string]int{
			"ready": sum.Jobs.Ready, "scheduled": sum.Jobs.Scheduled, "retry": sum.Jobs.Retry, "held": sum.Jobs.Held,
			"in_flight": sum.Jobs.InFlight, "blocked": sum.Jobs.Blocked,
		}}
	}
	return all, nil
}

// slotsInUse returns the node's slots. Without a working instance all of them are free.
func (n *Node) slotsInUse() metrics.Use {
	if in := n.current.Load(); in != nil {
		return in.slots.Use()
	}
	return metrics.Use{Total: n.cfg.Concurrency}
}

// lowkiqVersion returns the configured version, or else the version of the module that is linked into the program.
func (cfg Config) lowkiqVersion() string {
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
