package browse

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/memory"
)

// maxStep is the maximum number of jobs that a call of [Jobs.Bulk] changes.
const maxStep = 10_000

// Step is the result of a call of [Jobs.Bulk].
type Step struct {
	Changed  int    // jobs changed
	Skipped  int    // jobs that had left their state before they were changed
	Examined int    // jobs that the call has read
	Next     string // cursor of the next step, "" after the last step
	Left     int    // about how many jobs of the start are not read yet
}

// bulk is the part of a cursor that a bulk action needs.
type bulk struct {
	Start int64 `json:"s"` // us
	budget
}

// Bulk applies an action to the jobs that a query finds, at most query.Limit of them (0 means
// 10,000) in a call. Call it with the cursor of the step until the step has none. It is safe to
// repeat a step, or to stop between two steps.
//
// The action applies to the jobs that exist at its start. It passes once through each of their
// lists, and reads no more jobs of a list than the list had at the start. So jobs that fail again
// meanwhile cannot keep it going. Jobs that were buried, blocked or made due since the start are
// left out. Jobs that are scheduled or fail meanwhile, and are due before others, use up the
// budget for as many jobs at the end. Repeat the action for these. It does not change jobs in
// flight.
//
// After an error the step has the counts so far, and the cursor that continues the action.
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
		use = "count " + use // its cursor must not continue the action itself
	}
	cur, err := j.readCursor(query.hashShape(use, j), query.Cursor)
	if err == nil && cur.Bulk == nil {
		err = j.beginBulk(ctx, query, &cur)
	}
	if err != nil {
		return Step{}, err
	}
	b := &bulkRun{jobs: j, action: action, query: query, cur: &cur, limit: limit}
	b.walk = j.newWalker(b.boundedQuery(), cur.Walk)
	err = b.run(ctx)
	return b.step, err
}

// checkBulk returns an error if an action cannot be applied to the results of a query.
func (query *Query) checkBulk(action *Action, limit int) error {
	if !slices.Contains(action.States, query.State) {
		return refuseQuery("%s of state %q: the state must be one of %s", action.Name, query.State, joinStates(action.States))
	}
	if limit < 1 || limit > maxStep {
		return refuseQuery("limit %d: must be between 1 and %d", limit, maxStep)
	}
	if query.isSearch() {
		return refuseQuery("%s does not apply to the results of a search; list them and name their ids", action.Name)
	}
	query.By, query.Reverse = ByDue, false
	return query.fillAndCheck()
}

// beginBulk records when the action began and how many jobs there are.
func (j *Jobs) beginBulk(ctx context.Context, query Query, cur *cursor) error {
	now, err := j.db.Time(ctx)
	if err != nil {
		return err
	}
	have, err := j.countBudget(ctx, query)
	cur.Bulk, cur.Walk = &bulk{now.UnixMicro(), have}, &position{}
	return err
}

// bulkRun is a call of a bulk action.
type bulkRun struct {
	jobs   *Jobs
	action *Action
	query  Query
	cur    *cursor
	walk   walker
	limit  int
	step   Step
}

// boundedQuery returns the query without the jobs that were blocked or buried after the start.
func (b *bulkRun) boundedQuery() Query {
	query := b.query
	start := time.UnixMicro(b.cur.Bulk.Start)
	if (query.State == StateBlocked || query.State == StateMorgue) && (query.MaxTime.IsZero() || query.MaxTime.After(start)) {
		query.MaxTime = start
	}
	return query
}

// run walks until the limit of the call, or to the end.
func (b *bulkRun) run(ctx context.Context) error {
	query := b.boundedQuery()
	for b.step.Changed+b.step.Skipped < b.limit && b.step.Examined < query.maxExamined() && b.hasMore() {
		room := min(adminChunk, b.limit-b.step.Changed-b.step.Skipped, query.maxExamined()-b.step.Examined)
		batch, err := b.nextBatch(ctx, room)
		if err == nil {
			err = b.loadAndApply(ctx, query, batch)
		}
		if err != nil || len(batch) == 0 {
			b.noteNext(err != nil)
			return err
		}
		b.advance(batch)
		b.step.Examined += len(batch)
		b.spendBudget(batch)
	}
	b.noteNext(b.hasMore() && !b.walk.ended())
	return nil
}

// advance moves the place beyond a batch. A suspect that the action has taken out has no place any more. The suspects
// before it that stayed are the place of those behind it.
func (b *bulkRun) advance(batch []candidate) {
	reread := false
	for _, c := range batch {
		if c.takenOut {
			reread = true
		} else {
			b.walk.advance(c)
		}
	}
	if reread {
		b.walk = b.jobs.newWalker(b.boundedQuery(), b.cur.Walk)
	}
}

// noteNext records in the step where to continue.
func (b *bulkRun) noteNext(more bool) {
	if more {
		b.step.Next, b.step.Left = b.cur.String(), max(1, b.cur.Bulk.Left)
	}
}

