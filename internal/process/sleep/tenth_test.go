package sleep

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTenth checks that one of many callers works at a time, and that work takes a tenth of the time.
func TestTenth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenth := NewTenth()
		var worked time.Duration
		var all sync.WaitGroup
		began := time.Now()
		for range 5 {
			all.Go(func() {
				for n := range 20 {
					took := time.Duration(n) * time.Millisecond
					if err := tenth.Do(t.Context(), func() error {
						time.Sleep(took)
						worked += took // one at a time: the race detector says so
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if wall, last := time.Since(began), 19*time.Millisecond; wall < 10*worked-9*last || wall > 10*worked {
			t.Errorf("got %s of work in %s, want a tenth", worked, wall)
		}
	})
}

// TestTenthEnds checks that a caller that gives up stops waiting and keeps no other caller from its turn.
func TestTenthEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenth, broken := NewTenth(), errors.New("broken")
		if err := tenth.Do(t.Context(), func() error { time.Sleep(time.Second); return broken }); !errors.Is(err, broken) {
			t.Errorf("got %v, want what the call returned", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := tenth.Do(ctx, func() error { t.Error("got a call within the rest"); return nil })
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("got %v after %s, want the end of the context", err, took)
		}
		if err := tenth.Do(t.Context(), func() error { return nil }); err != nil || time.Since(began) != 9*time.Second {
			t.Errorf("got %v after %s, want a turn after the rest", err, time.Since(began))
		}
	})
}

// TestTenthBy checks that a caller with a deadline learns in time that it gets no turn, and keeps no other caller from
// its turn. A caller that does not wait leaves a rest to the next.
func TestTenthBy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenth := NewTenth()
		work := func() error { time.Sleep(time.Second); return nil }
		took := func(what string, want time.Duration, wantRan bool, do func() (bool, error)) {
			t.Helper()
			began := time.Now()
			ran, err := do()
			if got := time.Since(began); got != want || ran != wantRan || err != nil {
				t.Errorf("%s: got ran %t, %v after %s, want %t after %s", what, ran, err, got, wantRan, want)
			}
		}
		by := func(wait time.Duration) func() (bool, error) {
			return func() (bool, error) { return tenth.By(t.Context(), time.Now().Add(wait), work) }
		}
		took("a free one", time.Second, true, by(time.Second))
		took("too early", 3*time.Second, false, by(3*time.Second))
		took("in time", 7*time.Second, true, by(6*time.Second))
		took("at once", time.Second, true, func() (bool, error) { return true, tenth.Owe(work) })
		took("the rest of two", 17*time.Second-time.Millisecond, false, by(17*time.Second-time.Millisecond))
	})
}
