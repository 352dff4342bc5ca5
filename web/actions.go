package web

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/lowkiq/lowkiq/queue"
)

// deed is what a route does to jobs of a queue: to those that the body names, or to all
// that it describes.
type deed struct {
	name   string
	action queue.Action
	kind   kind     // which jobs the body may describe
	onIDs  actOnIDs // nil: the route takes no ids, and means all if the body is empty
}

type actOnIDs = func(*queue.Queue, context.Context, ...string) (int, error)

// Which jobs a body may describe.
var (
	sleeping = kind{[]queue.State{"", queue.Scheduled, queue.Retrying}, []queue.Order{queue.ByDue, queue.ByID, queue.ByRetries}}
	waiting  = kind{[]queue.State{"", queue.Ready, queue.Scheduled, queue.Retrying, queue.Failed}, []queue.Order{queue.ByDue, queue.ByID, queue.ByRetries}}
	failed   = kind{[]queue.State{queue.Failed}, []queue.Order{queue.ByDue, queue.ByID, queue.ByRetries}}
	blocked  = kind{[]queue.State{queue.Waiting}, []queue.Order{queue.ByTime, queue.ByID, queue.ByRetries}}
	buried   = kind{[]queue.State{queue.Dead}, []queue.Order{queue.ByTime, queue.ByID, queue.ByRetries}}
)

// selection is the body of a deed.
type selection struct {
	IDs       []string    `json:"ids"`
	IDsBase64 [][]byte    `json:"ids_base64"` // ids that are not UTF-8
	All       *bool       `json:"all"`
	State     string      `json:"state"`
	Kind      string      `json:"kind"` // of the last error
	By        string      `json:"by"`   // the unit of from and to
	From      string      `json:"from"`
	To        string      `json:"to"`
	Limit     json.Number `json:"limit"`
	Cursor    string      `json:"cursor"`
	DryRun    bool        `json:"dry_run"` // count, change nothing
}

const (
	wantIDsOrAll = `{"ids":["a","b"]} or {"all":true}`
	wantNothing  = `no body, or {}`
	wantFilter   = `no body, or {"limit":1000,"cursor":"…"}`
)

// bulkLimit is the most jobs that one request changes.
const bulkLimit = 10_000

func (s selection) ids() []string {
	ids := append(make([]string, 0, len(s.IDs)+len(s.IDsBase64)), s.IDs...)
	for _, id := range s.IDsBase64 {
		ids = append(ids, string(id))
	}
	return ids
}

// parse reads a body: ids, or a query if there are none; and whether nothing is to be changed.
func (d deed) parse(body []byte) (ids []string, query queue.Query, dryRun bool, err error) {
	want := wantIDsOrAll
	if d.onIDs == nil {
		want = wantFilter
	}
	var s selection
	if d.onIDs != nil || len(bytes.TrimSpace(body)) > 0 {
		if err := decodeBody(body, &s, want); err != nil {
			return nil, query, false, err
		}
	}
	all := d.onIDs == nil || s.All != nil && *s.All
	ids = s.ids()
	switch {
	case d.onIDs == nil && (len(ids) > 0 || s.All != nil):
		return nil, query, false, badField("ids", "this route is about all: want %s", want)
	case all && len(ids) > 0:
		return nil, query, false, badField("all", "ids are named as well; want %s", want)
	case all:
		query, err = s.query(d.kind)
		query.DryRun = s.DryRun
		return nil, query, s.DryRun, err
	case len(ids) == 0:
		return nil, query, false, badField("ids", "no id is named; want %s", want)
	case s.describes():
		return nil, query, false, badField("ids", `a filter, a limit or a cursor goes with {"all":true}, not with ids`)
	}
	return ids, query, s.DryRun, nil
}

// describes reports whether a field is set that says which of all jobs are meant.
func (s selection) describes() bool {
	return s.State+s.Kind+s.By+s.From+s.To+s.Limit.String()+s.Cursor != ""
}

// query is what the body describes, as a list's query would.
func (s selection) query(k kind) (queue.Query, error) {
	values := url.Values{"state": {s.State}, "by": {s.By}, "from": {s.From}, "to": {s.To}}
	if s.Limit != "" {
		values.Set("limit", s.Limit.String())
	}
	query := queue.Query{Kind: s.Kind, Cursor: s.Cursor}
	if err := readShape(&query, values, k); err != nil {
		return query, err
	}
	return query, readLimit(values, bulkLimit, &query.Limit)
}

// do is a route that acts on jobs.
func (a *api) do(d deed) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, body, err := a.target(w, r)
		if err != nil {
			return err
		}
		ids, query, dryRun, err := d.parse(body)
		if err != nil {
			return err
		}
		var step queue.Step
		switch {
		case ids == nil:
			step, err = q.Bulk(r.Context(), d.action, query)
		case dryRun:
			step.Changed, err = q.Targets(r.Context(), d.action, d.kind.states[0], ids...)
			step.Skipped = len(ids) - step.Changed
		default:
			step.Changed, err = d.onIDs(q, r.Context(), ids...)
			step.Skipped = len(ids) - step.Changed
		}
		if dryRun {
			return answerStep(w, step, err)
		}
		return a.changed(w, r, d.name, q, step, err)
	}
}

// setPaused is a route that pauses a queue, or lets it go on.
func (a *api) setPaused(paused bool) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.bareTarget(w, r)
		if err != nil {
			return err
		}
		set := a.cfg.Client.Resume
		if paused {
			set = a.cfg.Client.Pause
		}
		if err := set(r.Context(), q.Name); err != nil {
			return err
		}
		a.cfg.Log.Info("queue paused or resumed", "queue", q.Name, "paused", paused, Sender(r))
		return writeJSON(w, map[string]any{"queue": q.Name, "paused": paused})
	}
}

// target is the queue and the body of an action.
func (a *api) target(w http.ResponseWriter, r *http.Request) (*queue.Queue, []byte, error) {
	q, err := a.queue(r)
	if err != nil {
		return nil, nil, err
	}
	body, err := a.body(w, r)
	return q, body, err
}

// bareTarget is the queue of an action that needs no body.
func (a *api) bareTarget(w http.ResponseWriter, r *http.Request) (*queue.Queue, error) {
	q, body, err := a.target(w, r)
	if err == nil && len(bytes.TrimSpace(body)) > 0 {
		err = decodeBody(body, &struct{}{}, wantNothing)
	}
	return q, err
}

// changed answers how far an action has come, also when it broke off.
func (a *api) changed(w http.ResponseWriter, r *http.Request, action string, q *queue.Queue, step queue.Step, err error) error {
	if step.Changed > 0 {
		a.cfg.Log.Info("jobs changed by hand", "action", action, "queue", q.Name, "changed", step.Changed, Sender(r))
	}
	return answerStep(w, step, err)
}

func answerStep(w http.ResponseWriter, step queue.Step, err error) error {
	if err != nil {
		return &partly{changed: step.Changed, next: step.Next, err: err}
	}
	return writeJSON(w, struct {
		Changed int    `json:"changed"`
		Skipped int    `json:"skipped"`
		Left    int    `json:"left"`
		Next    string `json:"next"`
	}{step.Changed, step.Skipped, step.Left, step.Next})
}
