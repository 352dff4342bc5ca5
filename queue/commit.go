package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// committer makes concurrent small pushes share scripts (group commit): while one
// commit is under way, callers queue up, and one of them sends what has gathered. A lone
// push goes out at once. What a caller sends goes on when its context ends: others share it.
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
	jobs    []lowkiq.Push
	results []Result
	turn    chan bool // true: lead the next commit; false: answered
}

// push stores jobs together with those of other callers.
func (c *committer) push(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &pending{jobs: jobs, results: make([]Result, len(jobs)), turn: make(chan bool, 1)}
	if c.join(p) {
		c.leadBeside(ctx, p)
	}
	ended := ctx.Done()
	var patience <-chan time.Time
	for {
		select {
		case leads := <-p.turn:
			if leads {
				c.leadBeside(ctx, p)
				continue
			}
			return p.results, firstError(p.results)
		case <-ended:
			if c.withdraw(p) {
				return nil, ctx.Err()
			}
			ended, patience = nil, time.After(lastAnswer)
		case <-patience:
			c.leave(ctx, p)
			return unanswered(ctx, jobs)
		}
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

// leadBeside leads a commit; where the caller may give up, beside it.
func (c *committer) leadBeside(ctx context.Context, p *pending) {
	if ctx.Done() == nil {
		c.lead(ctx, p)
	} else {
		go c.lead(ctx, p)
	}
}

// join says whether p's caller leads a commit at once; if not, p waits.
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

// withdraw takes p back if it is in no commit yet. It may be told to lead one.
func (c *committer) withdraw(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, p)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// leave is the end of p's caller. If p was just told to lead, others may wait for that.
func (c *committer) leave(ctx context.Context, p *pending) {
	select {
	case leads := <-p.turn:
		if leads {
			c.leadBeside(ctx, p)
		}
	default: // its jobs are on their way; the answer comes too late for this caller
	}
}

// lead commits p and what waits, then hands the lead on.
func (c *committer) lead(ctx context.Context, p *pending) {
	group := c.take(p)
	jobs, results := gather(group)
	// The group must not fail because its leader's caller gave up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.queue.c.cfg.Timeout)
	defer cancel()
	c.queue.write(ctx, jobs, results)
	if len(group) > 1 {
		scatter(group, results)
	}
	for _, member := range group {
		member.turn <- false
	}
	c.pass()
}

// take forms the next group: its leader and others that wait.
func (c *committer) take(leader *pending) []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, jobs := 0, len(leader.jobs)
	for n < len(c.waiting) && jobs < commitJobs {
		jobs += len(c.waiting[n].jobs)
		n++
	}
	group := append(make([]*pending, 0, n+1), leader)
	group = append(group, c.waiting[:n]...)
	c.waiting = slices.Delete(c.waiting, 0, n)
	return group
}

// pass makes the next waiting caller a leader, if there is one. It leaves the queue
// here, so that it is told once.
func (c *committer) pass() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.active--
		return
	}
	next := c.waiting[0]
	c.waiting = slices.Delete(c.waiting, 0, 1)
	next.turn <- true
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
