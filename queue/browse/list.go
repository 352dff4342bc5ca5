package browse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/memory"
)

// Order is the order of a page.
type Order string

// The orders of a page.
const (
	ByDue     Order = "due"     // due times; ready jobs come first, in the order of their pops
	ByTime    Order = "time"    // when a job was blocked or buried; the same as ByDue for other states
	ByID      Order = "id"      // bytes of the ids
	ByRetries Order = "retries" // retry counts, then due times
)

// Bounds of a call.
const (
	// MaxExamined is the maximum number of jobs that a page or a step of a bulk action reads,
	// and half of that where it must read their records to choose among them. Lists that are not
	// stored in the requested order are sorted up to this size.
	MaxExamined = 10_000
	maxPage     = 1000 // jobs on a page
	cutBytes    = 4096 // bytes of payloads per job on a page
	scriptBytes = 4 << 20
)

// Query selects the jobs of a page. The zero value selects the jobs that wait for a handler, the
// first due job first.
type Query struct {
	Range // Limit: 1 to 1,000; 0 means 100
	// State is the state of the jobs. "" means ready, scheduled and retry, and with ByID also held,
	// in flight and blocked. [StateFailed] means the failed jobs of ready and retry.
	State State
	// By is the order. The default is ByDue, and ByID for jobs in flight.
	By Order
	// Kind is the kind of the last error as Fingerprint returns it, or NoKind for jobs without a
	// kind. "" means any.
	Kind string
	// Search selects jobs by their contents. Without an order and a state it searches all jobs
	// outside the morgue in stored order.
	Search
	// Waiting leaves jobs in flight and blocked jobs out of a list of all states.
	Waiting bool
	// Cursor is Page.Next of the previous page of the same query. "" means the first page.
	Cursor string
	// DryRun makes Bulk count in Changed what it would change, and change nothing.
	DryRun bool
}

// Page is a part of a list.
//
// The pages of a query together are its list, although jobs come and go between two pages. A job
// that stays in place is neither skipped nor shown twice. A job that moves (is pushed, popped,
// fails or is made due) may be shown in its old place, its new place or both. There are two
// exceptions. If Ordered is false, a job may be shown twice while Redis resizes its hash table. Ids
// in quarantine may be shown twice when one of them is deleted.
type Page struct {
	Jobs []Listed
	// Next is the cursor of the next page, "" after the last page. A page with a next page may have
	// fewer jobs than its limit, or none.
	Next     string
	Examined int // jobs that were read
	// Ordered is false if the list was too long to be sorted as requested. Its pages then come in
	// stored order.
	Ordered bool
	// Through is the share of all jobs, 0 to 1, that this page and the pages before it have
	// searched. It is set for searches in stored order.
	Through float64
}

// ErrQuery is the error of a query that makes no sense, or with a cursor of another query. Errors
// that wrap it say what is wrong and what would be right.
var ErrQuery = errors.New("the query cannot be answered")

// refusal is an ErrQuery with a text of its own.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) Unwrap() error { return ErrQuery }

