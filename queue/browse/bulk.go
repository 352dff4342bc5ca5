package browse

import (
	"context"
	"slices"
	"time"
)

// maxStep is how many jobs one step of a bulk action changes.
const maxStep = 10_000

// Step is how far a bulk action got in one call.
type Step struct {
	Changed  int    // jobs changed
	Skipped  int    // jobs that were gone when their turn came
	Examined int    // jobs looked at
	Next     string // cursor of the next step, "" after the last one
	Left     int    // jobs still to look at, of those there were at the start
}

// bulk is what a bulk action remembers between its steps.
type bulk struct {
	Start int64 `json:"s"` // us
	budget
}

// Bulk does something to the jobs that a query finds, at most query.Limit of them (0 = 10,000) in
// one call: go on with the cursor of the step until it has none. To repeat a step, or to stop
// between two, does no harm: each job is where the action found it, or where the action puts it.
//
// The action is about the jobs of its start. It passes through each of their lists once and looks
// at no more jobs of one than there were, so jobs that fail again meanwhile cannot keep it going;
// those buried, blocked or made due since the start are left out. Where jobs are scheduled or fail
// meanwhile that are due before others, as many of the last are not reached: repeat the action. Of
// an id in flight it touches nothing.
//
// After an error the step says what was done before, and where to go on.
func (j *Jobs) Bulk(ctx context.Context, action *Action, query Query) (Step, error) {
	limit := query.Limit
	if limit == 0 {
		limit = maxStep
	}
	query.Limit = 0
	if err := query.checkBulk(action, limit); err != nil {
		return Step{}, err
	}
	use := action.Name
	if query.DryRun {
		use = "count " + use // its cursor is no place to go on from with the action itself
	}
	cur, err := j.readCursor(query.shape(use, j), query.Cursor)
	if err == nil && cur.Bulk == nil {
		err = j.begin(ctx, query, &cur)
	}
	if err != nil {
		return Step{}, err
	}
	b := &bulkRun{jobs: j, action: action, query: query, cur: &cur, limit: limit}
	b.walk = j.walk(b.bounded(), cur.Walk)
	err = b.run(ctx)
	return b.step, err
}

// checkBulk says what is wrong with a query for an action.
func (query *Query) checkBulk(action *Action, limit int) error {
	if !slices.Contains(action.States, query.State) {
		return refuse("%s of state %q: want one of %s", action.Name, query.State, words(action.States))
	}
	if limit < 1 || limit > maxStep {
		return refuse("limit %d: want 1 to %d", limit, maxStep)
	}
	if query.searches() {
		return refuse("%s of what a search finds: list it, and name the ids", action.Name)
	}
	query.By, query.Reverse = ByDue, false
	return query.check()
}

// begin notes when the action began, and how much there was.
func (j *Jobs) begin(ctx context.Context, query Query, cur *cursor) error {
	now, err := j.db.Time(ctx)
	if err != nil {
		return err
	}
	have, err := j.budget(ctx, query)
	cur.Bulk, cur.Walk = &bulk{now.UnixMicro(), have}, &position{}
	return err
}

// bulkRun is one call of a bulk action.
type bulkRun struct {
	jobs   *Jobs
	action *Action
	query  Query
	cur    *cursor
	walk   walker
	limit  int
	step   Step
}

// bounded is the query within the time of the start, where the time of a list is that of an event.
func (b *bulkRun) bounded() Query {
	query := b.query
	start := time.UnixMicro(b.cur.Bulk.Start)
	if (query.State == StateBlocked || query.State == StateMorgue) && (query.MaxTime.IsZero() || query.MaxTime.After(start)) {
		query.MaxTime = start
	}
	return query
}

// run walks until the limit of the call, or the end.
func (b *bulkRun) run(ctx context.Context) error {
	query := b.bounded()
	for b.step.Changed+b.step.Skipped < b.limit && b.step.Examined < query.most() && b.left() {
		room := min(adminChunk, b.limit-b.step.Changed-b.step.Skipped, query.most()-b.step.Examined)
		batch, err := b.next(ctx, room)
		if err == nil {
			err = b.jobs.lookAt(ctx, query, batch)
		}
		if err == nil {
			err = b.act(ctx, query, batch)
		}
		if err != nil || len(batch) == 0 {
			b.note(err != nil)
			return err
		}
		for _, c := range batch {
			b.walk.advance(c)
		}
		b.step.Examined += len(batch)
		b.spend(batch)
	}
	b.note(b.left() && !b.walk.ended())
	return nil
}

