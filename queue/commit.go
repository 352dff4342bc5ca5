package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// committer makes concurrent small pushes share scripts (group commit). Commits run beside the
// callers: what one of them sends goes on when its context ends, as others share it.
type committer struct {
	queue *Queue
	calls gathered[*pending]
}

func newCommitter(q *Queue) *committer {
	c := &committer{queue: q}
	c.calls = gathered[*pending]{most: maxCommits, room: commitJobs, size: func(p *pending) int { return len(p.jobs) }, send: c.commit}
	return c
}

// Commits under way at once, and most jobs of one.
const (
	maxCommits = 2
	commitJobs = 4096
)

// pending is one caller's push.
type pending struct {
	ctx     context.Context
	jobs    []lowkiq.Push
	results []Result
	done    chan struct{} // gets a value when results are there
}

// push stores jobs together with those of other callers.
func (c *committer) push(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &pending{ctx: ctx, jobs: jobs, results: make([]Result, len(jobs)), done: make(chan struct{}, 1)}
	if c.calls.join(p) {
		go c.calls.run(p)
	}
	select {
	case <-p.done:
		return p.results, firstError(p.results)
	case <-ctx.Done():
	}
	if c.calls.withdraw(p) {
		return nil, ctx.Err()
	}
	select { // what is stored is worth a moment
	case <-p.done:
		return p.results, firstError(p.results)
	case <-time.After(lastAnswer):
		return unanswered(ctx, jobs)
	}
}

// lastAnswer is how long a push waits for an answer that is on its way when its context
// ends.
const lastAnswer = 50 * time.Millisecond

// unanswered is the answer to a push whose context ended first.
func unanswered(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	err := unknownOutcome(fmt.Errorf("push: no answer from redis yet: %w", ctx.Err()))
	results := make([]Result, len(jobs))
	for i := range results {
		results[i].Err = err
	}
	return results, err
}

func unknownOutcome(err error) error {
	return fmt.Errorf("%w: it is unknown whether the job is stored, pushing it again is safe", err)
}

// commit pushes a group and answers its members.
func (c *committer) commit(group []*pending) {
	jobs, results := gather(group)
	// The group must not fail because one of its callers gave up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), c.queue.registry.cfg.Timeout)
	defer cancel()
	c.queue.write(ctx, jobs, results)
	if len(group) > 1 {
		scatter(group, results)
	}
	for _, p := range group {
		p.done <- struct{}{}
	}
}

func gather(group []*pending) ([]lowkiq.Push, []Result) {
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

func scatter(group []*pending, results []Result) {
	for _, p := range group {
		results = results[copy(p.results, results):]
	}
}
