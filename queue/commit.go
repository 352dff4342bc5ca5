package queue

import (
	"context"
	"slices"
	"sync"

	"github.com/lowkiq/lowkiq"
)

// committer makes concurrent small pushes share scripts (group commit): while one
// commit is under way, callers queue up, and one of them sends what has gathered. It
// has no goroutine and no timer; a lone push goes out at once.
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
	turn    chan bool // true: lead the next commit; false: done
}

// push stores jobs together with those of other callers.
func (c *committer) push(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &pending{jobs: jobs, results: make([]Result, len(jobs)), turn: make(chan bool, 1)}
	if c.join(p) {
		c.lead(ctx, p)
		return p.results, firstError(p.results)
	}
	select {
	case leads := <-p.turn:
		if leads {
			c.lead(ctx, p)
		}
		return p.results, firstError(p.results)
	case <-ctx.Done():
		c.leave(ctx, p)
		return nil, ctx.Err()
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

// leave withdraws p. If p was just told to lead, it leads: others may wait for it.
func (c *committer) leave(ctx context.Context, p *pending) {
	c.mu.Lock()
	if i := slices.Index(c.waiting, p); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	select {
	case leads := <-p.turn:
		if leads {
			c.lead(ctx, p)
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
	for _, follower := range group[1:] {
		follower.turn <- false
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
