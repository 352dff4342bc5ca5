package web

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// Changes has lines of the cluster's list of changes.
type Changes struct {
	Changes []Change `json:"changes"`
	Cursor  string   `json:"cursor"` // value of the parameter after for later changes
}

// Change is a change by a person.
type Change struct {
	Cursor string          `json:"cursor"` // its place among all changes
	At     float64         `json:"at"`     // unix seconds, by Redis's clock
	By     By              `json:"by"`
	Action string          `json:"action"` // as in pause, rules, requeue
	Queue  string          `json:"queue,omitempty"`
	Target string          `json:"target,omitempty"` // the node, or the name of a recurring entry
	IDs    []string        `json:"ids,omitempty"`    // the first hundred named job ids
	Count  int             `json:"count,omitempty"`  // number of changed jobs
	Old    json.RawMessage `json:"old,omitempty"`    // the value before, if there was a value
	New    json.RawMessage `json:"new,omitempty"`    // the value after; for an action on all jobs, their description
	Why    string          `json:"why,omitempty"`
}

// ChangesOf returns lines in the form of the API.
func ChangesOf(lines []changes.Line) []Change {
	all := make([]Change, len(lines))
	for i, l := range lines {
		all[i] = Change{Cursor: l.Cursor, At: unixSeconds(l.At), By: By(l.Who), Action: l.Action, Queue: l.Queue, Target: l.Target, IDs: l.IDs, Count: l.Count, Old: l.Old, New: l.New, Why: l.Why}
	}
	return all
}

// listChanges answers with the list of changes.
func (a *api) listChanges(_ http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	query := changes.Query{Queue: values.Get("queue"), Action: values.Get("action"), Name: values.Get("user"), ID: values.Get("id"), After: values.Get("after")}
	if values.Has("after") {
		if err := changes.CheckCursor(query.After); err != nil {
			return nil, badField("after", "%v", err)
		}
	}
	var err error
	if query.Since, err = a.parseSince(r.Context(), values.Get("since")); err != nil {
		return nil, err
	}
	if err := readLimit(values, maxLimit, &query.Limit); err != nil {
		return nil, err
	}
	found, cursor, err := changes.In(a.client.DB()).Read(r.Context(), query)
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	return Changes{ChangesOf(found), cursor}, nil
}