func refuseQuery(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// fillAndCheck fills in defaults and returns an error if the query makes no sense.
func (query *Query) fillAndCheck() error {
	if query.By == "" && query.State == "" && query.isSearch() {
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
		return refuseQuery("order %q: must be due, time, id or retries", query.By)
	case query.State != "" && !slices.Contains(states, query.State):
		return refuseQuery("state %q: must be %s, or empty for all waiting jobs", query.State, joinStates(states))
	case query.By == ByRetries && !slices.Contains([]State{StateRetry, StateFailed, StateBlocked, StateMorgue}, query.State):
		return refuseQuery("only failed jobs are sorted by retries: the state must be retry, failed, blocked or morgue, not %s", query.State)
	case query.Limit < 1 || query.Limit > maxPage:
		return refuseQuery("limit %d: must be between 1 and %d", query.Limit, maxPage)
	}
	return query.Search.checkTexts()
}

// states lists the states that a query may have.
var states = []State{StateReady, StateScheduled, StateRetry, StateFailed, StateHeld, StateInFlight, StateBlocked, StateMorgue}

// joinStates returns a list of states for an error.
func joinStates(list []State) string {
	var text []string
	for _, state := range list {
		if state != "" {
			text = append(text, string(state))
		}
	}
	return strings.Join(text, ", ")
}

// inStoredOrder reports whether the list is stored in the requested order.
func (query *Query) inStoredOrder() bool { return query.By == ByDue && query.State != StateInFlight }

// Page reads a part of a list in bounded time. It reads at most MaxExamined jobs, and a few KiB of
// the payloads and the error of each (see [Listed]). A query that makes no sense, or a cursor of
// another query, is an ErrQuery.
func (j *Jobs) Page(ctx context.Context, query Query) (Page, error) {
	if err := cmp.Or(query.fillAndCheck(), j.checkReadable(query)); err != nil {
		return Page{}, err
	}
	cur, err := j.readCursor(query.hashShape("page", j), query.Cursor)
	if err != nil {
		return Page{}, err
	}
	if query.isSearch() {
		if err := memory.Take(ctx, copiesOfFind*searchBytes); err != nil {
			return Page{}, err
		}
	}
	if query.isScan() {
		return j.searchedPage(ctx, query, cur)
	}
	if cur.Walk == nil && !query.inStoredOrder() {
		var all []candidate
		small := false
		if err := j.runGently(ctx, query, func() (err error) { all, small, err = j.readShortList(ctx, query); return err }); err != nil {
			return Page{}, err
		}
		if small {
			return j.sortedPage(ctx, query, cur, all)
		}
	}
	return j.walkedPage(ctx, query, cur)
}

// walkedPage reads a page in stored order.
func (j *Jobs) walkedPage(ctx context.Context, query Query, cur cursor) (Page, error) {
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	w := j.newWalker(query, cur.Walk)
	page := Page{Ordered: query.inStoredOrder()}
	var found []candidate
	full, cut, until := false, false, time.Time{}
	for !full && !cut && page.Examined < query.maxExamined() && !(query.isSearch() && page.Examined > 0 && time.Now().After(until)) {
		var batch []candidate
		err := j.runGently(ctx, query, func() (err error) { batch, err = w.next(ctx, query.batchSize(len(found))); return err })
		if err != nil || len(batch) == 0 {
			if err != nil {
				return Page{}, err
			}
			break
		}
		if query.isSearch() {
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
		if err := j.loadHeads(ctx, query, batch); err != nil {
			return Page{}, err
		}
		for _, c := range batch {
			if full = len(found) == query.Limit; full {
				break
			}
			w.advance(c)
			page.Examined++
			if query.wantsCandidate(c) && (cur.After == nil || query.compareKeys(*cur.After, c.sortKey()) < 0) {
				found = append(found, c)
			}
		}
	}
	if full || cut || !w.ended() {
		page.Next = cur.String()
	}
	return page, j.loadPage(ctx, query, &page, found)
}

// maxExamined is the maximum number of jobs that a call reads.
func (query *Query) maxExamined() int {
	if query.needsHeads() {
		return MaxExamined / 2
	}
	return MaxExamined
}

// batchSize returns how many candidates to request. An extra candidate shows whether there are
// more.
func (query *Query) batchSize(found int) int {
	if query.needsHeads() || query.hasFilters() {
		return maxPage
	}
	return query.Limit - found + 1
}

// sortedPage sorts a whole list that is short enough and takes a page from it. A search examines
// the sorted list from the place of the cursor on. So its pages are sorted too, however much it has
// to search.
func (j *Jobs) sortedPage(ctx context.Context, query Query, cur cursor, all []candidate) (Page, error) {
	if err := j.loadHeads(ctx, query, all); err != nil {
		return Page{}, err
	}
	page := Page{Ordered: true, Examined: len(all)}
	all = slices.DeleteFunc(all, func(c candidate) bool {
		return !query.wantsCandidate(c) || cur.After != nil && query.compareKeys(*cur.After, c.sortKey()) >= 0
	})
	slices.SortFunc(all, func(x, y candidate) int { return query.compareKeys(x.sortKey(), y.sortKey()) })
	all = slices.CompactFunc(all, func(x, y candidate) bool { return x.id == y.id })
	n := min(len(all), query.Limit)
	if query.isSearch() {
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
	return page, j.loadPage(ctx, query, &page, slices.DeleteFunc(all, func(c candidate) bool { return c.mismatch }))
}

// loadPage loads the jobs of a page. It leaves out jobs that have moved since they were found.
func (j *Jobs) loadPage(ctx context.Context, query Query, page *Page, found []candidate) error {
	var jobs []Listed
	err := j.runGently(ctx, query, func() (err error) { jobs, err = j.readListed(ctx, query.State, listExtent, found); return err })
	if err != nil {
		*page = Page{}
		return err
	}
	page.Jobs = make([]Listed, 0, len(jobs))
	for _, job := range jobs {
		if query.showsState(job.State) {
			page.Jobs = append(page.Jobs, job)
		}
	}
	return nil
}

// showsState reports whether a job in this state belongs on the page.
func (query *Query) showsState(state State) bool {
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

// wantsCandidate applies the filters to the known facts of a candidate.
func (query *Query) wantsCandidate(c candidate) bool {
	if c.gone || c.mismatch || !query.hasID(c.id) || c.timed && !query.hasTime(microsTime(c.at)) {
		return false
	}
	if c.head == nil {
		return true
	}
	return query.showsState(c.head.State) && (query.State != StateFailed || c.head.State == StateRetry || c.head.RetryCount >= 0 && !c.head.Damaged) && query.hasTime(c.head.PerformAt) && query.hasRetry(c.head.RetryCount) &&
		(query.Kind == "" || Fingerprint(c.head.Error) == strings.TrimSpace(query.Kind))
}

// hasFilters reports whether the query may leave out jobs of the list.
func (query *Query) hasFilters() bool {
	r := query.Range
	r.Reverse, r.Limit = false, 0
	return r != Range{} || query.Kind != "" || query.isSearch()
}

// needsHeads reports whether records must be read to filter or to sort.
func (query *Query) needsHeads() bool {
	return query.State == StateFailed || query.Kind != "" || query.MinRetry != 0 || query.MaxRetry != 0 || query.By == ByRetries ||
		(query.State == StateInFlight || query.State == "" && query.By == ByID) && (query.By == ByDue || !query.MinTime.IsZero() || !query.MaxTime.IsZero())
}

// loadHeads reads the facts of candidates that are needed to filter and to sort them.
func (j *Jobs) loadHeads(ctx context.Context, query Query, batch []candidate) error {
	if !query.needsHeads() {
		return nil
	}
	var heads []Listed
	err := j.runGently(ctx, query, func() (err error) { heads, err = j.readListed(ctx, query.State, figuresExtent, batch); return err })
	if err != nil {
		return err
	}
	for i := range batch {
		batch[i].head = &heads[i]
		batch[i].gone = batch[i].gone || heads[i].State == ""
	}
	return nil
}

// compareKeys compares two places in the order of the pages.
func (query *Query) compareKeys(x, y sortKey) int {
	n := strings.Compare(string(x.ID), string(y.ID))
	switch query.By {
	case ByRetries:
		n = cmp.Or(cmp.Compare(x.Retries, y.Retries), cmp.Compare(x.At, y.At), n)
	case ByDue:
		n = cmp.Or(cmp.Compare(x.At, y.At), n)
	}
	return directed(query.Range, n)
}
