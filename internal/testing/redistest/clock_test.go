package redistest

import (
	"testing"
	"time"
)

// TestClock checks that Redis's time and its expiries follow the clock, forward and back.
func TestClock(t *testing.T) {
	t.Parallel()
	s, clock := StartClocked(t)
	rdb := clientOf(s)
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "key", 1, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off   time.Duration
		there int64
	}{{0, 1}, {-time.Hour, 1}, {time.Hour, 0}, {0, 0}} {
		clock.Set(c.off)
		now, err := rdb.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Until(now); (got - c.off).Abs() > 10*time.Second {
			t.Errorf("got a clock that is wrong by %s, want %s", got, c.off)
		}
		if there, err := rdb.Exists(t.Context(), "key").Result(); err != nil || there != c.there {
			t.Errorf("wrong by %s: got exists %d, %v, want %d", c.off, there, err, c.there)
		}
	}
}
