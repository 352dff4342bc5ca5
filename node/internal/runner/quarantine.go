package runner

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// QuarantineSlot is the node's only slot for ids that were alone in flight when they crashed a worker. While a single
// such id runs in the process, the next crash is charged to the right id.
//
//	history of the id                        what happens to it                           needs the slot
//	in flight when its worker died           quarantine; it runs alone in its shard       no
//	alone in flight when its worker died     it runs alone in its node; the crash counts  yes
//	max_crashes crashes                      the next owner's claim buries it             no
type QuarantineSlot struct {
	mu      sync.Mutex
	taken   bool          // guarded by mu
	waiting []*quarantine // runners that wait for the slot; guarded by mu
}

// quarantine is the part of a runner that deals with ids in quarantine.
type quarantine struct {
	slot   *QuarantineSlot
	wake   func() // wakes the runner
	flight int64  // of the id in quarantine, while the phase is quarantined
	has    bool   // the runner has the slot

	refused map[string]time.Duration // ids that their groups have refused, with the time to ask again, by Now
	early   int                      // successive pops of such ids before their time
	pause   time.Duration            // no id in quarantine is popped before this time, by Now
}

// maxRefusal is how long at most the runner remembers that a group has refused an id in quarantine. The group may have room
// again earlier than it said, because a person has changed it.
const maxRefusal = time.Minute

// refuse records that the group of an id in quarantine has refused it. The id may ask again after wait. Redis has put the
// id behind the other ids in quarantine. If more ids in a row come before their time than there are such ids, an id has come
// twice. Then no id in quarantine may ask, and no such id is popped before the first of them may.
func (q *quarantine) refuse(id string, now, wait time.Duration) {
	maps.DeleteFunc(q.refused, func(_ string, until time.Duration) bool { return until <= now })
	if q.refused[id] > now {
		if q.early++; q.early > len(q.refused) {
			q.pause, q.early = slices.Min(slices.Collect(maps.Values(q.refused))), 0
		}
		return
	}
	if q.refused == nil {
		q.refused = map[string]time.Duration{}
	}
	q.refused[id], q.early = now+min(wait, maxRefusal), 0
}

// forgetRefusals lets all ids in quarantine ask their groups again, because the rules of groups have changed.
func (q *quarantine) forgetRefusals() { q.refused, q.early, q.pause = nil, 0, 0 }

// acquireSlot takes the slot if it is free. Otherwise it returns false, and the runner is woken when the slot is free.
func (q *quarantine) acquireSlot() bool {
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

// releaseSlot frees the slot if this runner has it, and wakes all runners that wait for it. It does not wake only the
// first of them, because that runner may have stopped or be paused, and the others would not be woken then.
func (q *quarantine) releaseSlot() {
	if !q.has {
		return
	}
	s := q.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, q.has = false, false
	for _, other := range s.waiting {
		go other.wake() // in a goroutine, because the caller holds the mutex of its own runner
	}
	s.waiting = nil
}
