package browse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Order is what a page is sorted by.
type Order string

// The orders of a page.
const (
	ByDue     Order = "due"     // due times; ready jobs come first, in the order of their pops
	ByTime    Order = "time"    // when a job was blocked or buried; for other states the same as ByDue
	ByID      Order = "id"      // bytes of the ids
	ByRetries Order = "retries" // retry counts, then due times
)

// Bounds of one call.
const (
	// MaxExamined is how many jobs one page or one step of a bulk action looks at; half as many
	// where their records must be read to choose among them. A list that is not stored in the order
	// asked for is sorted up to this size.
	MaxExamined = 10_000
	maxPage     = 1000 // jobs on a page
	cutBytes    = 4096 // of the payloads of a job on a page
	scriptBytes = 4 << 20
)

// Query says which jobs a page shows. Its zero value is the jobs that wait for a handler, first due
// first.
type Query struct {
	Range // Limit: 1 to 1,000; 0 = 100
	// State of the jobs. "" is ready, scheduled and retry; by id also held, in flight and blocked.
	// [StateFailed] is those of ready and retry that have failed.
	State State
	// By is the order. Default ByDue, for jobs in flight ByID.
	By Order
	// Kind is the kind of the last error, as Fingerprint gives it; NoKind for jobs without one. ""
	// = any.
	Kind string
	// Search: only jobs that say this. Without an order and a state all jobs are searched, but for those of the morgue, as
	// they are stored.
	Search
	// Waiting leaves out of a list of all states what is in flight or blocked.
	Waiting bool
	// Cursor is Page.Next of the page before, for the same query. "" = the first page.
	Cursor string
	// DryRun has Bulk count what it would change, as Changed, and change nothing.
	DryRun bool
}

// Page is a part of a list.
//
// The pages of a query together are its list. Meanwhile jobs come and go: what stays where it
// is, is neither skipped nor shown twice; what moves (is pushed, popped, fails, is made due) may be
// shown, in its old place or its new one, or in both. There are two exceptions: where Ordered is
// false, a job may be shown twice while Redis changes the size of its table, and so may ids in
// quarantine when one of them is deleted.
type Page struct {
	Jobs []Listed
	// Next is the cursor of the next page, "" after the last one. A page may have fewer jobs
	// than its limit, even none, and yet a next one.
	Next     string
	Examined int // jobs looked at
	// Ordered is false when the list was too long to be sorted as asked: its pages come in
	// the order in which it is stored.
	Ordered bool
	// Through is the share of all jobs that the pages up to this one have searched, 0 to 1, where they are searched as they are stored.
	Through float64
}

// ErrQuery is a query that makes no sense, or a cursor of another one. Errors that wrap it say what was wrong and what would be right.
var ErrQuery = errors.New("the query cannot be answered")

// refusal is an ErrQuery in words of its own.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) Unwrap() error { return ErrQuery }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// check fills in defaults and says what is wrong.
func (query *Query) check() error {
	if query.By == "" && query.State == "" && query.searches() {
		query.By = ByID
	}
	if query.By == "" || query.By == ByTime {
		query.By = ByDue
		if query.State == StateInFlight {
			query.By = ByID
		}
	}
	if query.By == ByRetries && query.State == "" {
		query.State = StateRetry
	}
	if query.Limit == 0 {
		query.Limit = 100
	}
	switch {
	case !slices.Contains([]Order{ByDue, ByID, ByRetries}, query.By):
		return refuse("order %q: want due, time, id or retries", query.By)
	case query.State != "" && !slices.Contains(states, query.State):
		return refuse("state %q: want %s, or none for any that waits", query.State, words(states))
	case query.By == ByRetries && !slices.Contains([]State{StateRetry, StateFailed, StateBlocked, StateMorgue}, query.State):
		return refuse("by retries, failed jobs are sorted: want state retry, failed, blocked or morgue, not %s", query.State)
	case query.Limit < 1 || query.Limit > maxPage:
		return refuse("limit %d: want 1 to %d", query.Limit, maxPage)
	}
	return query.Search.check()
}

