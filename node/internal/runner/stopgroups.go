package runner

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// stopGroups has groups wait that handlers say are limited by whoever they call. It returns the answer with what becomes of the
// jobs.
func (r *Runner) stopGroups(batch *lowkiq.Batch, answer error) error {
	stops, answer := r.queue.rules().StopGroups(batch.Jobs, answer)
	for group, d := range stops {
		if r.queue.live.groups.stop(group, d) {
			r.process.Lanes.Go(r.queue.sendGroups)
		}
	}
	return answer
}

// StopGroups says for how long groups wait by an answer, and which answer that is about the jobs: those of such a group are
// postponed, and others of the batch that have no answer of their own are due again at once. If the batch has none of the group,
// all are postponed: at once they would be refused again, without end.
func (r *Rules) StopGroups(jobs []lowkiq.Job, answer error) (stops map[string]time.Duration, about error) {
	if !errors.As(answer, new(lowkiq.Limit)) {
		return nil, answer
	}
	by, all, limited := r.Groups, lowkiq.Failed{}, map[string]bool{}
	stops = map[string]time.Duration{}
	errs := perJob(jobs, answer)
	for i, err := range errs {
		if errors.As(err, new(lowkiq.Limit)) {
			limited[by.Of(jobs[i].ID)] = true
		}
	}
	for i, err := range errs {
		id := jobs[i].ID
		var l lowkiq.Limit
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
			all[id] = &groupStopped{lowkiq.Postpone{After: l.For, Reason: l.Error()}}
			if l.For > 0 {
				stops[group] = min(max(stops[group], l.For), longestStop)
			}
		}
	}
	return stops, all
}

// groupStopped is the failure of a job whose handler has stopped its group.
type groupStopped struct{ lowkiq.Postpone }

func (s *groupStopped) Unwrap() error { return s.Postpone }

// noGroup is why an answer holds no group back.
func noGroup(by rules.Groups, l lowkiq.Limit) string {
	if by.By == "" {
		return l.Error() + "; the queue has no groups"
	}
	return fmt.Sprintf("%s; that is no group: groups of the queue end with their first %q", l.Error(), by.By)
}
