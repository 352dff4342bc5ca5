package verdict

import (
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Cancelled returns the answer about a batch after people have cancelled the runs of some ids. answer is the handler's. If beside is
// true, the cancel ended the call, and the handler's answer says nothing about the other ids.
func Cancelled(jobs []lowkiq.Job, answer error, by map[string]protocol.Cancellation, beside bool) lowkiq.Failed {
	all := lowkiq.Failed{}
	for i, err := range PerJob(jobs, answer) {
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

// cancelledRun is the failure of a job whose run a person has cancelled.
type cancelledRun struct{ why protocol.Cancellation }

func (c *cancelledRun) Error() string {
	text := "cancelled by " + c.why.By
	if c.why.Why != "" {
		text += fmt.Sprintf(" (%s)", c.why.Why)
	}
	return text
}

// verdict returns the decision of that person.
func (c *cancelledRun) verdict(flight int64, job *lowkiq.Job) verdict {
	nack := protocol.Nack{Flight: flight, ID: job.ID, Kind: protocol.Postpone, RetryCount: job.RetryCount, Error: c.Error(), Cancelled: true}
	burial := protocol.Burial{Flight: flight, ID: job.ID, Policy: protocol.Bury, RetryCount: job.RetryCount, Error: c.Error(), Cancelled: true}
	switch c.why.Then {
	case protocol.ThenHold:
		nack.Kind = protocol.Hold
	case protocol.ThenBury:
		return verdict{burial: burial, err: c}
	case protocol.ThenDelete:
		burial.Policy = protocol.Drop
		return verdict{burial: burial, err: c}
	}
	return verdict{nack: nack, err: c}
}
