package runner

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// queued waits in a bubble until exactly n takers wait.
func queued(t *testing.T, s *Slots, n int32) {
	t.Helper()
	synctest.Wait()
	if got := s.waiters.Load(); got != n {
		t.Fatalf("%d takers wait, want %d", got, n)
	}
	if s.contended() != (n > 0) {
		t.Errorf("contended is %v with %d waiting", s.contended(), n)
	}
}

// inTurn is the key of a waiter of scheduler seq.
const inTurn = 0

// TestSlotsOldestFirst: the waiter with the oldest job is next, equal ones in the order of
// their arrival; who waits in turn is passed by as many as it found waiting, and no more.
func TestSlotsOldestFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		keys []int // in order of arrival
		want []int // places in keys, in order of their turns
	}{
		{"oldest due first", []int{5, 1, 9, 3}, []int{1, 3, 0, 2}},
		{"equal keys in turn", []int{7, 7, 7, 7, 7, 7, 7, 7, 7}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}},
		{"both", []int{7, 1, 7, 1, 7, 1}, []int{1, 3, 5, 0, 2, 4}},
		{"in turn", []int{inTurn, inTurn, inTurn}, []int{0, 1, 2}},
		{"in turn beside a backlog", []int{1, 1, inTurn, 1, 1, 1}, []int{0, 1, 2, 3, 4, 5}},
		{"older ones pass by", []int{5, inTurn, 3, 2, 1}, []int{4, 1, 3, 2, 0}},
		{"both in turn", []int{inTurn, 1, inTurn, 1, inTurn, 1}, []int{0, 1, 2, 3, 4, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, q := NewSlots(1), &share{}
				if err := s.take(t.Context(), q, time.Time{}); err != nil {
					t.Fatal(err)
				}
				var got []int
				for i, key := range c.keys {
					go func() {
						due := time.Time{}
						if key != inTurn {
							due = time.Unix(int64(key), 0)
						}
						if s.take(t.Context(), q, due) == nil {
							got = append(got, i) // one at a time: there is one slot
							s.give(q)
						}
					}()
					queued(t, s, int32(i+1))
				}
				s.give(q)
				queued(t, s, 0)
				if !slices.Equal(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestSlotsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, q := NewSlots(1), &share{}
		if err := s.take(t.Context(), q, time.Time{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		answer := make(chan error, 1)
		go func() { answer <- s.take(ctx, q, time.Time{}) }()
		queued(t, s, 1)
		cancel(errBoom)
		if err := <-answer; !errors.Is(err, errBoom) {
			t.Errorf("got %v, want the cause", err)
		}
		queued(t, s, 0)
		s.give(q)
		if s.free != 1 {
			t.Errorf("%d slots are free, want 1", s.free)
		}
	})
}

// TestSlotsTurnAndCancel: a turn that comes together with the cancel is passed on.
func TestSlotsTurnAndCancel(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			s, q := NewSlots(1), &share{}
			if err := s.take(t.Context(), q, time.Time{}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if s.take(ctx, q, time.Time{}) == nil {
					s.give(q)
				}
			}()
			queued(t, s, 1)
			cancel()
			s.give(q)
			synctest.Wait()
			if s.free != 1 {
				t.Fatalf("%d slots are free, want 1", s.free)
			}
		})
	}
}

// TestSlotsProperty: with any number of slots, takers and cancels, never more than the
// slots at once, and all are free in the end.
func TestSlotsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(t, "slots")
		takers := rapid.SliceOfN(rapid.IntRange(0, 20), 1, 40).Draw(t, "keys")
		cancelled := rapid.SliceOfN(rapid.Bool(), len(takers), len(takers)).Draw(t, "cancelled")
		s, q := NewSlots(size), &share{}
		var now atomic.Int64
		var over atomic.Bool
		var group sync.WaitGroup
		for i, key := range takers {
			ctx, cancel := context.WithCancel(context.Background())
			group.Go(func() {
				defer cancel()
				due := time.Time{}
				if key > 5 {
					due = time.Unix(int64(key), 0)
				}
				if s.take(ctx, q, due) != nil {
					return
				}
				if now.Add(1) > int64(size) {
					over.Store(true)
				}
				now.Add(-1)
				s.give(q)
			})
			if cancelled[i] {
				group.Go(cancel)
			}
		}
		group.Wait()
		if over.Load() {
			t.Fatalf("more than %d at once", size)
		}
		if *q != (share{}) || s.asking != 0 || s.empty != 0 {
			t.Fatalf("counted %+v, asking %d, empty %d; want 0", *q, s.asking, s.empty)
		}
		if s.free != size || len(s.oldest)+len(s.inTurn) != 0 || s.contended() {
			t.Fatalf("%d slots are free, %d wait; want %d, 0", s.free, len(s.oldest)+len(s.inTurn), size)
		}
	})
}

// TestSlotsQueueWithoutOne: a queue that has no slot comes before the backlogs of those that
// have some, whatever its scheduler is.
func TestSlotsQueueWithoutOne(t *testing.T) {
	t.Parallel()
	for name, due := range map[string]time.Time{"seq": {}, "lag": time.Unix(1000, 0)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, behind, fresh := NewSlots(2), &share{}, &share{}
				var got []string
				take := func(name string, of *share, due time.Time) {
					go func() {
						if s.take(t.Context(), of, due) == nil {
							got = append(got, name)
						}
					}()
					synctest.Wait()
				}
				for range 2 {
					take("first", behind, time.Time{})
				}
				for i := range 3 {
					take("behind", behind, time.Unix(int64(i), 0))
				}
				take("fresh", fresh, due)
				take("fresh", fresh, due)
				for _, of := range []*share{behind, fresh, fresh, behind, behind, behind, behind} {
					s.give(of)
					synctest.Wait()
				}
				if want := []string{"first", "first", "fresh", "fresh", "behind", "behind", "behind"}; !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				if s.free != 2 || s.asking != 0 || s.empty != 0 {
					t.Errorf("%d free, %d asking, %d empty; want 2, 0, 0", s.free, s.asking, s.empty)
				}
			})
		})
	}
}
