package web

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web/auth"
)

// deletion is the body of a queue's deletion.
type deletion struct {
	Force  bool `json:"force"`   // with all that is in it
	DryRun bool `json:"dry_run"` // count, change nothing
}

// Deleted is the answer: what was in the queue, or is.
type Deleted struct {
	Queue      string `json:"queue"`
	Deleted    bool   `json:"deleted"`              // false: a dry run
	Before     bool   `json:"before,omitempty"`     // it was deleted before; nothing was done
	NeedsForce bool   `json:"needs_force"`          // a dry run: it is not empty
	Jobs       int    `json:"jobs"`                 // ids that are not done
	Morgue     int    `json:"morgue"`               // payloads in the morgue
	Aside      int    `json:"unreadable,omitempty"` // records that a repair has set aside
}

// deleteQueue deletes a queue that no node handles.
func (a *api) deleteQueue(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("q")
	body, err := a.body(w, r)
	if err != nil {
		return err
	}
	var want deletion
	if len(bytes.TrimSpace(body)) > 0 {
		if err := decodeBody(body, &want, `no body, or {"force":true,"dry_run":true}`); err != nil {
			return err
		}
	}
	d := queue.Deletion{Force: want.Force, Handled: func(ctx context.Context) ([]string, error) {
		handled, err := a.node.Handled(ctx)
		return handled.By(name), err
	}}
	if want.DryRun {
		had, err := a.client.Deletable(r.Context(), name, d)
		if err != nil && !errors.Is(err, queue.ErrNotEmpty) {
			return err
		}
		return writeJSON(w, Deleted{name, false, had.Before, err != nil, had.Jobs, had.Morgue, had.Aside})
	}
	had, err := a.client.DeleteQueue(r.Context(), name, d)
	if err != nil {
		return err
	}
	if !had.Before {
		a.cfg.Log.Info("queue deleted", "queue", name, "force", want.Force, "jobs", had.Jobs, "morgue", had.Morgue, auth.Sender(r))
	}
	return writeJSON(w, Deleted{name, true, had.Before, false, had.Jobs, had.Morgue, had.Aside})
}
