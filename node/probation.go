package node

import "sync"

// probation is the node's single slot for ids that crashed a worker before: with one
// of them at a time, a crash is blamed on the right one.
type probation struct {
	mu      sync.Mutex
	taken   bool
	waiting []*runner
}

// take takes the slot, or queues the runner to be woken when it is free.
func (p *probation) take(r *runner) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.taken {
		p.taken = true
		return true
	}
	for _, w := range p.waiting {
		if w == r {
			return false
		}
	}
	p.waiting = append(p.waiting, r)
	return false
}

// give frees the slot and wakes the next runner.
func (p *probation) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
	if len(p.waiting) == 0 {
		return
	}
	next := p.waiting[0]
	p.waiting = p.waiting[1:]
	go next.wake() // its lock may be held by our caller's neighbour
}
