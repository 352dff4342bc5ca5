package daycounts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a Redis with a clock of its own, and a process that counts. Its test runs in a bubble of
// synctest.
type fake struct {
	*Tally
	began, start time.Time

	mu      sync.Mutex // guards the fields below
	counted float64
	sums    map[string]float64 // by period
	asked   int
	hangs   bool   // the time is not told
	fate    string // of additions: "" done, "refused", or "lost" for done without an answer
	failed  int
}

var errAway = errors.New("redis is away")

func newFake(began time.Time) *fake {
	f := &fake{began: began, start: time.Now(), sums: map[string]float64{}}
	f.Tally = &Tally{
		Read: func() map[string]Counts {
			f.mu.Lock()
			defer f.mu.Unlock()
			return map[string]Counts{"orders": {Processed: f.counted}}
		},
		Time: func(context.Context) (time.Time, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.asked++
			if f.hangs {
				return time.Time{}, errAway
			}
			return f.began.Add(time.Since(f.start)), nil
		},
		Write: func(_ context.Context, all []*Addition) []error {
			f.mu.Lock()
			defer f.mu.Unlock()
			errs := make([]error, len(all))
			for i, a := range all {
				if f.fate != "refused" {
					f.sums[a.Period] += a.Counts[Processed]
				}
				if f.fate != "" {
					errs[i] = errAway
				}
			}
			return errs
		},
		Failed: func(error) { f.failed++ },
	}
	return f
}

// count counts more, of a Redis that hangs or does not.
func (f *fake) count(n float64, hangs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counted, f.hangs = f.counted+n, hangs
}

func (f *fake) expect(t *testing.T, when, want string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []string
	for _, period := range slices.Sorted(maps.Keys(f.sums)) {
		got = append(got, fmt.Sprintf("%s %g", strings.TrimPrefix(period, "202"), f.sums[period]))
	}
	if now := strings.Join(got, ", "); now != want {
		t.Errorf("%s: got %q, want %q", when, now, want)
	}
}

// TestHoursAndMidnight checks that counts before the end of an hour or a day belong to it, also while Redis does not
// answer. An idle process asks nothing, and a process that ends writes the rest.
func TestHoursAndMidnight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Date(2026, 12, 31, 22, 59, 33, 0, time.UTC))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		after := func(d time.Duration, when, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			f.expect(t, when, want)
		}
		after(Every, "idle", "")
		if f.asked != 1 {
			t.Errorf("an idle process has asked for the time %d times, want once at the start", f.asked)
		}
		f.count(3, false)
		after(Every, "three", "6-12-31 3, 6-12-31T22 3")
		f.count(2, true)
		after(8*time.Second, "away at 23:00:01", "6-12-31 3, 6-12-31T22 3")
		f.count(1, true)
		after(Every, "still away", "6-12-31 3, 6-12-31T22 3")
		f.count(0, false)
		after(Every, "back", "6-12-31 6, 6-12-31T22 5, 6-12-31T23 1")
		after(59*time.Minute+32*time.Second, "before midnight", "6-12-31 6, 6-12-31T22 5, 6-12-31T23 1")
		f.count(4, false)
		after(8*time.Second, "after midnight", "6-12-31 10, 6-12-31T22 5, 6-12-31T23 5")
		f.count(1, false)
		cancel()
		after(0, "the end", "6-12-31 10, 6-12-31T22 5, 6-12-31T23 5, 7-01-01 1, 7-01-01T00 1")
		<-done
	})
}

// TestLostAnswers checks that an addition is repeated until Redis answers. A refused addition counts once, an addition
// with a lost answer twice, and a Redis that does not tell the time gets no addition.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Date(2026, 1, 1, 5, 0, 0, 0, time.UTC))
		for _, c := range []struct {
			fate   string
			hangs  bool
			counts float64
			want   string
		}{
			{"", true, 1, ""}, // the day is not known yet
			{"", false, 1, "6-01-01 2, 6-01-01T05 2"},
			{"refused", false, 3, "6-01-01 2, 6-01-01T05 2"},
			{"", true, 5, "6-01-01 2, 6-01-01T05 2"},
			{"", false, 0, "6-01-01 10, 6-01-01T05 10"},
			{"lost", false, 100, "6-01-01 110, 6-01-01T05 110"},
			{"lost", true, 0, "6-01-01 110, 6-01-01T05 110"},
			{"", false, 7, "6-01-01 217, 6-01-01T05 217"},
			{"", false, 1, "6-01-01 218, 6-01-01T05 218"},
		} {
			f.fate, f.hangs, f.counted = c.fate, c.hangs, f.counted+c.counts
			f.takeStep(t.Context())
			f.expect(t, fmt.Sprintf("%+v", c), c.want)
		}
		if f.failed != 5 {
			t.Errorf("told of %d failed steps, want 5", f.failed)
		}
	})
}

// TestSlowAnswers checks that a Redis that tells the time slowly takes no time from the addition. So the addition gets
// its answer and counts once.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Date(2026, 1, 1, 5, 0, 0, 0, time.UTC))
		tell, write := f.Time, f.Write
		f.Time = func(ctx context.Context) (time.Time, error) {
			time.Sleep(stepTimeout - time.Millisecond)
			return tell(ctx)
		}
		f.Write = func(ctx context.Context, all []*Addition) []error {
			errs := write(ctx, all)
			time.Sleep(stepTimeout / 2)
			if ctx.Err() != nil { // the answer comes too late
				for i := range errs {
					errs[i] = ctx.Err()
				}
			}
			return errs
		}
		f.counted = 1
		f.takeStep(t.Context())
		f.counted = 4
		f.takeStep(t.Context())
		f.takeStep(t.Context())
		if f.expect(t, "slow", "6-01-01 4, 6-01-01T05 4"); f.failed != 0 {
			t.Errorf("%d steps have failed", f.failed)
		}
	})
}

// TestAdditionsAreNotKeptForEver checks that a process drops additions that Redis never takes, except those of the
// periods that pages show.
func TestAdditionsAreNotKeptForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Date(2026, 1, 1, 5, 0, 0, 0, time.UTC))
		f.fate = "refused"
		for range 24 * 120 {
			f.counted++
			f.takeStep(t.Context())
			time.Sleep(time.Hour)
		}
		if n := len(f.unwritten); n < 92+48 || n > 95+51 {
			t.Errorf("%d additions wait after 120 days, want those of 92 days and 48 hours", n)
		}
	})
}
