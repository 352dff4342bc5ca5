package web

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Cancel asks to end the run of a job.
type Cancel struct {
	Then queue.Then `json:"then,omitempty"` // what is to become of it: retry (default), hold, bury or delete
	Why  string     `json:"why,omitempty"`
}

// Cancelled answers it: its handler is told to stop.
type Cancelled struct {
	JobID
	Cancelled bool       `json:"cancelled"` // always true: else it is a problem
	Then      queue.Then `json:"then"`
}

func (a *api) cancel(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	var want Cancel
	if err := a.optional(w, r, &want, `no body, or {"then":"bury","why":"…"}`); err != nil {
		return nil, err
	}
	return CancelRun(a.node, a.cfg.Log, r, q, r.PathValue("id"), want)
}

// CancelRun ends the run of an id, as the sender of a request wants it. Of one that is to be held then, the hold is in force by
// the time of the answer.
func CancelRun(n Node, log *slog.Logger, r *http.Request, q *queue.Queue, id string, want Cancel) (Cancelled, error) {
	if want.Then == "" {
		want.Then = queue.ThenRetry
	}
	switch {
	case !slices.Contains(queue.Thens(), want.Then):
		return Cancelled{}, badField("then", "got %.40q, want retry, hold, bury or delete", want.Then)
	case want.Then == queue.ThenHold && !utf8.ValidString(id):
		return Cancelled{}, badField("id", "%.60q is not UTF-8: such an id cannot be held", id)
	case len(want.Why) > maxCancelWhy:
		return Cancelled{}, badField("why", "%d bytes, at most %d are allowed", len(want.Why), maxCancelWhy)
	}
	by := who(n, r)
	if want.Then == queue.ThenHold { // before its run is ended for nothing
		var value json.RawMessage
		set, now, err := rules.In(n.Client().DB()).Queue(r.Context(), q.Name)
		if err == nil {
			value, _, err = rules.WithHold(set.InForce(now), rules.Hold{ID: id, Why: want.Why, By: by, At: now}, now)
		}
		if err == nil {
			_, err = rules.Check("holds", value)
		}
		if err != nil {
			return Cancelled{}, err
		}
	}
	if err := n.Cluster().Cancel(r.Context(), q, id, queue.Cancellation{Then: want.Then, By: by.String(), Why: want.Why}); err != nil {
		return Cancelled{}, err
	}
	log.Info("run cancelled by hand", "queue", q.Name, "id", id, "then", want.Then, auth.Sender(r))
	line := changes.Line{Action: "cancel", Queue: q.Name, IDs: []string{id}, Why: want.Why}
	line.New, _ = json.Marshal(map[string]queue.Then{"then": want.Then}) // plain strings always marshal
	WriteDown(n, log, r, line)
	if want.Then == queue.ThenHold { // what was put back waits for a change of the holds: it is not released before this
		if _, err := ChangeHold(n, log, r, q.Name, HoldChange{ID: id, Why: want.Why}); err != nil {
			return Cancelled{}, err
		}
	}
	return Cancelled{JobIDOf(id), true, want.Then}, nil
}

// maxCancelWhy is how long a reason may be, bytes.
const maxCancelWhy = 1024
