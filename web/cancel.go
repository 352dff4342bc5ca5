package web

import (
	"cmp"
	"net/http"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Cancel asks to end the run of a job.
type Cancel struct {
	Then protocol.Then `json:"then,omitempty"` // what happens to the payloads of the run afterwards: retry (default), hold, bury or delete
	Why  string        `json:"why,omitempty"`
}

// Cancelled answers a request to end a run. Its handler is told to stop.
type Cancelled struct {
	JobID
	Queue     string        `json:"queue"`
	Cancelled bool          `json:"cancelled"` // always true; otherwise the answer is a problem
	Then      protocol.Then `json:"then"`
}

// cancelRun ends the run of a job. The answer means that the handler is told to stop. Nothing is decided about
// the job until the handler has returned, and a handler may still report the job as done.
func (a *api) cancelRun(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	var want Cancel
	if err := a.readOptionalBody(w, r, &want, `empty, or like {"then":"bury","why":"…"}`); err != nil {
		return nil, err
	}
	id, then := r.PathValue("id"), cmp.Or(want.Then, protocol.ThenRetry)
	if err := a.operator.Cancel(r.Context(), auth.Who(r), q, id, then, want.Why); err != nil {
		return nil, err
	}
	return Cancelled{JobIDOf(id), q.Name, true, then}, nil
}
