package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/reshard"
)

// runReshards takes changes of the number of shards of queues from step to step until ctx ends. The leader drives them at once.
// Other nodes drive a change that does not go on.
func (n *Node) runReshards(ctx context.Context) error {
	driver := &reshard.Driver{
		Client: n.client,
		Leads:  n.leadsReshards,
		Entries: func(ctx context.Context) (map[string]protocol.RegistryEntry, error) {
			return n.queues.entriesWithin(ctx, time.Second)
		},
		By:  changes.Itself(n.cfg.Name),
		Log: n.log,
		Observe: func(queue string, p reshard.Progress) {
			if p.UnderWay() {
				n.metrics.SetReshard(queue, p.Of-p.Moved, p.Pause)
			} else {
				n.metrics.EndReshard(queue)
			}
		},
		Failed: func(op string, err error) {
			if ctx.Err() == nil && !n.outages.reportFailure(op, err) {
				n.log.Warn(op+": failed, and will be repeated", "err", err)
			}
		},
	}
	driver.Run(ctx)
	return nil
}

// leadsReshards reports whether this node drives at once. Of static nodes the node with number 0 does.
func (n *Node) leadsReshards() bool { return n.isLeader() && n.cfg.Number == 0 }
