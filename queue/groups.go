package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrorGroup is the jobs whose last errors are of one kind.
type ErrorGroup struct {
	Kind     string // see KindOf; a Query and a bulk action take it, NoKind for ""
	Jobs     int
	Payloads int
	Newest   time.Time // of blocked and buried jobs: when the last one was; of failed ones: the latest due time
	Example  string    // id of the newest
	Error    string    // its error
}

// ErrorGroups are the errors of a state, most jobs first.
type ErrorGroups struct {
	Groups   []ErrorGroup
	Examined int  // jobs looked at, the newest ones
	All      bool // there are no others
}

// Errors groups failed (Failed; those of them that wait for their time are Retrying), blocked (Waiting) or buried (Dead)
// jobs by the kind of their last error. It looks at the newest 5,000 jobs at most; of those that are due, failed or not, at 5,000 more.
func (q *Queue) Errors(ctx context.Context, state State) (ErrorGroups, error) {
	if !slices.Contains([]State{Failed, Retrying, Waiting, Dead}, state) {
		return ErrorGroups{}, fmt.Errorf("%w: errors of state %q: want failed, retry, blocked or morgue", ErrQuery, state)
	}
	lists := []State{state}
	if state == Failed {
		lists = []State{Retrying, Ready}
	}
	groups := map[string]*ErrorGroup{}
	answer := ErrorGroups{All: true}
	for _, list := range lists {
		if err := q.errorsOf(ctx, list, state == Failed, groups, &answer); err != nil {
			return ErrorGroups{}, err
		}
	}
	answer.Groups = sortedGroups(groups)
	return answer, nil
}

// errorsOf adds the jobs of one list; failed: those alone that have a retry count.
func (q *Queue) errorsOf(ctx context.Context, list State, failed bool, groups map[string]*ErrorGroup, answer *ErrorGroups) error {
	w := q.walk(Query{State: list, Range: Range{Reverse: true}}, &spot{})
	for examined := 0; examined < MaxExamined/2; {
		batch, err := w.next(ctx, maxPage)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		jobs, err := q.show(ctx, list, 0, batch)
		if err != nil {
			return err
		}
		examined += len(batch)
		for _, job := range jobs {
			if job.State == list && (!failed || job.RetryCount >= 0 && !job.Damaged) {
				answer.Examined++
				group(groups, job)
			} else if !failed {
				answer.Examined++
			}
		}
	}
	answer.All = answer.All && w.ended()
	return nil
}

// group counts a job.
func group(groups map[string]*ErrorGroup, job Listed) {
	kind := KindOf(job.Error)
	g := groups[kind]
	if g == nil {
		g = &ErrorGroup{Kind: kind}
		groups[kind] = g
	}
	g.Jobs++
	g.Payloads += job.Count
	if g.Example == "" || job.PerformAt.After(g.Newest) {
		g.Newest, g.Example, g.Error = job.PerformAt, job.ID, job.Error
	}
}

func sortedGroups(groups map[string]*ErrorGroup) []ErrorGroup {
	all := make([]ErrorGroup, 0, len(groups))
	for _, g := range groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(x, y ErrorGroup) int {
		return cmp.Or(y.Jobs-x.Jobs, strings.Compare(x.Kind, y.Kind))
	})
	return all
}
