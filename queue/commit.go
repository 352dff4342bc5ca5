package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// committer makes concurrent small pushes share scripts (group commit): while commits are
// under way, callers queue up, and the next commit sends what has gathered. A lone push goes
// out at once. Commits run beside the callers: what one of them sends goes on when its context
// ends, as others share it.
type committer struct {
	queue *Queue

	mu      sync.Mutex
	waiting []*pending // guarded by mu
	active  int        // commits under way; guarded by mu
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
	if c.join(p) {
		go c.run(p)
	}
	select {
	case <-p.done:
		return p.results, firstError(p.results)
	case <-ctx.Done():
	}
	if c.withdraw(p) {
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

// join says whether p begins a commit at once; if not, p waits for the next one.
func (c *committer) join(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active < maxCommits {
		c.active++
		return true
	}
	c.waiting = append(c.waiting, p)
	return false
}

// withdraw takes p back if it is in no commit yet.
func (c *committer) withdraw(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, p)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// run makes commits, one after the other, while somebody waits. The first one has these pushes,
// too.
func (c *committer) run(first ...*pending) {
	for group := c.take(first...); len(group) > 0; group = c.take() {
		c.commit(group)
	}
}

// take forms the next group: these and others that wait. If there is nobody, a commit less is
// under way.
func (c *committer) take(group ...*pending) []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, jobs := 0, 0
	for _, p := range group {
		jobs += len(p.jobs)
	}
	for n < len(c.waiting) && jobs < commitJobs {
		jobs += len(c.waiting[n].jobs)
		n++
	}
	group = append(group, c.waiting[:n]...)
	c.waiting = slices.Delete(c.waiting, 0, n)
	if len(group) == 0 {
		c.active--
	}
	return group
}

// commit pushes a group and answers its members.
func (c *committer) commit(group []*pending) {
	jobs, results := gather(group)
	// The group must not fail because one of its callers gave up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), c.queue.c.cfg.Timeout)
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
