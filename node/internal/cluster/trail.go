package cluster

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/condition"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// The list of changes also has changes by the cluster itself. These are a new leader, nodes that got their first shards or gave
// away their last, and the number of shards with another owner. All nodes apply the same assignments, and the leader writes the
// lines. A line is lost if the leader dies before it has written it.

// trailPending is the maximum number of lines that wait while Redis is out of reach. Later lines are lost.
const trailPending = 64

// trail follows leadership and assignments.
type trail struct {
	node       string
	wasLeading bool
	applied    *plan.Assignment // the last applied plan
	pending    chan changes.Line
	failing    condition.Condition // of writes; only writeLine uses it
}

// record queues the lines about a change of the leader or of the plan.
func (t *trail) record(leads bool, now *plan.Assignment) {
	for _, line := range linesOf(t.node, t.wasLeading, leads, t.applied, now) {
		select {
		case t.pending <- line:
		default:
		}
	}
	t.wasLeading, t.applied = leads, now
}

// linesOf returns the lines about a change, none if this process does not lead.
func linesOf(node string, led, leads bool, was, is *plan.Assignment) (lines []changes.Line) {
	if !leads {
		return nil
	}
	tell := func(line changes.Line) {
		line.Who = changes.Itself(node)
		lines = append(lines, line)
	}
	if !led {
		tell(changes.Line{Action: "leads", Target: node})
	}
	for _, name := range is.Nodes {
		if !slices.Contains(was.Nodes, name) {
			tell(changes.Line{Action: "joined", Target: name})
		}
	}
	for _, name := range was.Nodes {
		if !slices.Contains(is.Nodes, name) {
			tell(changes.Line{Action: "left", Target: name})
		}
	}
	if moved := len(was.Diff(is)); moved > 0 {
		tell(changes.Line{Action: "shards moved", New: strconv.AppendInt(nil, int64(moved), 10)})
	}
	return lines
}

// writeTrail writes the queued lines until ctx ends. It repeats each line until Redis has taken it.
func (c *Cluster) writeTrail(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-c.trail.pending:
			for c.writeLine(ctx, line) != nil {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(c.cfg.TTL / 2):
				}
			}
		}
	}
}

func (c *Cluster) writeLine(ctx context.Context, line changes.Line) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TTL)
	defer cancel()
	err := c.cfg.WriteChange(ctx, line)
	if err != nil && ctx.Err() == nil && !c.cfg.OutOfReach("write the list of changes", err) {
		if left, ok := c.trail.failing.See(c.cfg.Now(), c.cfg.TTL/2); ok {
			c.cfg.Log.Warn("change not logged", "action", line.Action, "target", line.Target, "err", err, "left_out", left)
		}
	}
	return err
}
