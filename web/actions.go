package web

import (
	"bytes"
	"net/http"
	"net/url"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/auth"
)

const (
	wantIDsOrAll = `{"ids":["a","b"]} or {"all":true}`
	wantNothing  = `no body, or {}`
	wantFilter   = `no body, or {"limit":1000,"cursor":"…"}`
)

// bulkLimit is the most jobs that one request changes.
const bulkLimit = 10_000

func (s Selection) ids() []string {
	ids := append(make([]string, 0, len(s.IDs)+len(s.IDsBase64)), s.IDs...)
	for _, id := range s.IDsBase64 {
		ids = append(ids, string(id))
	}
	return ids
}

// parse reads the body of an action: ids, or a query if there are none.
func (s *Selection) parse(action *browse.Action, body []byte) (ids []string, query browse.Query, err error) {
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
	return once(ids), query, nil
}

// once are ids without those that are named again: a count is of jobs.
func once(ids []string) (each []string) {
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if !seen[id] {
			seen[id], each = true, append(each, id)
		}
	}
	return each
}

// describes reports whether a field is set that says which of all jobs are meant.
func (s Selection) describes() bool {
	return s.State+s.Kind+s.By+s.From+s.To+s.Limit.String()+s.Cursor != ""
}

// query is what the body describes, as a list's query would.
func (s *Selection) query(action *browse.Action) (browse.Query, error) {
	values := url.Values{"state": {s.State}, "by": {s.By}, "from": {s.From}, "to": {s.To}, "kind": {s.Kind}, "cursor": {s.Cursor}}
	if s.Limit != "" {
		values.Set("limit", s.Limit.String())
	}
	query, err := Lists{States: action.States, Orders: ordersOf(action.States[0]), MaxLimit: bulkLimit}.Query(values)
	query.DryRun = s.DryRun
	return query, err
}

// perform is a route that does an action on jobs.
func (a *api) perform(action *browse.Action) serveFunc {
	return a.ofQueue(func(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		body, err := a.body(w, r)
		if err != nil {
			return nil, err
		}
		var s Selection
		ids, query, err := s.parse(action, body)
		if err != nil {
			return nil, err
		}
		var step browse.Step
		switch {
		case ids == nil:
			step, err = browse.Of(q).Bulk(r.Context(), action, query)
		case s.DryRun:
			step.Changed, err = browse.Of(q).Targets(r.Context(), action, ids...)
			step.Skipped = len(ids) - step.Changed
		default:
			step.Changed, err = browse.Of(q).Apply(r.Context(), action, ids...)
			step.Skipped = len(ids) - step.Changed
		}
		if step.Changed > 0 && !s.DryRun {
			a.cfg.Log.Info("jobs changed by hand", "action", action.Name, "queue", q.Name, "changed", step.Changed, auth.Sender(r))
			line := changes.Line{Action: action.Name, Queue: q.Name, IDs: ids, Count: step.Changed}
			if ids == nil {
				line.New = body // which jobs
			}
			WriteDown(a.node, a.cfg.Log, r, line)
		}
		if err != nil {
			return nil, &partly{changed: step.Changed, next: step.Next, err: err}
		}
		return Changed{step.Changed, step.Skipped, step.Left, step.Next}, nil
	})
}

// setPaused is a route that pauses a queue, or lets it go on. A pause is answered once no node begins a
// job of the queue any more.
func (a *api) setPaused(paused bool) serveFunc {
	return a.ofQueue(func(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		if err := a.optional(w, r, &struct{}{}, wantNothing); err != nil {
			return nil, err
		}
		set := a.client.Registry().Resume
		if paused {
			set = a.client.Registry().Pause
		}
		if err := set(r.Context(), q.Name); err != nil {
			return nil, err
		}
		a.cfg.Log.Info("queue paused or resumed", "queue", q.Name, "paused", paused, auth.Sender(r))
		action := "resume"
		if paused {
			action = "pause"
		}
		WriteDown(a.node, a.cfg.Log, r, changes.Line{Action: action, Queue: q.Name})
		answer := Paused{Paused: paused, Queue: q.Name}
		var err error
		if paused {
			answer.MayBegin, err = status.AwaitPause(r.Context(), a.node.Cluster(), q.Name)
		}
		return answer, err
	})
}
