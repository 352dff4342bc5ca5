package protocol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// committer lets concurrent small pushes share scripts (group commit). A commit runs in a goroutine of its
// own and goes on when the context of a caller ends, because other callers share it.
type committer struct {
	queue *Queue
	calls combiner[*pendingPush]
	// late commits jobs whose shards are frozen for a reshard. It waits for the flip, and pushes to other shards do not wait
	// with it. The order of an id holds, because a caller pushes the next job after the answer about the job before, and
	// pushes of different callers at once have no order (I3).
	late combiner[*pendingPush]
}

func newCommitter(q *Queue) *committer {
	c := &committer{queue: q}
	c.calls = combiner[*pendingPush]{maxActive: maxCommits, maxSize: maxCommitJobs, size: func(p *pendingPush) int { return len(p.jobs) }, send: c.commitGroup}
	c.late = combiner[*pendingPush]{maxActive: maxCommits, maxSize: maxCommitJobs, size: func(p *pendingPush) int { return len(p.frozen) }, send: c.commitLate}
	return c
}

const (
	maxCommits    = 2    // commits under way at once
	maxCommitJobs = 4096 // jobs of a full commit
)

// pendingPush is a caller's push in a commit.
type pendingPush struct {
	ctx     context.Context
	jobs    []lowkiq.Push
	results []Result
	frozen  []int         // indexes of jobs whose shards are frozen; set by the first commit
	done    chan struct{} // receives a value when the results are there
}

// push stores jobs together with the jobs of other callers. If ctx ends while the jobs wait for a commit, they
// are not stored. If it ends during the commit, the results say that it is unknown whether they are.
func (c *committer) push(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &pendingPush{ctx: ctx, jobs: jobs, results: make([]Result, len(jobs)), done: make(chan struct{}, 1)}
	if c.calls.startOrWait(p) {
		go c.calls.sendGroups(p)
	}
	select {
	case <-p.done:
		return p.results, firstError(p.results)
	case <-ctx.Done():
	}
	if c.calls.withdraw(p) {
		return nil, ctx.Err()
	}
	if c.late.withdraw(p) { // the results of the first commit hold: nothing of the frozen shards is stored
		return p.results, firstError(p.results)
	}
	select { // wait a moment for results of jobs that are stored
	case <-p.done:
		return p.results, firstError(p.results)
	case <-time.After(lateAnswerWait):
		return unansweredResults(ctx, jobs)
	}
}

// lateAnswerWait is how long a push waits for an answer that is on its way when its context ends.
const lateAnswerWait = 50 * time.Millisecond

// unansweredResults returns the results of a push whose context ended before Redis answered.
func unansweredResults(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	err := unknownOutcome(fmt.Errorf("push: no answer from redis yet: %w", ctx.Err()))
	results := make([]Result, len(jobs))
	for i := range results {
		results[i].Err = err
	}
	return results, err
}

func unknownOutcome(err error) error {
	return fmt.Errorf("%w: it is unknown whether the job is stored; pushing it again is safe", err)
}

// commitGroup stores the jobs of a group of pushes. It does not wait for a flip. It answers the callers, except for pushes to
// frozen shards, which it passes to late.
func (c *committer) commitGroup(group []*pendingPush) {
	jobs, results := joinJobs(group)
	c.write(group[0].ctx, jobs, results, &flipWait{})
	if len(group) > 1 {
		splitResults(group, results)
	}
	for _, p := range group {
		p.frozen = frozenJobs(p.jobs, p.results)
		switch {
		case p.frozen == nil:
			p.done <- struct{}{}
		case c.late.startOrWait(p):
			go c.late.sendGroups(p)
		}
	}
}

// frozenJobs returns the indexes of the jobs whose shards are frozen. After a refusal of an id's payload for another reason it
// gives the later payloads of the id an ErrUnsent, because none of them may be stored (I3).
func frozenJobs(jobs []lowkiq.Push, results []Result) (frozen []int) {
	var refused map[string]error
	for i := range results {
		err := results[i].Err
		switch {
		case err == nil:
		case !errors.Is(err, ErrMoving):
			if refused == nil {
				refused = map[string]error{}
			}
			refused[jobs[i].ID] = err
		case refused[jobs[i].ID] != nil:
			results[i].Err = &unsentError{refused[jobs[i].ID]}
		default:
			frozen = append(frozen, i)
		}
	}
	return frozen
}

// commitLate stores the jobs of a group of pushes whose shards were frozen, and answers their callers.
func (c *committer) commitLate(group []*pendingPush) {
	var jobs []lowkiq.Push
	for _, p := range group {
		for _, i := range p.frozen {
			jobs = append(jobs, p.jobs[i])
		}
	}
	results := make([]Result, len(jobs))
	c.write(group[0].ctx, jobs, results, c.queue.newFlipWait())
	for _, p := range group {
		for k, i := range p.frozen {
			p.results[i] = results[k]
		}
		results = results[len(p.frozen):]
		p.done <- struct{}{}
	}
}

// write stores jobs. It must not fail because the caller with this context gives up.
func (c *committer) write(ctx context.Context, jobs []lowkiq.Push, results []Result, wait *flipWait) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.queue.registry.cfg.Timeout)
	defer cancel()
	c.queue.writeJobs(ctx, jobs, results, wait)
}

// joinJobs returns the jobs of all pushes, in order, and as many results.
func joinJobs(group []*pendingPush) ([]lowkiq.Push, []Result) {
	if len(group) == 1 {
		return group[0].jobs, group[0].results
	}
	n := 0
	for _, p := range group {
		n += len(p.jobs)
	}
	jobs := make([]lowkiq.Push, 0, n)
	for _, p := range group {
		jobs = append(jobs, p.jobs...)
	}
	return jobs, make([]Result, n)
}

// splitResults copies the results to the pushes that their jobs came from.
func splitResults(group []*pendingPush, results []Result) {
	for _, p := range group {
		results = results[copy(p.results, results):]
	}
}
