package queue

import (
	"context"
	"slices"
)

// quota says how many jobs a bulk action may still look at. Lines and sorted sets have each their own: what joins a
// line while the action passes through it must not use up what others of the start need.
type quota struct {
	Left   int `json:"n"`           // about how many of the start are still to be looked at
	Timed  int `json:"t,omitempty"` // in sorted sets
	Groups int `json:"g,omitempty"` // groups of lines that were counted
	Line   int `json:"l,omitempty"` // in the last of them: jobs that were there
	Young  int `json:"y,omitempty"` // and jobs that joined it
}

// quota counts what there is at the start.
func (q *Queue) quota(ctx context.Context, query Query) (have quota, err error) {
	if have.Left, err = q.size(ctx, query); err != nil {
		return have, err
	}
	have.Timed = have.Left
	if query.lined() {
		lines := 0
		lines, err = q.size(ctx, Query{State: Ready})
		have.Timed = max(0, have.Left-lines)
	}
	return have, err
}

// lined reports whether some of the jobs wait in lines.
func (query *Query) lined() bool { return slices.Contains(statesOf(query.State), Ready) }

// lined reports whether the action stands in a line, and not in sorted sets.
func (b *bulkRun) lined() bool {
	return b.query.lined() && (b.query.State == Ready || b.cur.Walk.Phase == 0)
}

// left reports whether there may be something to look at.
func (b *bulkRun) left() bool {
	return b.cur.Bulk.Timed > 0 || b.lined() && b.cur.Walk.Group < lineGroups(b.q)
}

// next asks for the next candidates, as far as the quota allows.
func (b *bulkRun) next(ctx context.Context, n int) ([]candidate, error) {
	have := &b.cur.Bulk.quota
	if b.lined() && have.Groups > b.cur.Walk.Group {
		n = min(n, have.Line)
	}
	batch, err := b.walk.next(ctx, n)
	if err != nil || len(batch) == 0 {
		return batch, err
	}
	if batch[0].state != Ready {
		return batch[:min(len(batch), have.Timed)], nil
	}
	if group := b.cur.Walk.Group; group >= have.Groups {
		have.Groups = group + 1
		have.Line, err = b.q.lineSize(ctx, group)
		have.Line = max(have.Line, len(batch))
		have.Young = have.Line
	}
	return batch, err
}

// spend takes what was looked at from the quota. A group of lines ends when all that was
// there was seen.
func (b *bulkRun) spend(batch []candidate) {
	have := &b.cur.Bulk.quota
	have.Left = max(0, have.Left-len(batch))
	if batch[0].state != Ready {
		have.Timed -= len(batch)
		return
	}
	for _, c := range batch {
		if b.young(c) {
			have.Young--
		} else {
			have.Line--
		}
	}
	if have.Line <= 0 || have.Young < 0 {
		have.Line = 0
		b.cur.Walk.Line = nil
		b.cur.Walk.Group++
		b.walk = b.q.walk(b.bounded(), b.cur.Walk)
	}
}

func lineGroups(q *Queue) int { return (len(q.shards) + lineGroup - 1) / lineGroup }

// lineSize is how many entries the lines of a group have.
func (q *Queue) lineSize(ctx context.Context, group int) (int, error) {
	return q.sizeIn(ctx, q.shards[group*lineGroup:min((group+1)*lineGroup, len(q.shards))], Query{State: Ready})
}
