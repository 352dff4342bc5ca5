package node

import (
	"context"
	"sync"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// orphanScan joins the scanner of orphaned shards to its process.
type orphanScan struct {
	instance string
	cluster  *cluster.Cluster // nil: none
	queues   *queues
	leases   *queue.Client
	metrics  *metrics.Metrics
	found    *orphans
	warn     func(op string, shard any, err error)
}

// needs is what the scanner asks for: the leader scans, without a cluster the first instance by
// name.
func (o *orphanScan) needs() claims.Orphans {
	return claims.Orphans{
		Leads: o.leads,
		Queues: func() map[string]int {
			registry := o.queues.registry.Load()
			if registry == nil {
				return nil
			}
			shards := make(map[string]int, len(registry.all))
			for name, entry := range registry.all {
				shards[name] = entry.Shards
			}
			return shards
		},
		Shards: func(ctx context.Context, name string) ([]*queue.Shard, error) {
			q, err := o.leases.Queue(ctx, name)
			if err != nil {
				return nil, err
			}
			return q.All(), nil
		},
		Found: func(name string, unowned []*queue.Shard, handled bool) {
			o.metrics.SetUnowned(name, len(unowned), handled)
			o.found.set(name, unowned)
		},
		Forget: func(name string) {
			o.metrics.ForgetQueue(name)
			o.found.set(name, nil)
		},
		Resign: func() {
			o.metrics.NoUnowned()
			o.found.forget()
		},
	}
}

// leads returns the leases of now, and whether this process is the one that scans for orphaned
// shards.
func (o *orphanScan) leads(ctx context.Context) (live []identity.Lease, leads bool) {
	if c := o.cluster; c != nil {
		live, _, known := c.Live()
		return live, known && c.Status().Leading
	}
	all, err := leased(ctx, o.leases.Leases())
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

// orphans are the shards that no live instance owns, as this process found while it leads: a scrape
// reads their figures, or a queue that no node handles would have no lag. A queue's are found anew
// with each look at it.
type orphans struct {
	mu     sync.Mutex
	shards map[string][]*queue.Shard // by queue; guarded by mu
}

func (o *orphans) set(name string, shards []*queue.Shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shards == nil {
		o.shards = map[string][]*queue.Shard{}
	}
	o.shards[name] = shards
}

func (o *orphans) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shards = nil
}

// except returns those that this process has not come to own meanwhile.
func (o *orphans) except(own *claims.Claims[*runner.Runner]) (list []*queue.Shard) {
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
