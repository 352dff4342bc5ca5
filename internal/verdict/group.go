package verdict

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// StopGroups returns for how long an answer stops groups, and the answer about the jobs that follows. Jobs of a stopped group are
// postponed. Other jobs of the batch without an answer of their own are due again at once. If the batch has no job of the group, all
// jobs are postponed, because their next call would be refused again, without end.
func StopGroups(by rules.Groups, jobs []lowkiq.Job, answer error) (stops map[string]time.Duration, about error) {
	if !errors.As(answer, new(lowkiq.Throttle)) {
		return nil, answer
	}
	all, limited := lowkiq.Failed{}, map[string]bool{}
	stops = map[string]time.Duration{}
	errs := PerJob(jobs, answer)
	for i, err := range errs {
		if errors.As(err, new(lowkiq.Throttle)) {
			limited[by.Of(jobs[i].ID)] = true
		}
	}
	for i, err := range errs {
		id := jobs[i].ID
		var l lowkiq.Throttle
		if !errors.As(err, &l) {
			if err != nil {
				all[id] = err
			}
			continue
		}
		switch group := cmp.Or(l.Prefix, by.Of(id)); {
		case group == "" || by.Of(group) != group:
			all[id] = lowkiq.Postpone{After: l.For, Reason: noGroup(by, l)}
		case group != by.Of(id) && limited[group]:
			all[id] = lowkiq.Postpone{Reason: fmt.Sprintf("another group of its batch, %s, is limited", group)}
		default:
			all[id] = &groupStopped{lowkiq.Postpone{After: min(l.For, MaxStop), Reason: l.Error()}}
			if l.For > 0 {
				stops[group] = min(max(stops[group], l.For), MaxStop)
			}
		}
	}
	return stops, all
}

// MaxStop bounds for how long an answer of a handler stops a group.
const MaxStop = time.Hour

// groupStopped is the failure of a job whose handler has stopped its group.
type groupStopped struct{ lowkiq.Postpone }

func (s *groupStopped) Unwrap() error { return s.Postpone }

// AtLimit is the failure of a job whose group lets no more begin now.
type AtLimit struct{ Wait time.Duration }

func (l *AtLimit) Error() string { return "limited: its group is at its limit" }

// Nack returns the nack that puts the job back for that long, without a retry.
func (l *AtLimit) Nack(flight int64, job *lowkiq.Job) protocol.Nack {
	return protocol.Nack{Flight: flight, ID: job.ID, Kind: protocol.Postpone, RetryCount: job.RetryCount, Delay: l.Wait, Limited: true}
}

// noGroup returns why an answer stops no group.
func noGroup(by rules.Groups, l lowkiq.Throttle) string {
	if by.By == "" {
		return l.Error() + "; the queue has no groups"
	}
	return fmt.Sprintf("%s; that is no group: groups of the queue end with their first %q", l.Error(), by.By)
}
