package node

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// slots bound the handler calls of a node. When all are taken, the waiter with the
// smallest key is next: the due time of its oldest job (scheduler lag) or the time
// since when it waits (seq). Equal keys are served in turn.
type slots struct {
	waiters atomic.Int32 // len(queue), read without mu

	mu    sync.Mutex
	free  int       // guarded by mu
	count uint64    // waiters ever; guarded by mu
	queue slotQueue // guarded by mu
}

type waiter struct {
	key   time.Time
	place uint64 // in the order of arrival
	turn  chan struct{}
	index int // in the heap; -1 once it has its turn
}

func newSlots(n int) *slots { return &slots{free: n} }

// take waits for a slot.
func (s *slots) take(ctx context.Context, key time.Time) error {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	s.count++
	w := &waiter{key: key, place: s.count, turn: make(chan struct{})}
	heap.Push(&s.queue, w)
	s.waiters.Store(int32(len(s.queue)))
	s.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		s.withdraw(w)
		return context.Cause(ctx)
	}
}

func (s *slots) withdraw(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.index < 0 {
		s.next() // its turn came meanwhile; pass it on
		return
	}
	heap.Remove(&s.queue, w.index)
	s.waiters.Store(int32(len(s.queue)))
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
	if len(s.queue) == 0 {
		s.free++
		return
	}
	w := heap.Pop(&s.queue).(*waiter)
	s.waiters.Store(int32(len(s.queue)))
	close(w.turn)
}

type slotQueue []*waiter

func (q slotQueue) Len() int { return len(q) }
func (q slotQueue) Less(i, j int) bool {
	if !q[i].key.Equal(q[j].key) {
		return q[i].key.Before(q[j].key)
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
	w.index = -1
	return w
}
