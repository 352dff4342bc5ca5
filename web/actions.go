package web

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web/auth"
)

// selection is the body of an action on jobs.
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

// parse reads the body of an action: ids, or a query if there are none.
func (s *selection) parse(action *queue.Action, body []byte) (ids []string, query queue.Query, err error) {
	want := wantIDsOrAll
	if action.All {
		want = wantFilter
	}
	if !action.All || len(bytes.TrimSpace(body)) > 0 {
		if err := decodeBody(body, s, want); err != nil {
			return nil, query, err
		}
	}
	all := action.All || s.All != nil && *s.All
	ids = s.ids()
	switch {
	case action.All && (len(ids) > 0 || s.All != nil):
		return nil, query, badField("ids", "this route is about all: want %s", want)
	case all && len(ids) > 0:
		return nil, query, badField("all", "ids are named as well; want %s", want)
	case all:
		query, err = s.query(action)
		return nil, query, err
	case len(ids) == 0:
		return nil, query, badField("ids", "no id is named; want %s", want)
	case s.describes():
		return nil, query, badField("ids", `a filter, a limit or a cursor goes with {"all":true}, not with ids`)
	}
	return ids, query, nil
}

// describes reports whether a field is set that says which of all jobs are meant.
func (s selection) describes() bool {
	return s.State+s.Kind+s.By+s.From+s.To+s.Limit.String()+s.Cursor != ""
}

// query is what the body describes, as a list's query would.
func (s *selection) query(action *queue.Action) (queue.Query, error) {
	values := url.Values{"state": {s.State}, "by": {s.By}, "from": {s.From}, "to": {s.To}, "kind": {s.Kind}, "cursor": {s.Cursor}}
	if s.Limit != "" {
		values.Set("limit", s.Limit.String())
	}
	query, err := Lists{States: action.States, Orders: ordersOf(action.States[0]), MaxLimit: bulkLimit}.Query(values)
	query.DryRun = s.DryRun
	return query, err
}

// act is a route that acts on jobs.
func (a *api) act(action *queue.Action) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, body, err := a.target(w, r)
		if err != nil {
			return err
		}
		var s selection
		ids, query, err := s.parse(action, body)
		if err != nil {
			return err
		}
		var step queue.Step
		switch {
		case ids == nil:
			step, err = q.Bulk(r.Context(), action, query)
		case s.DryRun:
			step.Changed, err = q.Targets(r.Context(), action, ids...)
			step.Skipped = len(ids) - step.Changed
		default:
			step.Changed, err = q.Apply(r.Context(), action, ids...)
			step.Skipped = len(ids) - step.Changed
		}
		if step.Changed > 0 && !s.DryRun {
			a.cfg.Log.Info("jobs changed by hand", "action", action.Name, "queue", q.Name, "changed", step.Changed, auth.Sender(r))
		}
		if err != nil {
			return &partly{changed: step.Changed, next: step.Next, err: err}
		}
		return writeJSON(w, Changed{step.Changed, step.Skipped, step.Left, step.Next})
	}
}

// Changed says how far an action on jobs has come.
type Changed struct {
	Changed int    `json:"changed"`
	Skipped int    `json:"skipped"`
	Left    int    `json:"left"`
	Next    string `json:"next"`
}

// setPaused is a route that pauses a queue, or lets it go on.
func (a *api) setPaused(paused bool) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.bareTarget(w, r)
		if err != nil {
			return err
		}
		set := a.client.Resume
		if paused {
			set = a.client.Pause
		}
		if err := set(r.Context(), q.Name); err != nil {
			return err
		}
		a.cfg.Log.Info("queue paused or resumed", "queue", q.Name, "paused", paused, auth.Sender(r))
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
