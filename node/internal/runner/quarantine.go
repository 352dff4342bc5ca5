package runner

import (
	"slices"
	"sync"
)

// QuarantineSlot is the node's single slot for ids that were alone when they crashed a worker: with
// one of them at a time, a crash is blamed on the right one.
//
//	an id in flight when its worker died:  in quarantine, handled alone in its shard       no slot
//	it was alone, and the worker died:     handled alone in its node; the crash counts     the slot
//	max_crashes of them:                   buried, by the next owner's claim
type QuarantineSlot struct {
	mu      sync.Mutex
	taken   bool
	waiting []*quarantine // few: shards with an id that crashed a worker
}

// quarantine is one runner's part in quarantine: the flight of the id that is with its handler, and
// the node's slot.
type quarantine struct {
	slot   *QuarantineSlot
	wake   func() // wakes the runner
	flight int64  // of the id, while the phase is quarantined
	has    bool   // the slot
}

// take takes the slot, or has the runner woken when it is free.
func (q *quarantine) take() bool {
	s := q.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.taken:
		s.taken, q.has = true, true
	case !slices.Contains(s.waiting, q):
		s.waiting = append(s.waiting, q)
	}
	return q.has
}

// give frees the slot, if this runner has it, and wakes all that wait: one of them alone might have
// stopped or be paused, and the others would wait on.
func (q *quarantine) give() {
	if !q.has {
		return
	}
	s := q.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, q.has = false, false
	for _, other := range s.waiting {
		go other.wake() // our caller holds its own runner's lock
	}
	s.waiting = nil
}