// states are those of a list.
var states = []State{StateReady, StateScheduled, StateRetry, StateFailed, StateHeld, StateInFlight, StateBlocked, StateMorgue}

// words lists states for an error.
func words(list []State) string {
	var text []string
	for _, state := range list {
		if state != "" {
			text = append(text, string(state))
		}
	}
	return strings.Join(text, ", ")
}

// natural reports whether the list is stored in the order asked for.
func (query *Query) natural() bool { return query.By == ByDue && query.State != StateInFlight }

// Page reads a part of a list of jobs, in bounded time: it looks at MaxExamined jobs at most, and
// of payloads and errors it reads a few KiB each (see Listed). ErrQuery: the query makes no sense,
// or its cursor belongs to another one.
func (j *Jobs) Page(ctx context.Context, query Query) (Page, error) {
	if err := cmp.Or(query.check(), j.readable(query)); err != nil {
		return Page{}, err
	}
	cur, err := j.readCursor(query.shape("page", j), query.Cursor)
	if err != nil {
		return Page{}, err
	}
	if query.scans() {
		return j.searchedPage(ctx, query, cur)
	}
	if cur.Walk == nil && !query.natural() {
		var all []candidate
		small := false
		if err := j.gently(ctx, query, func() (err error) { all, small, err = j.gather(ctx, query); return err }); err != nil {
			return Page{}, err
		}
		if small {
			return j.sortedPage(ctx, query, cur, all)
		}
	}
	return j.walkedPage(ctx, query, cur)
}

// walkedPage reads a page in the order of storage.
func (j *Jobs) walkedPage(ctx context.Context, query Query, cur cursor) (Page, error) {
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	w := j.walk(query, cur.Walk)
	page := Page{Ordered: query.natural()}
	var found []candidate
	full, cut, until := false, false, time.Time{}
	for !full && !cut && page.Examined < query.most() && !(query.searches() && page.Examined > 0 && time.Now().After(until)) {
		var batch []candidate
		err := j.gently(ctx, query, func() (err error) { batch, err = w.next(ctx, query.batch(len(found))); return err })
		if err != nil || len(batch) == 0 {
			if err != nil {
				return Page{}, err
			}
			break
		}
		if query.searches() {
			want := len(batch)
			if !query.needsHeads() {
				want = query.Limit - len(found)
			}
			n, err := j.searchIn(ctx, query, batch, &cur, want, &until)
			if err != nil {
				return Page{}, err
			}
			cut, batch = n < len(batch), batch[:n]
		}
		if err := j.lookAt(ctx, query, batch); err != nil {
			return Page{}, err
		}
		for _, c := range batch {
			if full = len(found) == query.Limit; full {
				break
			}
			w.advance(c)
			page.Examined++
			if query.wants(c) && (cur.After == nil || query.compare(*cur.After, c.sortKey()) < 0) {
				found = append(found, c)
			}
		}
	}
	if full || cut || !w.ended() {
		page.Next = cur.String()
	}
	return page, j.present(ctx, query, &page, found)
}

// most is how many jobs one call looks at.
func (query *Query) most() int {
	if query.needsHeads() {
		return MaxExamined / 2
	}
	return MaxExamined
}

// batch is how many candidates to ask for: one more than is wanted tells whether there is more.
func (query *Query) batch(found int) int {
	if query.needsHeads() || query.filters() {
		return maxPage
	}
	return query.Limit - found + 1
}

