package queue

import (
	"context"
	"iter"

	"github.com/lowkiq/lowkiq/queue/events"
)

// Events yields the events of the cluster from now on, until ctx or the loop ends: ends of handler calls,
// recovered jobs, changes. An event comes at most once, and missed events are reported as missed; see package
// events. Nodes send nothing while nobody listens.
func (c *Client) Events(ctx context.Context, f events.Filter) iter.Seq[events.Event] {
	return events.Listen(ctx, c.db, f)
}
