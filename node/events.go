package node

import (
	"context"
	"maps"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/events"
)

// listened finds out, with every second renewal of the lease, who listens to what happens in the queues of this node.
func (n *Node) listened(ctx context.Context) error {
	if n.looks++; n.looks%2 == 0 {
		return nil
	}
	wanted, err := events.Interest(ctx, n.leases.DB(), slices.Collect(maps.Keys(n.queues.handled)))
	if err == nil {
		n.events.Want(wanted...)
	}
	return err
}

// ran tells listeners of handler calls that have ended.
func (in *instance) ran(s lowkiq.Shard, runs []journal.Run) {
	in.node.events.Runs(in.name, s.Queue, s.Index, runs)
}

// recovered tells listeners, and the queue's hook, of a shard that was taken over with jobs in flight.
func (in *instance) recovered(claim *queue.Claim) {
	if claim.Recovered == 0 && claim.Buried == 0 {
		return
	}
	s := claim.Shard.Shard
	if in.node.events.Wanted(s.Queue) {
		in.node.events.Recovered(in.name, s.Queue, s.Index, events.Recovery{
			At: in.clock.at(sinceBoot()), Jobs: claim.Recovered, Crashes: claim.Buried, From: claim.From})
	}
	o := in.claims.Get(s)
	if o == nil || in.node.queues.handled[s.Queue].rulesNow().OnRecovered == nil {
		return
	}
	in.lanes.Go(func() {
		o.Runner.Recovered(&lowkiq.Event{Kind: lowkiq.Recovered, Shard: s, Recovered: claim.Recovered, Crashes: claim.Buried, From: claim.From})
	})
}

// decodedHook wraps a hook so that it sees payloads as handlers do. One that cannot be decoded is as it is stored.
func decodedHook(decode func([]byte) ([]byte, error), hook lowkiq.Hook) lowkiq.Hook {
	if hook == nil || decode == nil {
		return hook
	}
	return func(ctx context.Context, e *lowkiq.Event) error {
		for i := range e.Jobs {
			e.Jobs[i].Payloads = slices.Clone(e.Jobs[i].Payloads)
			for k, p := range e.Jobs[i].Payloads {
				if data, err := decode(p.Data); err == nil {
					e.Jobs[i].Payloads[k].Data = data
				}
			}
		}
		return hook(ctx, e)
	}
}
