package web

import (
	"bytes"
	"net/http"
	"net/url"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// The right bodies, for errors.
const (
	bodyIDsOrAll = `like {"ids":["a","b"]} or {"all":true}`
	bodyNothing  = `empty, or {}`
	bodyFilter   = `empty, or like {"limit":1000,"cursor":"…"}`
)

// maxChanged is the maximum number of jobs that a request changes.
const maxChanged = 10_000

func (s Selection) allIDs() []string {
	ids := append(make([]string, 0, len(s.IDs)+len(s.IDsBase64)), s.IDs...)
	for _, id := range s.IDsBase64 {
		ids = append(ids, string(id))
	}
	return ids
}

// parseBody reads the body of an action. It returns ids, or a query if the body names none.
func (s *Selection) parseBody(action *browse.Action, body []byte) (ids []string, query browse.Query, err error) {
	if action.All {
		if len(bytes.TrimSpace(body)) > 0 {
			err = decodeBody(body, &s.Filter, bodyFilter)
		}
		if err == nil {
			query, err = s.parseQuery(action)
		}
		return nil, query, err
	}
	if err := decodeBody(body, s, bodyIDsOrAll); err != nil {
		return nil, query, err
	}
	all := s.All != nil && *s.All
	ids = s.allIDs()
	switch {
	case all && len(ids) > 0:
		return nil, query, badField("all", "ids are named as well; the body must be %s", bodyIDsOrAll)
	case all:
		query, err = s.parseQuery(action)
		return nil, query, err
	case len(ids) == 0:
		return nil, query, badField("ids", "no id is named; the body must be %s", bodyIDsOrAll)
	case s.isSet():
		return nil, query, badField("ids", `a filter, a limit or a cursor goes with {"all":true}, not with ids`)
	}
	return uniqueIDs(ids), query, nil
}

// uniqueIDs returns each id a single time, so that counts are numbers of jobs.
func uniqueIDs(ids []string) (each []string) {
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if !seen[id] {
			seen[id], each = true, append(each, id)
		}
	}
	return each
}

// isSet reports whether a field is set that chooses among all jobs. Ids together with such a field are refused, because the sender
// may mean either.
func (s Filter) isSet() bool {
	return s.State+s.Kind+s.By+s.From+s.To+s.Limit.String()+s.Cursor != ""
}

// parseQuery returns the query of the body, read like the query of a list.
func (s *Filter) parseQuery(action *browse.Action) (browse.Query, error) {
	values := url.Values{"state": {s.State}, "by": {s.By}, "from": {s.From}, "to": {s.To}, "kind": {s.Kind}, "cursor": {s.Cursor}}
	if s.Limit != "" {
		values.Set("limit", s.Limit.String())
	}
	query, err := Lists{States: action.States, Orders: ordersOf(action.States[0]), MaxLimit: maxChanged}.Query(values)
	return query, err
}

// changeJobs returns the route of an action on jobs. The body is read and checked before the first job is changed. An action on
// all jobs makes a single step, and the client goes on with the cursor of the answer. After an error the answer says how many
// jobs the step has changed, because a client that repeats the step needs the number.
func (a *api) changeJobs(action *actions.Action) serveFunc {
	return a.ofQueue(func(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		body, err := a.readBody(w, r)
		if err != nil {
			return nil, err
		}
		var s Selection
		request := actions.Request{Action: action, By: auth.Who(r), Queue: q}
		if request.IDs, request.Query, err = s.parseBody(action.Jobs, body); err != nil {
			return nil, err
		}
		if request.Query.DryRun = s.DryRun; request.IDs == nil {
			request.Described = body
		}
		done, err := a.operator.Do(r.Context(), request)
		if err != nil {
			return nil, &partialError{changed: done.Changed, next: done.Next, err: err}
		}
		return Changed{done.Changed, done.Skipped, done.Left, done.Next}, nil
	})
}

// setPaused returns the route of a pause or its end. The answer to a pause comes when no node begins a job any more, or names the
// instances that may.
func (a *api) setPaused(action *actions.Action) serveFunc {
	return a.ofQueue(func(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		if err := a.readOptionalBody(w, r, &struct{}{}, bodyNothing); err != nil {
			return nil, err
		}
		done, err := a.operator.Do(r.Context(), actions.Request{Action: action, By: auth.Who(r), Queue: q})
		return Paused{Paused: action == actions.Pause, Queue: q.Name, MayBegin: done.MayBegin}, err
	})
}
