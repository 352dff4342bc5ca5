package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/tally"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/days"
)

// countDays writes the figures of days and hours until the node has handed back all its shards.
func (n *Node) countDays(ctx context.Context) error {
	var clock redisClock
	(&tally.Tally[days.Figures]{
		Boot: n.boot, Early: true,
		Read: func() map[string]days.Figures { return figuresOf(n.metrics.Totals()) },
		Ask: func(ctx context.Context) (time.Time, error) {
			now, err := n.client.Time(ctx)
			if err == nil {
				clock.saw(now)
			}
			return now, err
		},
		Guess: func() time.Time { return clock.at(sinceBoot()) },
		Write: tally.Into[days.Figures](n.client.DB()),
		Failed: func(err error) {
			if !n.outages.note("write the figures of the day", err) {
				n.log.Warn("figures of the day not written; they are written later", "err", err)
			}
		},
	}).Run(ctx)
	return nil
}

// joinEvery is how often the leader joins the parts of days that are not written any more.
const joinEvery = 5 * time.Minute

// joinDays joins them until ctx ends. A node in no cluster always leads: several of them join the same, and once.
func (n *Node) joinDays(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for all := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !n.leads() {
			all = true // when it does, it looks at what nobody has joined meanwhile
			continue
		}
		if err := days.Join(ctx, n.client, all); err == nil {
			all = false
		} else if ctx.Err() == nil && !n.outages.note("join the figures of days", err) {
			n.log.Warn("figures of days not joined; they are joined later", "err", err)
		}
	}
}

// figuresOf puts what was counted in the form in which days are kept.
func figuresOf(all map[string]metrics.Totals) map[string]days.Figures {
	figures := make(map[string]days.Figures, len(all))
	durations := func(b metrics.Buckets) days.Durations {
		return days.Durations{Histogram: browse.Histogram{Counts: b.Counts, Sum: b.Sum}, Squares: b.Squares}
	}
	for name, t := range all {
		figures[name] = days.Figures{
			Run: durations(t.Handler), Wait: durations(t.Wait),
			Processed: t.Processed, Failed: t.Failed, Retried: t.Retried, Buried: t.Buried,
		}
	}
	return figures
}
