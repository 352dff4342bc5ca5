package cluster

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What the cluster does by itself, for the log of changes: who leads, which nodes got their first shards or gave away
// their last, and how many shards have another owner. All nodes apply the same assignments; the one that leads writes.
// A line is lost if the leader dies before it has written it.

// trailPending is how many lines wait while Redis is out of reach; later ones are lost.
const trailPending = 64

// trail follows leadership and assignments.
type trail struct {
	node    string
	led     bool
	applied *plan.Assignment // the last one
	pending chan changes.Line
}

// see takes in what has changed.
func (t *trail) see(leads bool, now *plan.Assignment) {
	for _, line := range linesOf(t.node, t.led, leads, t.applied, now) {
		select {
		case t.pending <- line:
		default:
		}
	}
	t.led, t.applied = leads, now
}

// linesOf are what there is to tell.
func linesOf(node string, led, leads bool, was, is *plan.Assignment) (lines []changes.Line) {
	if !leads {
		return nil
	}
	tell := func(line changes.Line) {
		line.Who = changes.Who{Role: "cluster", Node: node}
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

// writeTrail writes lines until ctx ends, each until Redis has taken it.
func (c *Cluster) writeTrail(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-c.trail.pending:
			for c.write(ctx, line) != nil {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(c.cfg.TTL / 2):
				}
			}
		}
	}
}

func (c *Cluster) write(ctx context.Context, line changes.Line) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TTL)
	defer cancel()
	err := c.cfg.WriteDown(ctx, line)
	if err != nil && ctx.Err() == nil && !c.cfg.OutOfReach("write the log of changes", err) {
		c.cfg.Log.Warn("not written down", "action", line.Action, "target", line.Target, "err", err)
	}
	return err
}
