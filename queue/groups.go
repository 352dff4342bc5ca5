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

// Errors groups failed (Retrying), blocked (Waiting) or buried (Dead) jobs by the kind of
// their last error. It looks at the newest 5,000 jobs at most.
func (q *Queue) Errors(ctx context.Context, state State) (ErrorGroups, error) {
	if !slices.Contains([]State{Retrying, Waiting, Dead}, state) {
		return ErrorGroups{}, fmt.Errorf("%w: errors of state %q: want retry, blocked or morgue", ErrQuery, state)
	}
	w := q.walk(Query{State: state, Range: Range{Reverse: true}}, &spot{})
	groups := map[string]*ErrorGroup{}
	answer := ErrorGroups{}
	for answer.Examined < MaxExamined/2 {
		batch, err := w.next(ctx, maxPage)
		if err != nil {
			return ErrorGroups{}, err
		}
		if len(batch) == 0 {
			break
		}
		jobs, err := q.show(ctx, state, 0, batch)
		if err != nil {
			return ErrorGroups{}, err
		}
		answer.Examined += len(batch)
		for _, job := range jobs {
			if job.State == state {
				group(groups, job)
			}
		}
	}
	answer.All = w.ended()
	answer.Groups = sortedGroups(groups)
	return answer, nil
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
