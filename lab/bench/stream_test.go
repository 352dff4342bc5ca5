package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Jobs arrive when they are due also while no push is answered: what an answer takes hides nothing.
func TestOpenLoopWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	const perSecond, jobs = 2500, 50
	var mu sync.Mutex
	due := map[string]int{}
	all := make(chan struct{})
	s := NewStream(nil, func(ctx context.Context, _ string, payload []byte) error {
		mu.Lock()
		due[string(payload)]++
		n := 0
		for _, together := range due {
			n += together
		}
		mu.Unlock()
		if n == jobs {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a job waits for an answer"))
	defer cancel()
	late, err := s.openLoop(ctx, PerSecond(perSecond), jobs*time.Second/perSecond)
	if err != nil || len(late) != jobs {
		t.Fatalf("got %d jobs, error %v, want %d", len(late), err, jobs)
	}
	if len(due) != 20 { // 2 and 3 by turns, each tick
		t.Errorf("got jobs at %d times, want 20: %v", len(due), due)
	}
	for _, d := range late {
		if d < 0 {
			t.Errorf("a push began %s before it was due", -d)
		}
	}
}

func TestOpenLoopEndsWithAFailedPush(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := NewStream(nil, func(context.Context, string, []byte) error { return broken })
	if _, err := s.openLoop(t.Context(), PerSecond(1000), time.Minute); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// What takes long holds others up. It is none of those that are timed.
func TestStreamTimesFastJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var payloads [][]byte
		ids := map[string]bool{}
		s := NewStream(nil, func(_ context.Context, id string, payload []byte) error {
			ids[id] = true
			payloads = append(payloads, payload)
			return nil
		})
		w := newWindow(time.Second)
		s.open.Store(w)
		for range 6 {
			if err := s.pushJob(t.Context(), Load{Slow: 3}, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		time.Sleep(time.Millisecond)
		for _, payload := range payloads {
			if len(payload) != len("0123456789abcdef") {
				t.Errorf("payload %q: want 16 bytes", payload)
			}
			if err := s.Handle(payload); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took != 401*time.Millisecond {
			t.Errorf("took %s, want twice 200 ms after 1 ms", took)
		}
		if w.timed.Load() != 4 || w.handled.Load() != 6 || w.took[0] != time.Millisecond || w.took[2] != 201*time.Millisecond {
			t.Errorf("got %d of %d timed, %v, want 4 of 6, from when they were due", w.timed.Load(), w.handled.Load(), w.took[:4])
		}
		if len(ids) != 6 {
			t.Errorf("got %d ids, want 6", len(ids))
		}
	})
}

func TestStreamRefusesAForeignPayload(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"", "0", "0xyz"} {
		if err := NewStream(nil, nil).Handle([]byte(payload)); err == nil || !strings.Contains(err.Error(), "payload of a stream") {
			t.Errorf("%q: got %v, want that it is none of a stream", payload, err)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var sorted []time.Duration
	for i := range 1000 {
		sorted = append(sorted, time.Duration(i)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0.5: 500, 0.99: 990, 0.999: 999, 1: 999} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("%v: got %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: got %v, want 0", got)
	}
}
