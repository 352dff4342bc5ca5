package node

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// slots bound the handler calls of a node. When all are taken, the waiter whose oldest job
// is due first is next (scheduler lag). One that waits for its turn (seq) is next once as
// many turns were given as it found waiters: no backlog beside it can keep it waiting.
type slots struct {
	waiters atomic.Int32 // all of them, read without mu

	mu     sync.Mutex
	free   int       // guarded by mu
	count  uint64    // waiters ever; guarded by mu
	turns  uint64    // given to waiters; guarded by mu
	oldest slotQueue // by due time; guarded by mu
	inTurn []*waiter // by arrival; guarded by mu
}

type waiter struct {
	due   time.Time // of its oldest job; zero: it waits for its turn
	place uint64    // in the order of arrival; equal due times are served in it
	after uint64    // turns given when its own has come, if due is zero
	turn  chan struct{}
	index int // in the heap
	given bool
}

func newSlots(n int) *slots { return &slots{free: n} }

// take waits for a slot. due is when the oldest job to be handled was due; zero means to
// wait in turn.
func (s *slots) take(ctx context.Context, due time.Time) error {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	w := s.join(due)
	s.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		s.withdraw(w)
		return context.Cause(ctx)
	}
}

func (s *slots) join(due time.Time) *waiter {
	s.count++
	w := &waiter{due: due, place: s.count, after: s.turns + uint64(s.waiters.Load()), turn: make(chan struct{})}
	if due.IsZero() {
		s.inTurn = append(s.inTurn, w)
	} else {
		heap.Push(&s.oldest, w)
	}
	s.waiters.Add(1)
	return w
}

func (s *slots) withdraw(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.given:
		s.next() // its turn came meanwhile; pass it on
		return
	case w.due.IsZero():
		i := slices.Index(s.inTurn, w)
		s.inTurn = slices.Delete(s.inTurn, i, i+1)
	default:
		heap.Remove(&s.oldest, w.index)
	}
	s.waiters.Add(-1)
}

// contended reports whether somebody waits; a lane keeps its slot for the next batch
// if nobody does.
func (s *slots) contended() bool { return s.waiters.Load() > 0 }

// give frees a slot.
func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next()
}

func (s *slots) next() {
	w := s.choose()
	if w == nil {
		s.free++
		return
	}
	s.turns++
	s.waiters.Add(-1)
	w.given = true
	close(w.turn)
}

// choose takes the next waiter off its queue; nil: there is none.
func (s *slots) choose() *waiter {
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
