package limits

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/historytest"
)

// due is when the job of a taker is due; 0 is a taker of scheduler seq, which waits in turn.
func due(key int) time.Time {
	if key == 0 {
		return time.Time{}
	}
	return time.Unix(int64(key), 0)
}

// TestSlotsOrder checks the order of waiters. A queue without a slot comes before the backlogs of queues with slots. After that
// comes the waiter with the oldest job, and equal waiters in the order of arrival. A waiter that waits in turn is passed by at
// most as many waiters as it found.
func TestSlotsOrder(t *testing.T) {
	t.Parallel()
	const inTurn = 0
	for _, c := range []struct {
		name  string
		keys  []int // in order of arrival
		fresh []int // places in keys of takers whose queue has no slot; the other one has all
		want  []int // places in keys, in order of their turns
	}{
		{"oldest due first", []int{5, 1, 9, 3}, nil, []int{1, 3, 0, 2}},
		{"equal keys in turn", []int{7, 7, 7, 7, 7, 7, 7, 7, 7}, nil, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}},
		{"both", []int{7, 1, 7, 1, 7, 1}, nil, []int{1, 3, 5, 0, 2, 4}},
		{"in turn", []int{inTurn, inTurn, inTurn}, nil, []int{0, 1, 2}},
		{"in turn beside a backlog", []int{1, 1, inTurn, 1, 1, 1}, nil, []int{0, 1, 2, 3, 4, 5}},
		{"older ones pass by", []int{5, inTurn, 3, 2, 1}, nil, []int{4, 1, 3, 2, 0}},
		{"both in turn", []int{inTurn, 1, inTurn, 1, inTurn, 1}, nil, []int{0, 1, 2, 3, 4, 5}},
		{"a queue without a slot", []int{1, 2, 3, 1000, 1000}, []int{3, 4}, []int{3, 4, 0, 1, 2}},
		{"a queue without a slot, in turn", []int{1, 2, 3, inTurn, inTurn}, []int{3, 4}, []int{3, 4, 0, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewSlots(2)
				behind, fresh := s.Share(), s.Share()
				for range 2 {
					if err := behind.Acquire(t.Context(), time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				var got []int
				for i, key := range c.keys {
					of := behind
					if slices.Contains(c.fresh, i) {
						of = fresh
					}
					go func() {
						if of.Acquire(t.Context(), due(key)) == nil {
							got = append(got, i) // one at a time: there is one slot
							of.Release()
						}
					}()
					if synctest.Wait(); !behind.Contended() {
						t.Error("not contended, and one waits")
					}
				}
				behind.Release()
				synctest.Wait()
				if !slices.Equal(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestSlotsProperty checks with any number of slots, waiters and cancels that never more slots are taken than there are, and
// that all are free in the end. Some cancels come at the same time as the slot.
func TestSlotsProperty(t *testing.T) {
	t.Parallel()
	for range 300 {
		historytest.One(t, rand.Uint64(), func(t *testing.T, h *historytest.History) {
			size := 1 + h.IntN(4)
			s := NewSlots(size)
			q := s.Share()
			var busy atomic.Int64
			var group sync.WaitGroup
			step := func() { time.Sleep(time.Duration(h.IntN(4)) * time.Millisecond) }
			takers := make([]struct {
				ctx    context.Context
				cancel context.CancelFunc
			}, 1+h.IntN(40))
			for i := range takers {
				takers[i].ctx, takers[i].cancel = context.WithCancel(t.Context())
			}
			for _, taker := range takers {
				group.Go(func() {
					step()
					if q.Acquire(taker.ctx, due(max(0, h.IntN(20)-5))) != nil {
						return
					}
					if n := busy.Add(1); n > int64(size) {
						h.Fault("%d at once, want %d at most", n, size)
					}
					step()
					busy.Add(-1)
					takers[h.IntN(len(takers))].cancel()
					q.Release()
				})
			}
			group.Wait()
			if q.taken != 0 || q.waiting != 0 || s.asking != 0 || s.empty != 0 {
				h.Fault("counted %+v, asking %d, empty %d; want 0", *q, s.asking, s.empty)
			}
			if s.free != size || len(s.oldest)+len(s.inTurn) != 0 || q.Contended() {
				h.Fault("%d slots are free, %d wait; want %d, 0", s.free, len(s.oldest)+len(s.inTurn), size)
			}
		})
	}
}
