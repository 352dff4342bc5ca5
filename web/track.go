package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Track asks to keep every run of a job.
type Track struct {
	Undo bool   `json:"undo,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Tracked answers a request to track a job.
type Tracked struct {
	JobID
	Queue   string `json:"queue"`
	Tracked bool   `json:"tracked"`
	Count   int    `json:"count"` // tracked ids of the queue
}

// trackJob makes the journal keep every run of an id, or undoes that.
func (a *api) trackJob(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	var want Track
	if err := a.readOptionalBody(w, r, &want, `empty, or like {"undo":true,"why":"…"}`); err != nil {
		return nil, err
	}
	id := r.PathValue("id")
	count, err := a.operator.Track(r.Context(), auth.Who(r), q.Name, id, want.Undo, want.Why)
	if err != nil {
		return nil, err
	}
	return Tracked{JobIDOf(id), q.Name, !want.Undo, count}, nil
}