// sortedPage sorts a whole list, short enough for that, and takes a page of it. A search looks at what is sorted, from the place of the
// cursor on, so that its pages come in order, too, however much there is to look through.
func (j *Jobs) sortedPage(ctx context.Context, query Query, cur cursor, all []candidate) (Page, error) {
	if err := j.lookAt(ctx, query, all); err != nil {
		return Page{}, err
	}
	page := Page{Ordered: true, Examined: len(all)}
	all = slices.DeleteFunc(all, func(c candidate) bool {
		return !query.wants(c) || cur.After != nil && query.compare(*cur.After, c.sortKey()) >= 0
	})
	slices.SortFunc(all, func(x, y candidate) int { return query.compare(x.sortKey(), y.sortKey()) })
	all = slices.CompactFunc(all, func(x, y candidate) bool { return x.id == y.id })
	n := min(len(all), query.Limit)
	if query.searches() {
		var until time.Time
		var err error
		if n, err = j.searchIn(ctx, query, all, &cur, query.Limit, &until); err != nil {
			return Page{}, err
		}
		page.Examined = n
	}
	more := n < len(all)
	all = all[:n]
	if n > 0 {
		last := all[n-1].sortKey()
		cur.After = &last
	}
	if more {
		page.Next = cur.String()
	}
	return page, j.present(ctx, query, &page, slices.DeleteFunc(all, func(c candidate) bool { return c.silent }))
}

// present loads the jobs of a page. What moved since it was found is left out.
func (j *Jobs) present(ctx context.Context, query Query, page *Page, found []candidate) error {
	var jobs []Listed
	err := j.gently(ctx, query, func() (err error) { jobs, err = j.show(ctx, query.State, cutBytes, found); return err })
	if err != nil {
		*page = Page{}
		return err
	}
	page.Jobs = make([]Listed, 0, len(jobs))
	for _, job := range jobs {
		if query.shows(job.State) {
			page.Jobs = append(page.Jobs, job)
		}
	}
	return nil
}

// shows reports whether a job of this state belongs on the page.
func (query *Query) shows(state State) bool {
	switch {
	case query.State == StateFailed:
		return state == StateReady || state == StateRetry
	case query.State != "" || state == "":
		return state != "" && state == query.State
	case query.By == ByID:
		return !query.Waiting || state != StateInFlight && state != StateBlocked
	}
	return state == StateReady || state == StateScheduled || state == StateRetry
}

// wants applies the filters to what is known of a candidate.
func (query *Query) wants(c candidate) bool {
	if c.gone || c.silent || !query.hasID(c.id) || c.timed && !query.hasTime(microsTime(c.at)) {
		return false
	}
	if c.head == nil {
		return true
	}
	return query.shows(c.head.State) && (query.State != StateFailed || c.head.State == StateRetry || c.head.RetryCount >= 0 && !c.head.Damaged) && query.hasTime(c.head.PerformAt) && query.hasRetry(c.head.RetryCount) &&
		(query.Kind == "" || Fingerprint(c.head.Error) == strings.TrimSpace(query.Kind))
}

// filters reports whether some jobs of the list may not be wanted.
func (query *Query) filters() bool {
	r := query.Range
	r.Reverse, r.Limit = false, 0
	return r != Range{} || query.Kind != "" || query.searches()
}

// needsHeads reports whether the records must be read to filter or to sort.
func (query *Query) needsHeads() bool {
	return query.State == StateFailed || query.Kind != "" || query.MinRetry != 0 || query.MaxRetry != 0 || query.By == ByRetries ||
		(query.State == StateInFlight || query.State == "" && query.By == ByID) && (query.By == ByDue || !query.MinTime.IsZero() || !query.MaxTime.IsZero())
}

// lookAt reads what must be known of candidates before they can be chosen or sorted.
func (j *Jobs) lookAt(ctx context.Context, query Query, batch []candidate) error {
	if !query.needsHeads() {
		return nil
	}
	var heads []Listed
	err := j.gently(ctx, query, func() (err error) { heads, err = j.show(ctx, query.State, 0, batch); return err })
	if err != nil {
		return err
	}
	for i := range batch {
		batch[i].head = &heads[i]
		batch[i].gone = batch[i].gone || heads[i].State == ""
	}
	return nil
}

// compare says which of two places comes first on the pages.
func (query *Query) compare(x, y sortKey) int {
	n := strings.Compare(string(x.ID), string(y.ID))
	switch query.By {
	case ByRetries:
		n = cmp.Or(cmp.Compare(x.Retries, y.Retries), cmp.Compare(x.At, y.At), n)
	case ByDue:
		n = cmp.Or(cmp.Compare(x.At, y.At), n)
	}
	return direction(query.Range, n)
}
