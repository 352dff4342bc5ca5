package clock

import (
	"testing"
	"time"
)

// TestRemote checks that the estimate goes on from the last reading, whatever the wall clock says.
func TestRemote(t *testing.T) {
	t.Parallel()
	var r Remote
	if now := r.Now(); !now.IsZero() {
		t.Errorf("got %s before the first reading, want a zero time", now)
	}
	read, behind := SinceBoot(), time.Now().Add(-time.Hour)
	r.Set(behind)
	r.Set(time.Time{})
	if late := r.At(read + time.Minute).Sub(behind.Add(time.Minute)); late > 0 || late < -10*time.Second {
		t.Errorf("a minute after the reading the estimate is off by %s", late)
	}
	if ahead := r.Now().Sub(behind); ahead < 0 || ahead > 10*time.Second {
		t.Errorf("the estimate is %s after the reading, want no jump", ahead)
	}
}
