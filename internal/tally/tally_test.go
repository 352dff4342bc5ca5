package tally

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// count is a counter.
type count int

func (c count) Since(earlier count) count { return c - earlier }
func (c count) Same(other count) bool     { return c == other }

// TestHoursAndMidnight: what was counted until an hour or a day is over belongs to it, also while Redis does not answer; nothing
// is written of an idle time, and at the end what is left is.
func TestHoursAndMidnight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		written, writes, asked := map[string]string{}, 0, 0
		var orders atomic.Int64
		var away atomic.Bool // Redis
		began, start := time.Date(2026, 12, 31, 22, 59, 33, 0, time.UTC), time.Now()
		clock := func() time.Time { return began.Add(time.Since(start)) }
		counter := &Tally[count]{
			Boot: "b", Read: func() map[string]count { return map[string]count{"orders": count(orders.Load())} }, Guess: clock,
			Ask:    func(context.Context) (time.Time, error) { asked++; return clock(), nil },
			Failed: func(error) {},
			Write: func(_ context.Context, all []Write[count]) []Answer {
				answers := make([]Answer, len(all))
				for i, w := range all {
					if away.Load() {
						answers[i].Err = errors.New("redis is away")
						continue
					}
					writes++
					written[w.Part] = fmt.Sprintf("%s %d", strings.TrimPrefix(w.Period, "202"), w.Figures)
				}
				return answers
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); counter.Run(ctx) }()
		after := func(d time.Duration, what, want string, wantWrites int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			var got []string
			for _, part := range slices.Sorted(maps.Keys(written)) {
				got = append(got, strings.TrimPrefix(part, "b/")+"="+written[part])
			}
			if now := strings.Join(got, ", "); now != want || writes != wantWrites {
				t.Errorf("%s: got %q in %d writes, want %q in %d", what, now, writes, want, wantWrites)
			}
		}
		after(Every, "idle", "", 0)
		if asked != 0 {
			t.Errorf("an idle process asked for the time %d times", asked)
		}
		orders.Add(3)
		after(Every, "three", "1=6-12-31 3, 2=6-12-31T22 3", 2)
		orders.Add(2)
		away.Store(true)
		after(8*time.Second, "away at 23:00:01", "1=6-12-31 3, 2=6-12-31T22 3", 2)
		orders.Add(1)
		after(Every, "still away", "1=6-12-31 3, 2=6-12-31T22 3", 2)
		away.Store(false)
		after(Every, "back", "1=6-12-31 6, 2=6-12-31T22 5, 3=6-12-31T23 1", 6) // the day's write on its way, and then the rest
		after(59*time.Minute+20*time.Second, "idle", "1=6-12-31 6, 2=6-12-31T22 5, 3=6-12-31T23 1", 6)
		after(12*time.Second, "before midnight", "1=6-12-31 6, 2=6-12-31T22 5, 3=6-12-31T23 1", 6)
		orders.Add(4)
		after(8*time.Second, "after midnight", "1=6-12-31 10, 2=6-12-31T22 5, 3=6-12-31T23 5", 8)
		orders.Add(1)
		cancel()
		after(0, "the end", "1=6-12-31 10, 2=6-12-31T22 5, 3=6-12-31T23 5, 4=7-01-01 1, 5=7-01-01T00 1", 10)
		<-done
	})
}

// TestPlan: parts that are silent are joined, some at a time, one alone is not; what cannot be read is left alone.
func TestPlan(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	at := func(ago time.Duration) int64 { return now.Add(-ago).UnixMicro() }
	silent, fresh, mark := fmt.Sprintf("7 %d 2", at(3*time.Minute)), fmt.Sprintf("7 %d 2", at(time.Minute)), fmt.Sprintf("7 %d", at(30*time.Minute))
	many, long := map[string]string{}, map[string]string{}
	for i := range 60 {
		many[fmt.Sprintf("p%02d", i)] = silent
		long[fmt.Sprintf("p%02d", i)] = silent + strings.Repeat(" ", 50<<10)
	}
	for what, c := range map[string]struct {
		day         map[string]string
		sum         count
		parts, gone int
		more        bool
	}{
		"nothing":            {},
		"one alone":          {day: map[string]string{"a": silent}, sum: 2},
		"two":                {day: map[string]string{"a": silent, "b": silent}, sum: 4, parts: 2},
		"one more":           {day: map[string]string{"joined": "5", "b": silent}, sum: 7, parts: 1},
		"in use":             {day: map[string]string{"joined": "5", "b": fresh}, sum: 5},
		"marks":              {day: map[string]string{"joined": "5", "b": mark, "c": fmt.Sprintf("1 %d", at(61*time.Minute))}, sum: 5, gone: 1},
		"unreadable":         {day: map[string]string{"joined": "5", "b": "?", "c": "7 x 2", "d": fmt.Sprintf("7 %d x", at(time.Hour)), "e": silent}, sum: 7, parts: 1},
		"joined, unreadable": {day: map[string]string{"joined": "x", "b": silent, "c": silent}},
		"many":               {day: many, sum: 2 * joinParts, parts: joinParts, more: true},
		"long":               {day: long, sum: 4, parts: 2, more: true},
	} {
		j, more := Plan(FieldsOf(c.day), now, parseCount, addCounts)
		if len(j.Parts) != c.parts || len(j.Marks) != c.gone || more != c.more || c.parts > 0 && j.Sum != c.sum {
			t.Errorf("%s: got %d parts, %d marks, sum %d, more %v; want %+v", what, len(j.Parts), len(j.Marks), j.Sum, more, c)
		}
	}
}

func parseCount(text string) (count, bool) {
	i, err := strconv.Atoi(strings.TrimSpace(text))
	return count(i), err == nil
}

func addCounts(x, y count) count { return x + y }
