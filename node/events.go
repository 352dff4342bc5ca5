package node

import (
	"context"
	"maps"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// findListeners reads which queues of this node have listeners for their events. It does so with every second renewal of
// the lease.
func (n *Node) findListeners(ctx context.Context) error {
	if n.listenerChecks++; n.listenerChecks%2 == 0 {
		return nil
	}
	wanted, err := events.Interest(ctx, n.leases.DB(), slices.Collect(maps.Keys(n.queues.handled)))
	if err == nil {
		n.events.Want(wanted...)
	}
	return err
}

// publishRuns sends ended handler calls to listeners.
func (in *instance) publishRuns(s lowkiq.Shard, runs []journal.Run) {
	in.node.events.Runs(in.name, s.Queue, s.Index, runs)
}

// reportRecovery tells listeners and the queue's hook about a shard that was taken over with jobs in flight. The hook runs
// beside the lanes, so neither the claim nor the jobs of the shard wait for it. The end of the instance does wait.
func (in *instance) reportRecovery(claim *protocol.Claim) {
	if claim.Recovered == 0 && claim.Buried == 0 {
		return
	}
	s := claim.Shard.Shard
	if in.node.events.Wanted(s.Queue) {
		in.node.events.Recovered(in.name, s.Queue, s.Index, events.Recovery{
			At: in.clock.Now(), Jobs: claim.Recovered, Crashes: claim.Buried, From: claim.From})
	}
	o := in.claims.Get(s)
	if o == nil || in.node.queues.handled[s.Queue].rulesNow().OnRecovered == nil {
		return
	}
	in.lanes.Go(func() {
		o.Runner.CallRecoveredHook(&lowkiq.Event{Kind: lowkiq.Recovered, Shard: s, Recovered: claim.Recovered, Crashes: claim.Buried, From: claim.From})
	})
}
