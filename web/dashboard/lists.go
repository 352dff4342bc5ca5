package dashboard

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// listKind is a list of jobs that has a page of its own.
type listKind struct {
	path     string
	some     []string // what can be done to selected jobs
	all      []string // what can be done to all of them
	Title    string
	About    string
	States   []choice // that can be asked for; the first is the default
	Orders   []choice // the first is the default
	TimeName string   // heading of the time of a job
	Empty    string
}

// choice is an entry of a select.
type choice struct{ Value, Name string }

func jobsList() listKind {
	return listKind{
		path: "jobs", Title: "Jobs", About: "What waits for a handler.",
		States: []choice{{"", "any that waits"}, {"ready", "ready"}, {"scheduled", "scheduled"}, {"retry", "retry"}, {"failed", "failed"}},
		Orders: []choice{{"due", "due time"}, {"id", "id"}, {"retries", "retries"}},
		some:   []string{"run-now", "kill", "delete"}, all: []string{"run-all", "kill-failed", "delete-failed"},
		TimeName: "Due", Empty: "No job waits here.",
	}
}

func inFlightList() listKind {
	return listKind{
		path: "in-flight", Title: "In flight", About: "What handlers have now. Nothing can be done to it by hand: it is acknowledged, retried, or runs again if its worker dies.",
		States: []choice{{"in_flight", "in flight"}}, Orders: []choice{{"id", "id"}, {"due", "due time"}},
		TimeName: "In flight", Empty: "No handler has a job of this queue now.",
	}
}

func blockedList() listKind {
	return listKind{
		path: "blocked", Title: "Blocked", About: "Ids that ran out of retries and wait for a person. What is pushed for them is kept behind them.",
		States: []choice{{"blocked", "blocked"}}, Orders: []choice{{"time", "time"}, {"id", "id"}, {"retries", "retries"}},
		some: []string{"unblock", "skip", "bury"}, all: []string{"unblock-all"},
		TimeName: "Blocked", Empty: "No id is blocked.",
	}
}

func morgueList() listKind {
	return listKind{
		path: "morgue", Title: "Morgue", About: "Payloads that ran out of retries, kept for a person.",
		States: []choice{{"morgue", "morgue"}}, Orders: []choice{{"time", "time of burial"}, {"id", "id"}, {"retries", "retries"}},
		some: []string{"requeue", "delete-dead"}, all: []string{"requeue-all", "delete-all-dead"},
		TimeName: "Buried", Empty: "The morgue is empty.",
	}
}

// listBody is the page of a list.
type listBody struct {
	listKind
	Queue       string
	Tabs        tabs
	State, By   string
	From, To    string
	Kind        string
	Reverse     bool
	Limit       int
	Limits      []int
	Rows        []listRow
	First, Next string
	Unordered   bool
	Examined    int
	Some, All   []button
	RowDeed     *button
	Back        string
}

// HasStates reports whether the list has jobs of several states.
func (b *listBody) HasStates() bool { return len(b.States) > 1 }

// NoKind reports whether jobs without an error are asked for.
func (b *listBody) NoKind() bool { return b.Kind == queue.NoKind }

// listRow is a job of a list.
type listRow struct {
	queue.Listed
	Now     time.Time
	Preview string
	Summary string // of the error
	Node    string // that has it, of a job in flight; "" = nobody: its shard's owner is gone
}

// holders notes on rows of jobs in flight which node has each: the owner of its shard.
func (d *Dashboard) holders(ctx context.Context, q *queue.Queue, rows []listRow) error {
	var shards []*queue.Shard
	for _, row := range rows {
		if s := q.Shard(row.Shard); !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	stats, err := d.cfg.Client.Stats(ctx, shards...)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Node = nodeOf(stats[slices.Index(shards, q.Shard(rows[i].Shard))].Owner.Instance)
	}
	return nil
}

