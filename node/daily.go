package node

import (
	"context"

	"github.com/lowkiq/lowkiq/internal/store/daycounts"
)

// countDays adds the counts of this node to the figures of days and hours, until the node has handed back all its shards.
func (n *Node) countDays(ctx context.Context) error {
	tally := daycounts.Tally{
		Read: n.countsByQueue, Time: n.client.Time, Write: daycounts.Into(n.client.DB()),
		Failed: func(err error) {
			if !n.outages.reportFailure("write the figures of the day", err) {
				n.log.Warn("figures of the day were not written and will be written later", "err", err)
			}
		},
	}
	tally.Run(ctx)
	return nil
}

// countsByQueue returns the counts of this node since it started.
func (n *Node) countsByQueue() map[string]daycounts.Counts {
	all := map[string]daycounts.Counts{}
	for name, t := range n.metrics.Totals() {
		c := daycounts.Counts{
			daycounts.Processed: float64(t.Processed), daycounts.Failed: float64(t.Failed),
			daycounts.Retried: float64(t.Retried), daycounts.Buried: float64(t.Buried),
		}
		c.SetDurations(daycounts.Run, t.Handler.Counts, t.Handler.Sum, t.Handler.Squares)
		c.SetDurations(daycounts.Wait, t.Wait.Counts, t.Wait.Sum, t.Wait.Squares)
		all[name] = c
	}
	return all
}
