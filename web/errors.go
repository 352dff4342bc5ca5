package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
)

// ErrorGroup is the jobs whose last errors are of one kind.
type ErrorGroup struct {
	Kind     string  `json:"kind"` // what lists and actions take as their kind
	Jobs     int     `json:"jobs"`
	Payloads int     `json:"payloads"`
	Newest   float64 `json:"newest"` // unix seconds: of blocked and buried jobs the time of the newest, of failed ones the latest due time
	Example  jobID   `json:"example"`
	Error    string  `json:"error"` // of the example
}

// Errors are the kinds of errors of a queue's jobs in one state, most jobs first.
type Errors struct {
	State    queue.State  `json:"state"`
	Groups   []ErrorGroup `json:"groups"`
	Examined int          `json:"examined"` // how many jobs were looked at, the newest ones
	All      bool         `json:"all"`      // there are no others
}

// errorGroups groups the errors of a state. One call looks at the newest 5,000 jobs at most.
func (a *api) errorGroups(w http.ResponseWriter, r *http.Request) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	query, err := failing.Query(r.URL.Query())
	if err != nil {
		return err
	}
	found, err := q.Errors(r.Context(), query.State)
	if err != nil {
		return err
	}
	groups := make([]ErrorGroup, len(found.Groups))
	for i, g := range found.Groups {
		groups[i] = ErrorGroup{g.Kind, g.Jobs, g.Payloads, float64(g.Newest.UnixMicro()) / 1e6, jobIDOf(g.Example), g.Error}
	}
	return writeJSON(w, Errors{query.State, groups, found.Examined, found.All})
}

// failing are the states whose jobs have an error.
var failing = Lists{States: []queue.State{queue.Failed, queue.Retrying, queue.Waiting, queue.Dead}, Orders: []queue.Order{queue.ByDue}}
