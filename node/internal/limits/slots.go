package limits

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/metrics"
)

// Slots bound the handler calls of a node, or of a queue on it. When all slots are taken, a queue without a slot comes first,
// so no backlog of other queues keeps it waiting. Among equals the waiter whose oldest job is due first is next (scheduler
// lag). A waiter that waits in turn (scheduler seq) is next once as many turns were given as there were waiters when it
// came.
type Slots struct {
	waiters atomic.Int32  // read without mu
	wanting chan struct{} // gets a value when a waiter comes, if it has room; nil without a receiver
	over    atomic.Bool   // more slots are taken than there are, since resize; written with mu held
	ended   chan struct{} // gets a value when over ends, if it has room; nil without a receiver

	mu     sync.Mutex
	total  int       // guarded by mu
	free   int       // below 0 if more slots are taken than there are; guarded by mu
	count  uint64    // waiters ever; guarded by mu
	turns  uint64    // given to waiters; guarded by mu
	asking int       // shares that have waiters; guarded by mu
	empty  int       // shares that have waiters and no slot; guarded by mu
	oldest slotQueue // by due time; guarded by mu
	inTurn []*waiter // by arrival; guarded by mu
}

// Share is a queue's part of the slots.
type Share struct {
	of             *Slots
	taken, waiting int // guarded by the slots' mu
}

// Share returns a new share without slots.
func (s *Slots) Share() *Share { return &Share{of: s} }

// Acquire waits for a slot until ctx ends. due is when the oldest job to be handled was due; zero means to wait in turn.
func (p *Share) Acquire(ctx context.Context, due time.Time) error { return p.of.acquire(ctx, p, due) }

// Release frees a slot of the share.
func (p *Share) Release() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.release(p)
}

// Contended reports whether lanes wait for slots, or more are taken than there are. If not, a lane keeps its slot
// for its next batch.
func (p *Share) Contended() bool { return p.of.waiters.Load() > 0 || p.of.over.Load() }

// use returns how many slots the share has, and how many of its lanes wait.
func (p *Share) use() (taken, waiting int) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken, p.waiting
}

type waiter struct {
	of    *Share
	due   time.Time // time when its oldest job was due; zero if it waits in turn
	place uint64    // in the order of arrival; equal due times are served in it
	after uint64    // turns given when its own turn has come, if due is zero
	turn  chan struct{}
	index int // in the heap
	given bool
}

// NewSlots returns n free slots.
func NewSlots(n int) *Slots { return &Slots{total: n, free: n} }

// takeFree takes a slot if a slot is free. The caller holds mu.
func (s *Slots) takeFree(of *Share) bool {
	if s.free <= 0 {
		return false
	}
	s.free--
	s.adjustShare(of, 1, 0)
	return true
}

// acquire waits for a slot; see Share.Acquire.
func (s *Slots) acquire(ctx context.Context, of *Share, due time.Time) error {
	s.mu.Lock()
	if s.takeFree(of) {
		s.mu.Unlock()
		return nil
	}
	w := s.addWaiter(of, due)
	s.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		s.removeWaiter(w)
		return context.Cause(ctx)
	}
}

// adjustShare adds to the slots and waiters of a share. The caller holds mu.
func (s *Slots) adjustShare(of *Share, taken, waiting int) {
	s.countShare(of, -1)
	of.taken += taken
	of.waiting += waiting
	s.countShare(of, 1)
}

// countShare counts a share in, or out before it changes. The caller holds mu.
func (s *Slots) countShare(of *Share, n int) {
	if of.waiting == 0 {
		return
	}
	s.asking += n
	if of.taken == 0 {
		s.empty += n
	}
}

// addWaiter adds a waiter. The caller holds mu.
func (s *Slots) addWaiter(of *Share, due time.Time) *waiter {
	s.count++
	w := &waiter{of: of, due: due, place: s.count, after: s.turns + uint64(s.waiters.Load()), turn: make(chan struct{})}
	if due.IsZero() {
		s.inTurn = append(s.inTurn, w)
	} else {
		heap.Push(&s.oldest, w)
	}
	s.waiters.Add(1)
	s.adjustShare(of, 0, 1)
	s.notifyWanting()
	return w
}

// removeWaiter removes a waiter that gives up.
func (s *Slots) removeWaiter(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.given:
		s.release(w.of) // its turn came meanwhile; pass it on
		return
	case w.due.IsZero():
		i := slices.Index(s.inTurn, w)
		s.inTurn = slices.Delete(s.inTurn, i, i+1)
	default:
		heap.Remove(&s.oldest, w.index)
	}
	s.waiters.Add(-1)
	s.adjustShare(w.of, 0, -1)
}

// Use returns how many slots there are, and how many are taken.
func (s *Slots) Use() metrics.Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return metrics.Use{Total: s.total, Busy: s.total - s.free}
}

// release frees a slot of a share. The caller holds mu.
func (s *Slots) release(of *Share) {
	s.adjustShare(of, -1, 0)
	s.free++
	s.serveWaiters()
}

// resize changes the number of slots. While more slots are taken than there are, a released slot does not become free.
func (s *Slots) resize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n - s.total
	s.total = n
	s.serveWaiters()
}

// notifyWanting reports that there may be too few slots.
func (s *Slots) notifyWanting() { notifyChannel(s.wanting) }

// notifyChannel leaves a value in a channel that has room for one value.
func notifyChannel(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// serveWaiters gives free slots to waiters. The caller holds mu.
func (s *Slots) serveWaiters() {
	for s.free > 0 {
		w := s.chooseWaiter()
		if w == nil {
			break
		}
		s.free--
		s.turns++
		s.waiters.Add(-1)
		s.adjustShare(w.of, 1, -1)
		w.given = true
		close(w.turn)
	}
	if over := s.free < 0; over != s.over.Load() {
		s.over.Store(over)
		if !over {
			notifyChannel(s.ended)
		}
	}
}

// chooseWaiter removes and returns the next waiter, or nil if none waits.
func (s *Slots) chooseWaiter() *waiter {
	if 0 < s.empty && s.empty < s.asking {
		return s.chooseEmpty()
	}
	if len(s.inTurn) > 0 && (s.inTurn[0].after <= s.turns || len(s.oldest) == 0) {
		w := s.inTurn[0]
		s.inTurn = slices.Delete(s.inTurn, 0, 1)
		return w
	}
	if len(s.oldest) == 0 {
		return nil
	}
	return heap.Pop(&s.oldest).(*waiter)
}

// chooseEmpty removes and returns the first waiter of a share without a slot. Such a waiter must exist.
func (s *Slots) chooseEmpty() *waiter {
	at := slices.IndexFunc(s.inTurn, func(w *waiter) bool { return w.of.taken == 0 })
	best := -1
	for i, w := range s.oldest {
		if w.of.taken == 0 && (best < 0 || s.oldest.Less(i, best)) {
			best = i
		}
	}
	if at >= 0 && (s.inTurn[at].after <= s.turns || best < 0) {
		w := s.inTurn[at]
		s.inTurn = slices.Delete(s.inTurn, at, at+1)
		return w
	}
	return heap.Remove(&s.oldest, best).(*waiter)
}

// slotQueue is a heap of waiters by due time, then arrival.
type slotQueue []*waiter

func (q slotQueue) Len() int { return len(q) }
func (q slotQueue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].place < q[j].place
}
func (q slotQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *slotQueue) Push(x any) {
	w := x.(*waiter)
	w.index = len(*q)
	*q = append(*q, w)
}
func (q *slotQueue) Pop() any {
	old := *q
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return w
}