// loadAndApply reads what the query needs to know of a batch, and applies the action.
func (b *bulkRun) loadAndApply(ctx context.Context, query Query, batch []candidate) error {
	scoped, end := memory.Scope(ctx)
	defer end()
	if err := b.jobs.loadHeads(scoped, query, batch); err != nil {
		return err
	}
	err := b.applyAction(ctx, query, batch)
	for i := range batch {
		batch[i].head = nil
	}
	return err
}

// applyAction applies the action to the wanted jobs of a batch. It takes suspects one at a time, to know which of them
// have left their list.
func (b *bulkRun) applyAction(ctx context.Context, query Query, batch []candidate) error {
	ids := map[State][]string{}
	for i, c := range batch {
		if !query.wantsCandidate(c) || b.pushedSince(c) {
			continue
		}
		if c.front == suspectFront && b.action.takesOut && !b.query.DryRun {
			n, err := b.applyTo(ctx, c.state, c.id)
			if err != nil {
				return err
			}
			batch[i].takenOut = n == 1
			continue
		}
		ids[c.state] = append(ids[c.state], c.id)
	}
	for _, state := range []State{StateReady, StateScheduled, StateRetry, StateHeld, StateBlocked, StateMorgue} {
		if len(ids[state]) == 0 {
			continue
		}
		if b.query.DryRun {
			b.step.Changed += len(ids[state])
			continue
		}
		if _, err := b.applyTo(ctx, state, ids[state]...); err != nil {
			return err
		}
	}
	return nil
}

// applyTo applies the action to ids and counts them. It names their state as found, so that the script skips jobs that
// have left it.
func (b *bulkRun) applyTo(ctx context.Context, found State, ids ...string) (changed int, err error) {
	if b.query.State == StateFailed {
		found = StateFailed
	}
	changed, err = b.action.apply(b.jobs, ctx, found, ids...)
	b.step.Changed += changed
	if err == nil {
		b.step.Skipped += len(ids) - changed
	}
	return changed, err
}

// pushedSince reports whether a job joined the list of ready jobs after the start.
func (b *bulkRun) pushedSince(c candidate) bool {
	return c.state == StateReady && c.at > b.cur.Bulk.Start
}

// budget bounds how many jobs a bulk action may still read. Ready lists and sorted sets have
// separate budgets, so that jobs that join a ready list meanwhile do not use up the budget of jobs
// in sorted sets.
type budget struct {
	Left   int `json:"n"`           // about how many jobs of the start are not read yet
	Timed  int `json:"t,omitempty"` // jobs in sorted sets
	Groups int `json:"g,omitempty"` // groups of shards with counted ready lists
	Line   int `json:"l,omitempty"` // jobs that were in the last counted group
	Young  int `json:"y,omitempty"` // jobs that joined that group since
}

// countBudget counts the jobs at the start.
func (j *Jobs) countBudget(ctx context.Context, query Query) (have budget, err error) {
	if have.Left, err = j.countEntries(ctx, query); err != nil {
		return have, err
	}
	have.Timed = have.Left
	if query.hasReady() {
		lines := 0
		lines, err = j.countEntries(ctx, Query{State: StateReady})
		have.Timed = max(0, have.Left-lines)
	}
	return have, err
}

// hasReady reports whether some of the queried jobs are in ready lists.
func (query *Query) hasReady() bool { return slices.Contains(statesOf(query.State), StateReady) }

// inReady reports whether the action reads ready lists now, and not sorted sets.
func (b *bulkRun) inReady() bool {
	return b.query.hasReady() && (b.query.State == StateReady || b.cur.Walk.Phase == 0)
}

// hasMore reports whether there may be more jobs to read.
func (b *bulkRun) hasMore() bool {
	return b.cur.Bulk.Timed > 0 || b.inReady() && b.cur.Walk.Group < lineGroups(b.jobs)
}

// nextBatch returns the next candidates within the budget.
func (b *bulkRun) nextBatch(ctx context.Context, n int) ([]candidate, error) {
	have := &b.cur.Bulk.budget
	if b.inReady() && have.Groups > b.cur.Walk.Group {
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
		have.Line, err = b.jobs.countReady(ctx, group)
		have.Line = max(have.Line, len(batch))
		have.Young = have.Line
	}
	return batch, err
}

// spendBudget subtracts a batch from the budget. The action leaves a group of ready lists once it
// has seen all jobs that were there.
func (b *bulkRun) spendBudget(batch []candidate) {
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
		b.walk = b.jobs.newWalker(b.boundedQuery(), b.cur.Walk)
	}
}

func lineGroups(j *Jobs) int { return (len(j.shards) + lineGroup - 1) / lineGroup }

// countReady returns how many entries the ready lists of a group of shards have.
func (j *Jobs) countReady(ctx context.Context, group int) (int, error) {
	return j.countEntriesIn(ctx, j.shards[group*lineGroup:min((group+1)*lineGroup, len(j.shards))], Query{State: StateReady})
}
