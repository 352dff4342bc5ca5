package runner

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/metrics"
)

// slots bound the handler calls of a node, or those of a queue on it. When all are taken, a
// queue that has none comes first: no backlog of others keeps it waiting. Among equals the
// waiter whose oldest job is due first is next (scheduler lag). One that waits for its turn
// (seq) is next once as many turns were given as it found waiters.
type Slots struct {
	waiters atomic.Int32  // all of them, read without mu
	wanting chan struct{} // gets a value when one comes, if there is room; nil: nobody listens
	over    atomic.Bool   // more are taken than there are, since resize; written with mu held
	ended   chan struct{} // gets a value when over ends, if there is room; nil: nobody listens

	mu     sync.Mutex
	total  int       // guarded by mu
	free   int       // below 0: so many more are taken than there are; guarded by mu
	count  uint64    // waiters ever; guarded by mu
	turns  uint64    // given to waiters; guarded by mu
	asking int       // shares that have waiters; guarded by mu
	empty  int       // of these, those that have no slot; guarded by mu
	oldest slotQueue // by due time; guarded by mu
	inTurn []*waiter // by arrival; guarded by mu
}

// share is what one queue has of some slots. It is guarded by the mu of the slots.
type share struct{ taken, waiting int }

type waiter struct {
	of    *share
	due   time.Time // of its oldest job; zero: it waits for its turn
	place uint64    // in the order of arrival; equal due times are served in it
	after uint64    // turns given when its own has come, if due is zero
	turn  chan struct{}
	index int // in the heap
	given bool
}

func NewSlots(n int) *Slots { return &Slots{total: n, free: n} }

// takeFree takes a slot for a queue's share, if one is free.
func (s *Slots) takeFree(of *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grab(of)
}

// grab takes one if it is free. mu is held.
func (s *Slots) grab(of *share) bool {
	if s.free <= 0 {
		return false
	}
	s.free--
	s.change(of, 1, 0)
	return true
}

// take waits for a slot for a queue's share. due is when the oldest job to be handled was due;
// zero means to wait in turn.
func (s *Slots) take(ctx context.Context, of *share, due time.Time) error {
	s.mu.Lock()
	if s.grab(of) {
		s.mu.Unlock()
		return nil
	}
	w := s.join(of, due)
	s.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		s.withdraw(w)
		return context.Cause(ctx)
	}
}

// change counts slots that a share has more or less, and waiters. mu is held.
func (s *Slots) change(of *share, taken, waiting int) {
	s.tally(of, -1)
	of.taken += taken
	of.waiting += waiting
	s.tally(of, 1)
}

// tally counts a share in, or out before it changes. mu is held.
func (s *Slots) tally(of *share, n int) {
	if of.waiting == 0 {
		return
	}
	s.asking += n
	if of.taken == 0 {
		s.empty += n
	}
}

func (s *Slots) join(of *share, due time.Time) *waiter {
	s.count++
	w := &waiter{of: of, due: due, place: s.count, after: s.turns + uint64(s.waiters.Load()), turn: make(chan struct{})}
	if due.IsZero() {
		s.inTurn = append(s.inTurn, w)
	} else {
		heap.Push(&s.oldest, w)
	}
	s.waiters.Add(1)
	s.change(of, 0, 1)
	s.want()
	return w
}

func (s *Slots) withdraw(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.given:
		s.next(w.of) // its turn came meanwhile; pass it on
		return
	case w.due.IsZero():
		i := slices.Index(s.inTurn, w)
		s.inTurn = slices.Delete(s.inTurn, i, i+1)
	default:
		heap.Remove(&s.oldest, w.index)
	}
	s.waiters.Add(-1)
	s.change(w.of, 0, -1)
}

// contended reports whether lanes wait, or there are fewer slots than are taken; if not, a lane keeps its slot for its
// next batch.
func (s *Slots) contended() bool { return s.waiters.Load() > 0 || s.over.Load() }

// Use says how many slots there are, and how many are taken.
func (s *Slots) Use() metrics.Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return metrics.Use{Total: s.total, Busy: s.total - s.free}
}

// give frees a slot of a share.
func (s *Slots) give(of *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next(of)
}

func (s *Slots) next(of *share) {
	s.change(of, -1, 0)
	s.free++
	s.serve()
}

// resize changes how many there are. If more are taken, those that are given back are gone.
func (s *Slots) resize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n - s.total
	s.total = n
	s.serve()
}

// want tells whoever listens that there may be too few.
func (s *Slots) want() { notify(s.wanting) }

// notify leaves a value in a channel that has room for one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// taken is how many are taken, and how many lanes wait.
func (s *Slots) taken() (taken, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total - s.free, int(s.waiters.Load())
}

// serve gives what is free to those that wait. mu is held.
func (s *Slots) serve() {
	for s.free > 0 {
		w := s.choose()
		if w == nil {
			break
		}
		s.free--
		s.turns++
		s.waiters.Add(-1)
		s.change(w.of, 1, -1)
		w.given = true
		close(w.turn)
	}
	if over := s.free < 0; over != s.over.Load() {
		s.over.Store(over)
		if !over {
			notify(s.ended)
		}
	}
}

// choose takes the next waiter off its queue; nil: there is none.
func (s *Slots) choose() *waiter {
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

// chooseEmpty takes the first waiter of a share without a slot, if some waiters have others.
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
