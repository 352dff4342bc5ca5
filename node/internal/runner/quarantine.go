package runner

import "sync"

// QuarantineSlot is the node's single slot for ids that crashed a worker before: with one
// of them at a time, a crash is blamed on the right one.
type QuarantineSlot struct {
	mu      sync.Mutex
	taken   bool
	waiting []*Runner // few: shards with an id that crashed a worker
}

// take takes the slot, or queues the runner to be woken when it is free.
func (p *QuarantineSlot) take(r *Runner) bool {
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

// give frees the slot and wakes all who wait: one of them alone might have stopped or be
// paused, and the others would wait on.
func (p *QuarantineSlot) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
	for _, r := range p.waiting {
		go r.Wake() // our caller holds its own runner's lock
	}
	p.waiting = nil
}
