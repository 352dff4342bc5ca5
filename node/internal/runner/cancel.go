package runner

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// A person may end the run of an id: the context of its call ends. What the handler then still says is done is done. Of the
// rest, that id's payloads become what the person has asked for, and the other ids of its batch go back, no retry spent: they
// only happened to be beside it. The call must have returned before anything of this becomes of them (I1).

// ends is what can end a lane's handler call.
type ends struct {
	mu   sync.Mutex
	call context.CancelCauseFunc       // nil: there is none; guarded by mu
	by   map[string]queue.Cancellation // by id: why; guarded by mu
}

// begin notes that a call begins.
func (e *ends) begin(cancel context.CancelCauseFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.call, e.by = cancel, nil
}

// end notes that it has ended.
func (e *ends) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.call = nil
}

// cancel ends the call for the sake of an id, if there is one.
func (e *ends) cancel(id string, why queue.Cancellation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.call == nil {
		return false
	}
	if e.by == nil {
		e.by = map[string]queue.Cancellation{}
	}
	e.by[id] = why
	e.call(lowkiq.ErrCancelled)
	return true
}

// ended reports whether there is no call.
func (e *ends) ended() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.call == nil
}

// take is why the last call was ended, by id.
func (e *ends) take() map[string]queue.Cancellation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.by
}

// Cancel ends the handler call that an id is in. It reports whether there was one. Calls that end since the shard is lost, or the
// shutdown's time is over, do not count: all that is in flight goes back then.
func (r *Runner) Cancel(id string, why queue.Cancellation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.state.turns {
		// A lane whose call has ended may call hooks yet, and another one have the id again.
		if r.work.Err() == nil && slices.Contains(t.ids, id) && t.ends.cancel(id, why) {
			return true
		}
	}
	return false
}

// cancelled is the answer about a batch of which the runs of some ids were ended, by what its handler has said then. beside: that ended the
// call, which says nothing of the others; else these have failed or ran out of time before.
func cancelled(jobs []lowkiq.Job, answer error, by map[string]queue.Cancellation, beside bool) lowkiq.Failed {
	all := lowkiq.Failed{}
	for i, err := range perJob(jobs, answer) {
		id := jobs[i].ID
		why, named := by[id]
		switch {
		case err == nil:
		case named:
			all[id] = &cancelledRun{why}
		case beside:
			all[id] = lowkiq.Postpone{Reason: "another id of its batch was cancelled"}
		default:
			all[id] = err
		}
	}
	return all
}

// cancelledRun is the failure of a job whose run a person has ended.
type cancelledRun struct{ why queue.Cancellation }

func (c *cancelledRun) Error() string {
	text := "cancelled by " + c.why.By
	if c.why.Why != "" {
		text += fmt.Sprintf(" (%s)", c.why.Why)
	}
	return text
}

// verdict is what the person has asked for.
func (c *cancelledRun) verdict(flight int64, job *lowkiq.Job) verdict {
	nack := queue.Nack{Flight: flight, ID: job.ID, Kind: queue.Postpone, RetryCount: job.RetryCount, Error: c.Error(), Cancelled: true}
	burial := queue.Burial{Flight: flight, ID: job.ID, Policy: queue.Bury, RetryCount: job.RetryCount, Error: c.Error(), Cancelled: true}
	switch c.why.Then {
	case queue.ThenHold:
		nack.Kind = queue.Hold
	case queue.ThenBury:
		return verdict{burial: burial, err: c}
	case queue.ThenDelete:
		burial.Policy = queue.Drop
		return verdict{burial: burial, err: c}
	}
	return verdict{nack: nack, err: c}
}