// note says in the step where the action stands.
func (b *bulkRun) note(more bool) {
	if more {
		b.step.Next, b.step.Left = b.cur.String(), max(1, b.cur.Bulk.Left)
	}
}

// act does the action to those of a batch that are wanted, by the place where each was found.
func (b *bulkRun) act(ctx context.Context, query Query, batch []candidate) error {
	ids := map[State][]string{}
	for _, c := range batch {
		if query.wants(c) && !b.pushedSince(c) {
			ids[c.state] = append(ids[c.state], c.id)
		}
	}
	for _, state := range []State{StateReady, StateScheduled, StateRetry, StateHeld, StateBlocked, StateMorgue} {
		if len(ids[state]) == 0 {
			continue
		}
		if b.query.DryRun {
			b.step.Changed += len(ids[state])
			continue
		}
		place := state
		if query.State == StateFailed {
			place = StateFailed
		}
		n, err := b.action.apply(b.jobs, ctx, place, ids[state]...)
		b.step.Changed += n
		if err != nil {
			return err
		}
		b.step.Skipped += len(ids[state]) - n
	}
	return nil
}

// pushedSince reports whether a job joined the line of those that are due after the start.
func (b *bulkRun) pushedSince(c candidate) bool {
	return c.state == StateReady && c.at > b.cur.Bulk.Start
}

// budget says how many jobs a bulk action may still look at. Lines and sorted sets have each their
// own: what joins a line while the action passes through it must not use up what others of the
// start need.
type budget struct {
	Left   int `json:"n"`           // about how many of the start are still to be looked at
	Timed  int `json:"t,omitempty"` // in sorted sets
	Groups int `json:"g,omitempty"` // groups of lines that were counted
	Line   int `json:"l,omitempty"` // in the last of them: jobs that were there
	Young  int `json:"y,omitempty"` // and jobs that joined it
}

// budget counts what there is at the start.
func (j *Jobs) budget(ctx context.Context, query Query) (have budget, err error) {
	if have.Left, err = j.size(ctx, query); err != nil {
		return have, err
	}
	have.Timed = have.Left
	if query.lined() {
		lines := 0
		lines, err = j.size(ctx, Query{State: StateReady})
		have.Timed = max(0, have.Left-lines)
	}
	return have, err
}

// lined reports whether some of the jobs wait in lines.
func (query *Query) lined() bool { return slices.Contains(statesOf(query.State), StateReady) }

// lined reports whether the action stands in a line, and not in sorted sets.
func (b *bulkRun) lined() bool {
	return b.query.lined() && (b.query.State == StateReady || b.cur.Walk.Phase == 0)
}

// left reports whether there may be something to look at.
func (b *bulkRun) left() bool {
	return b.cur.Bulk.Timed > 0 || b.lined() && b.cur.Walk.Group < lineGroups(b.jobs)
}

// next asks for the next candidates, as far as the budget allows.
func (b *bulkRun) next(ctx context.Context, n int) ([]candidate, error) {
	have := &b.cur.Bulk.budget
	if b.lined() && have.Groups > b.cur.Walk.Group {
		n = min(n, have.Line)
	}
	batch, err := b.walk.next(ctx, n)
	if err != nil || len(batch) == 0 {
		return batch, err
	}
	if batch[0].state != StateReady {
		return batch[:min(len(batch), have.Timed)], nil
	}
	if group := b.cur.Walk.Group; group >= have.Groups {
		have.Groups = group + 1
		have.Line, err = b.jobs.lineSize(ctx, group)
		have.Line = max(have.Line, len(batch))
		have.Young = have.Line
	}
	return batch, err
}

// spend takes what was looked at from the budget. A group of lines ends when all that was
// there was seen.
func (b *bulkRun) spend(batch []candidate) {
	have := &b.cur.Bulk.budget
	have.Left = max(0, have.Left-len(batch))
	if batch[0].state != StateReady {
		have.Timed -= len(batch)
		return
	}
	for _, c := range batch {
		if b.pushedSince(c) {
			have.Young--
		} else {
			have.Line--
		}
	}
	if have.Line <= 0 || have.Young < 0 {
		have.Line = 0
		b.cur.Walk.Line = nil
		b.cur.Walk.Group++
		b.walk = b.jobs.walk(b.bounded(), b.cur.Walk)
	}
}

func lineGroups(j *Jobs) int { return (len(j.shards) + lineGroup - 1) / lineGroup }

// lineSize is how many entries the lines of a group have.
func (j *Jobs) lineSize(ctx context.Context, group int) (int, error) {
	return j.sizeIn(ctx, j.shards[group*lineGroup:min((group+1)*lineGroup, len(j.shards))], Query{State: StateReady})
}