func (d *Dashboard) listPage(kind listKind) func(*http.Request) (view, error) {
	return func(r *http.Request) (view, error) {
		q, err := d.queue(r)
		if err != nil {
			return view{}, err
		}
		b := bodyOf(kind, q.Name, visitOf(r))
		asked, err := b.query(r.URL.Query().Get("cursor"))
		if err != nil {
			return view{}, err
		}
		page, err := q.Page(r.Context(), asked)
		if errors.Is(err, queue.ErrQuery) {
			return view{}, refuse(http.StatusBadRequest, "%v", err)
		}
		if err != nil {
			return view{}, err
		}
		now, err := d.cfg.Client.Time(r.Context())
		if err != nil {
			return view{}, err
		}
		b.fill(page, now, r.URL)
		if kind.path == "in-flight" {
			if err := d.holders(r.Context(), q, b.Rows); err != nil {
				return view{}, err
			}
		}
		return view{Page: "list", Title: b.Title + " of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
	}
}

// queue is the queue that the path names.
func (d *Dashboard) queue(r *http.Request) (*queue.Queue, error) {
	name := r.PathValue("q")
	if err := queue.CheckName("queue", name); err != nil {
		return nil, refuse(http.StatusNotFound, "There is no such queue: %v.", err)
	}
	return d.cfg.Client.Queue(r.Context(), name)
}

func bodyOf(kind listKind, name string, by visit) *listBody {
	v := by.Query()
	b := &listBody{
		listKind: kind, Queue: name, Tabs: tabs{name, kind.path}, Back: by.RequestURI(),
		State: cmp.Or(v.Get("state"), kind.States[0].Value), By: cmp.Or(v.Get("by"), kind.Orders[0].Value),
		From: v.Get("from"), To: v.Get("to"), Kind: v.Get("kind"), Reverse: v.Get("reverse") != "",
		Limits: []int{25, 50, 100, 200}, Limit: 50,
	}
	if by.acts {
		b.offer(kind)
	}
	if n, err := strconv.Atoi(v.Get("limit")); err == nil && slices.Contains(b.Limits, n) {
		b.Limit = n
	}
	return b
}

// offer puts the buttons on the page.
func (b *listBody) offer(kind listKind) {
	b.Some, b.All = buttonsOf(kind.some), buttonsOf(kind.all)
	if len(b.Some) > 0 {
		b.RowDeed = &b.Some[0]
	}
}

// query is what package queue is asked.
func (b *listBody) query(cursor string) (queue.Query, error) {
	q := queue.Query{State: queue.State(b.State), By: queue.Order(b.By), Kind: b.Kind, Cursor: cursor}
	q.Limit, q.Reverse = b.Limit, b.Reverse
	known := func(all []choice, value string) bool {
		return slices.ContainsFunc(all, func(c choice) bool { return c.Value == value })
	}
	if !known(b.States, b.State) {
		return q, refuse(http.StatusBadRequest, "state %q is not on this page.", b.State)
	}
	if !known(b.Orders, b.By) {
		return q, refuse(http.StatusBadRequest, "This list is not sorted by %q.", b.By)
	}
	return q, b.readRange(&q.Range)
}

// readRange reads from and to in the unit of the order.
func (b *listBody) readRange(r *queue.Range) (err error) {
	switch queue.Order(b.By) {
	case queue.ByID:
		r.MinID, r.MaxID = b.From, b.To
	case queue.ByRetries:
		if b.From == "" && b.To == "" {
			return nil
		}
		r.MinRetry, r.MaxRetry = -1, math.MaxInt32
		err = errors.Join(readTries("from", b.From, &r.MinRetry), readTries("to", b.To, &r.MaxRetry))
	default:
		err = errors.Join(readTime("from", b.From, &r.MinTime), readTime("to", b.To, &r.MaxTime))
	}
	return err
}

// readTries reads how often a job failed: see failures.
func readTries(field, text string, into *int) error {
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return refuse(http.StatusBadRequest, "%s: got %.40q, want how often a job failed, like 3.", field, text)
	}
	*into = n - 1
	return nil
}

func readTime(field, text string, into *time.Time) (err error) {
	if text == "" {
		return nil
	}
	if *into, err = web.ParseTime(text); err != nil {
		return refuse(http.StatusBadRequest, "%s: %v.", field, err)
	}
	return nil
}

func (b *listBody) fill(page queue.Page, now time.Time, u *url.URL) {
	for _, job := range page.Jobs {
		b.Rows = append(b.Rows, listRow{Listed: job, Now: now, Preview: previewOf(job), Summary: summaryLine(job.Error)})
	}
	b.Unordered, b.Examined = !page.Ordered, page.Examined
	if u.Query().Has("cursor") {
		values := u.Query()
		values.Del("cursor")
		b.First = u.EscapedPath() + "?" + values.Encode()
	}
	if page.Next != "" {
		b.Next = withParam(u, "cursor", page.Next)
	}
	if len(b.Rows) == 0 {
		b.RowDeed, b.Some = nil, nil
	}
}

// previewBytes is how much of a payload a list shows.
const previewBytes = 120

// previewOf is the beginning of a job's first payload.
func previewOf(job queue.Listed) string {
	if len(job.Payloads) == 0 {
		return ""
	}
	return beginning(job.Payloads[0].Data, previewBytes)
}

// summaryLine is an error in one line: its first and its last, which is what matters of a
// stack trace.
func summaryLine(text string) string {
	first, rest, more := strings.Cut(strings.TrimSpace(text), "\n")
	if !more {
		return cutText(first, errorBytes)
	}
	last := rest[strings.LastIndexByte(rest, '\n')+1:]
	return cutText(first, errorBytes) + " … " + cutText(strings.TrimSpace(last), errorBytes)
}

// errorBytes is how much of a line of an error a list shows.
const errorBytes = 200
