package node

import (
	"context"
	"log/slog"
	"sync"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// orphanScan joins the scanner of orphaned shards to its process.
type orphanScan struct {
	instance string
	cluster  *cluster.Cluster // nil without a cluster
	queues   *queues
	leases   *protocol.Client
	metrics  *metrics.Metrics
	found    *orphans
	static   bool
	log      *slog.Logger
	warn     func(op string, shard any, err error)
	relay    func() // makes the relay look at the orphaned shards
}

// scanConfig returns the dependencies of the scanner. The leader scans. Without a cluster the first instance by name does.
func (o *orphanScan) scanConfig() claims.OrphanScan {
	return claims.OrphanScan{
		Leads: o.leasesIfLeading,
		Queues: func() map[string]int {
			registry := o.queues.registry.Load()
			if registry == nil {
				return nil
			}
			shards := make(map[string]int, len(registry.entries))
			for name, entry := range registry.entries {
				shards[name] = entry.Shards
			}
			return shards
		},
		Shards: func(ctx context.Context, name string) ([]*protocol.Shard, error) {
			q, err := o.leases.Queue(ctx, name)
			if err != nil {
				return nil, err
			}
			return q.All(), nil
		},
		Found: func(name string, unowned []*protocol.Shard, handled bool) {
			o.metrics.SetUnowned(name, len(unowned), handled)
			o.logStatic(name, len(unowned), o.found.setShards(name, unowned))
		},
		Scanned: o.relay,
		Forget: func(name string) {
			o.metrics.ForgetQueue(name)
			o.found.setShards(name, nil)
		},
		Resign: func() {
			o.metrics.NoUnowned()
			o.found.forgetAll()
		},
	}
}

// logStatic logs how many shards of a queue have no owner, if the number has changed and the node is static. In a cluster
// the leader's plan mends that.
func (o *orphanScan) logStatic(name string, unowned, before int) {
	switch {
	case !o.static || unowned == before:
	case unowned > 0:
		o.log.Warn("shards have no owner, and other static nodes do not take them", "queue", name, "shards", unowned)
	default:
		o.log.Info("all shards have an owner again", "queue", name)
	}
}

// leasesIfLeading returns the current leases, and whether this process scans for orphaned shards. For a moment two processes
// may scan, or none. That does no harm, because a scan only reads, sets metrics and wakes the relay.
func (o *orphanScan) leasesIfLeading(ctx context.Context) (live []identity.Lease, leads bool) {
	if c := o.cluster; c != nil {
		live, _, known := c.RecentLeases()
		return live, known && c.Status().Leading
	}
	all, err := identity.Live(ctx, o.leases.Leases())
	if err != nil {
		o.warn("read the leases", nil, err)
		return nil, false
	}
	leads = true
	for name, info := range all {
		live = append(live, info)
		leads = leads && o.instance <= name
	}
	return live, leads
}

// orphans has the shards that no live instance owns, as found by this process while it leads. A scrape reads the figures of
// these shards. Otherwise a queue that no node handles would have no lag. Each scan of a queue replaces its shards.
type orphans struct {
	mu     sync.Mutex
	shards map[string][]*protocol.Shard // by queue; guarded by mu
}

// setShards replaces the shards of a queue, and returns their number before.
func (o *orphans) setShards(name string, shards []*protocol.Shard) (before int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shards == nil {
		o.shards = map[string][]*protocol.Shard{}
	}
	before = len(o.shards[name])
	o.shards[name] = shards
	return before
}

func (o *orphans) forgetAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shards = nil
}

// notOwnedBy returns the orphaned shards that this process has not claimed meanwhile.
func (o *orphans) notOwnedBy(own *claims.Claims[*runner.Runner]) (list []*protocol.Shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, shards := range o.shards {
		for _, s := range shards {
			if own.Get(s.Shard) == nil {
				list = append(list, s)
			}
		}
	}
	return list
}
