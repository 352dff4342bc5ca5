package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
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
	Queue     string     `json:"queue"`
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
	undo := func() error { return nil }
	if want.Then == queue.ThenHold {
		var err error
		if undo, err = holdRun(n, log, r, q, id, want.Why); err != nil {
			return Cancelled{}, err
		}
	}
	if err := n.Cluster().Cancel(r.Context(), q, id, queue.Cancellation{Then: want.Then, By: who(n, r).String(), Why: want.Why}); err != nil {
		return Cancelled{}, errors.Join(err, undo())
	}
	log.Info("run cancelled by hand", "queue", q.Name, "id", id, "then", want.Then, auth.Sender(r))
	line := changes.Line{Action: "cancel", Queue: q.Name, IDs: []string{id}, Why: want.Why}
	line.New, _ = json.Marshal(map[string]queue.Then{"then": want.Then}) // plain strings always marshal
	WriteDown(n, log, r, line)
	return Cancelled{JobIDOf(id), q.Name, true, want.Then}, nil
}

// holdRun holds an id that runs, before its run is ended: a hold that came later could come too late, as by then its run may have begun
// anew. undo is for a run that could not be ended: what held the id before holds it then, unless somebody has changed that meanwhile.
func holdRun(n Node, log *slog.Logger, r *http.Request, q *queue.Queue, id, why string) (undo func() error, err error) {
	job, found, err := browse.Of(q).Job(r.Context(), id)
	if err == nil && (!found || job.State != browse.StateInFlight) {
		err = fmt.Errorf("%q: %w", id, status.ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	_, is, was, err := changeHold(n, log, r, q.Name, HoldChange{ID: id, Why: why})
	if err != nil {
		return nil, err
	}
	return func() error {
		ctx, stop := context.WithTimeout(context.WithoutCancel(r.Context()), writeDownTimeout)
		defer stop()
		_, err := rules.In(n.Client().DB()).Change(ctx, q.Name, rules.Change{
			Action: "unhold", IDs: []string{id}, Why: "its run could not be ended", By: who(n, r), If: -1,
			Edit: func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
				value, err := rules.InPlaceOf(in, is, was, now)
				if err != nil || value == nil {
					return nil, []string{"holds"}, err
				}
				return map[string]json.RawMessage{"holds": value}, nil, nil
			},
			Told: func() (before, after any) {
				if was != nil {
					after = told(was)
				}
				return told(is), after
			},
		})
		if err == nil || errors.Is(err, rules.ErrSame) {
			return nil
		}
		return fmt.Errorf("it is held now, which could not be undone: %w", err)
	}, nil
}

// maxCancelWhy is how long a reason may be, bytes.
const maxCancelWhy = 1024
