package queue

import (
	"context"
	"iter"

	"github.com/lowkiq/lowkiq/queue/events"
)

// Events yields what happens in the cluster from now on, until ctx ends or the loop does: how handler calls end, which
// jobs are recovered, what is changed. Events come at most once, and those that were missed are told as such; see package
// events. While nobody listens nodes send nothing.
func (c *Client) Events(ctx context.Context, f events.Filter) iter.Seq[events.Event] {
	return events.Listen(ctx, c.db, f)
}
