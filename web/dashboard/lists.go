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

	"github.com/lowkiq/lowkiq/internal/text/truncate"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// listKind is a list of jobs that has a page of its own.
type listKind struct {
	path     string
	all      map[string][]string // by state, the actions on all jobs that change only jobs of the list
	Title    string
	About    string
	States   []choice // that can be selected; the first is the default
	Orders   []choice // the first is the default
	TimeName string   // heading of the time of a job
	Empty    string
}

// choice is an entry of a select.
type choice struct{ Value, Name string }

func listKinds() []listKind {
	return []listKind{
		{path: "jobs", Title: "Jobs", About: "Jobs that wait for a handler.",
			States: []choice{{"", "any that waits"}, {"ready", "ready"}, {"scheduled", "scheduled"}, {"retry", "retry"}, {"failed", "failed"}, {"held", "held"}},
			Orders: []choice{{"due", "due time"}, {"id", "id"}, {"retries", "retries"}},
			all: map[string][]string{"": {"run-all", "kill-failed", "delete-failed"}, "scheduled": {"run-scheduled"}, "retry": {"run-failed"},
				"failed": {"run-failed", "kill-failed", "delete-failed"}},
			TimeName: "Due", Empty: "No job waits here."},
		{path: "in-flight", Title: "In flight", About: "Jobs that handlers have, or that nodes have popped for them. A job is acknowledged, retried, or runs again if its node dies. Its run can be ended on its own page.",
			States: []choice{{"in_flight", "in flight"}}, Orders: []choice{{"id", "id"}, {"due", "due time"}},
			TimeName: "In flight", Empty: "No handler has a job of this queue now."},
		{path: "blocked", Title: "Blocked", About: "Ids that ran out of retries and wait for a person. Payloads that are pushed for them wait behind them.",
			States: []choice{{"blocked", "blocked"}}, Orders: []choice{{"time", "time"}, {"id", "id"}, {"retries", "retries"}},
			all:      map[string][]string{"blocked": {"unblock-all"}},
			TimeName: "Blocked", Empty: "No id is blocked."},
		{path: "morgue", Title: "Morgue", About: "Payloads that ran out of retries, kept for a person.",
			States: []choice{{"morgue", "morgue"}}, Orders: []choice{{"time", "time of burial"}, {"id", "id"}, {"retries", "retries"}},
			all:      map[string][]string{"morgue": {"requeue-all", "delete-all-dead"}},
			TimeName: "Buried", Empty: "The morgue is empty."},
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
	Search      string  // text of the box
	Searches    bool    // the box has a search
	Through     float64 // share of all jobs that a search has examined
	Trouble     string  // why there is no answer
	Some, All   []*actions.Action
	RowAction   *actions.Action // the first of Some
	Back        string
}

// HasStates reports whether the list has jobs of several states.
func (b *listBody) HasStates() bool { return len(b.States) > 1 }

// NoKind reports whether jobs without an error are asked for.
func (b *listBody) NoKind() bool { return b.Kind == browse.NoKind }

// listRow is a job of a list.
type listRow struct {
	browse.Listed
	Now     time.Time
	Preview string
	Summary string // of the error
	Node    string // that has a job in flight, "" if its shard has no owner now
}

// addHolders adds to each row of a job in flight the node that has it, which is the owner of its shard.
func (d *Dashboard) addHolders(ctx context.Context, q *protocol.Queue, rows []listRow) error {
	var shards []*protocol.Shard
	for _, row := range rows {
		if s := q.Shard(row.Shard); !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	stats, err := d.client.Stats(ctx, shards...)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Node = nodeOf(stats[slices.Index(shards, q.Shard(rows[i].Shard))].Owner.Instance)
	}
	return nil
}

// listPage returns the page of a list. A refused search shows its reason on the same page, so that the person
// can correct it.
func (d *Dashboard) listPage(kind listKind) func(*http.Request) (view, error) {
	return func(r *http.Request) (view, error) {
		q, err := d.queueOfPath(r)
		if err != nil {
			return view{}, err
		}
		b := bodyOf(kind, q.Name, accessOf(r))
		asked, err := b.parseQuery(r.URL.Query())
		if err != nil {
			return view{}, err
		}
		page, err := browse.Of(q).Page(r.Context(), asked)
		if b.Searches && errors.Is(err, browse.ErrQuery) {
			b.Trouble, err = web.ProblemOf(err).Detail, nil
		}
		if err != nil {
			return view{}, err
		}
		now, err := d.client.Time(r.Context())
		if err != nil {
			return view{}, err
		}
		b.fillRows(page, now, r.URL)
		if kind.path == "in-flight" {
			if err := d.addHolders(r.Context(), q, b.Rows); err != nil {
				return view{}, err
			}
		}
		return view{Page: "list", Title: b.Title + " of " + q.Name, Nav: "/", Queue: q.Name, Again: kind.path == "in-flight" && !b.Searches, Body: b}, nil
	}
}

// queueOfPath returns the queue that the path names.
func (d *Dashboard) queueOfPath(r *http.Request) (*protocol.Queue, error) {
	name := r.PathValue("q")
	if err := protocol.CheckName("queue", name); err != nil {
		return nil, web.NewProblem(http.StatusNotFound, "There is no such queue: %v.", err)
	}
	return d.client.Queue(r.Context(), name)
}

func bodyOf(kind listKind, name string, by access) *listBody {
	v := by.Query()
	last, _ := strconv.ParseBool(cmp.Or(v.Get("reverse"), "true")) // parseQuery reports the error
	b := &listBody{
		listKind: kind, Queue: name, Tabs: tabs{Queue: name, On: kind.path, Search: v.Get("q")}, Back: by.RequestURI(),
		State: cmp.Or(v.Get("state"), kind.States[0].Value), By: cmp.Or(v.Get("by"), kind.Orders[0].Value),
		Reverse: v.Has("reverse") && last, From: v.Get("from"), To: v.Get("to"), Kind: v.Get("kind"), Search: v.Get("q"), Searches: searchOf(v.Get("q")) != (browse.Search{}),
		Limits: []int{25, 50, 100, 200}, Limit: 50,
	}
	if by.mayChange {
		b.Some = buttonsFor(browse.State(kind.States[0].Value))
		if !b.Searches && b.From == "" && b.To == "" { // the form carries only state and kind of error, so it cannot mean a list that is narrowed otherwise
			b.All = buttonsOf(kind.all[b.State]...)
		}
	}
	if n, err := strconv.Atoi(v.Get("limit")); err == nil && slices.Contains(b.Limits, n) {
		b.Limit = n
	}
	return b
}

// parseQuery returns the query of a list. It reads parameters as the API does, with these differences. Numbers of
// retries are numbers of failures. The search comes from a single box. A limit that the page does not offer becomes
// the default.
func (b *listBody) parseQuery(values url.Values) (browse.Query, error) {
	for _, name := range []string{"limit", "contains", "tag", "error"} { // parameters of the API; the page has a single box, so that nobody overlooks a filter
		values.Del(name)
	}
	if search := searchOf(b.Search); b.Searches {
		for name, text := range map[string]string{"contains": search.Contains, "tag": search.Tag, "error": search.Error} {
			values.Set(name, text)
		}
		if b.State == "" && b.By == b.Orders[0].Value && b.From == "" && b.To == "" && !b.Reverse {
			values.Del("by") // the order of storage costs Redis least
		} else {
			values.Set("by", b.By)
		}
	}
	if b.By == string(browse.ByRetries) {
		for _, field := range []string{"from", "to"} {
			if number := values.Get(field); number != "" {
				n, err := strconv.Atoi(number)
				if err != nil || n < 0 || n > math.MaxInt32 {
					return browse.Query{}, web.NewProblem(http.StatusBadRequest, "%s: got %.40q, must be a number of failures, like 3.", field, number)
				}
				values.Set(field, strconv.Itoa(n-1))
			}
		}
	}
	lists := web.Lists{Limit: b.Limit}
	for _, c := range b.States {
		lists.States = append(lists.States, browse.State(c.Value))
	}
	for _, c := range b.Orders {
		lists.Orders = append(lists.Orders, browse.Order(c.Value))
	}
	asked, err := lists.Query(values)
	asked.Waiting = asked.State == ""
	return asked, err
}

func (b *listBody) fillRows(page browse.Page, now time.Time, u *url.URL) {
	for _, job := range page.Jobs {
		b.Rows = append(b.Rows, listRow{Listed: job, Now: now, Preview: previewOf(job), Summary: summaryLine(job.Error)})
	}
	b.Unordered, b.Examined, b.Through = !page.Ordered, page.Examined, page.Through
	if u.Query().Has("cursor") {
		values := u.Query()
		values.Del("cursor")
		b.First = u.EscapedPath() + "?" + values.Encode()
	}
	if page.Next != "" {
		b.Next = withParam(u, "cursor", page.Next)
	}
	if len(b.Rows) == 0 {
		b.Some = nil
	}
	if len(b.Some) > 0 {
		b.RowAction = b.Some[0]
	}
}

// previewBytes bounds the bytes of a payload in a list.
const previewBytes = 120

// previewOf returns the beginning of a job's first payload.
func previewOf(job browse.Listed) string {
	if len(job.Payloads) == 0 {
		return ""
	}
	return summarizePayload(job.Payloads[0].Data, previewBytes)
}

// summaryLine returns the first and the last line of an error. Of a stack trace these matter most.
func summaryLine(message string) string {
	first, rest, more := strings.Cut(strings.TrimSpace(message), "\n")
	if !more {
		return truncate.Text(first, errorBytes)
	}
	last := rest[strings.LastIndexByte(rest, '\n')+1:]
	return truncate.Text(first, errorBytes) + " … " + truncate.Text(strings.TrimSpace(last), errorBytes)
}

// errorBytes bounds the bytes of a line of an error in a list.
const errorBytes = 200

// errorsBody is the page of a queue's errors by kind.
type errorsBody struct {
	Queue    string
	Tabs     tabs
	Sections []errorSection
	Recent   []runLine
	Now      time.Time
	Back     string
}

// errorSection has the errors of a state.
type errorSection struct {
	Title string
	Path  string // of the list
	State string // the list's state, if it has several
	Time  string // heading of the time
	None  string // stands for an empty kind
	browse.ErrorGroups
	Action *actions.Action // nil if it is not offered
}

// kindParam returns a kind of error as queries and forms name it. There the empty text would mean any kind.
func kindParam(kind string) string { return cmp.Or(kind, browse.NoKind) }

// recentFailures is the number of runs on the page.
const recentFailures = 30

func (d *Dashboard) errorsPage(r *http.Request) (view, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return view{}, err
	}
	b := errorsBody{Queue: q.Name, Tabs: tabs{Queue: q.Name, On: "errors"}, Back: r.URL.RequestURI()}
	for _, place := range []struct {
		state                       browse.State
		title, path, of, time, none string
		action                      string
	}{
		{browse.StateFailed, "Failed", "jobs", "failed", "Latest due", "no error", "run-failed"},
		{browse.StateBlocked, "Blocked", "blocked", "", "Newest", "no error", "unblock-all"},
		{browse.StateMorgue, "In the morgue", "morgue", "", "Newest", "no error: buried by hand", "requeue-all"},
	} {
		groups, err := browse.Of(q).Errors(r.Context(), place.state)
		if err != nil {
			return view{}, err
		}
		one := errorSection{place.title, place.path, place.of, place.time, place.none, groups, nil}
		if auth.MayChange(r) {
			one.Action = groupButton(place.action)
		}
		b.Sections = append(b.Sections, one)
	}
	recent, err := browse.Of(q).Runs(r.Context(), browse.RunQuery{
		Verdicts: []browse.Verdict{browse.RunFailed, browse.RunExhausted, browse.RunCrashed}, Limit: recentFailures})
	if err != nil {
		return view{}, err
	}
	b.Recent = runLines(recent.List)
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "errors", Title: "Errors of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
}

// groupButton returns an action on all jobs with a label for the jobs with a kind of error.
func groupButton(name string) *actions.Action {
	own := *actions.Named(name)
	own.Label = "Requeue this group"
	if name == "run-failed" {
		own.Label = "Run this group now"
	}
	return &own
}
