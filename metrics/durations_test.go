package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestDurations(t *testing.T) {
	m := New(prometheus.NewRegistry())
	q := m.Queue("orders")
	for _, seconds := range []float64{.0001, .002, .002, 200, 2000} {
		q.Handler.Observe(seconds)
	}
	q.Wait.Observe(7)
	m.Queue("mail")
	all, err := m.Durations()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		got  Buckets
		want string
	}{
		{"handler", all["orders"].Handler, "[1 1 1 3 3 3 3 3 3 3 3 3 3 4 4 5] 2200.0041"},
		{"wait", all["orders"].Wait, "[0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1] 7"},
		{"nothing yet", all["mail"].Handler, "[0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0] 0"},
	} {
		if got := fmt.Sprint(c.got.Upto, c.got.Sum); got != c.want || fmt.Sprint(c.got.Bounds) != fmt.Sprint(seconds) {
			t.Errorf("%s: got %s over %v, want %s over %v", c.name, got, c.got.Bounds, c.want, seconds)
		}
	}
}

// Operators are told to look whether handlers near their timeout, which is 30 min by
// default: all that is longer than the last bound looks the same.
func TestBoundsReachTheDefaultTimeout(t *testing.T) {
	if last := seconds[len(seconds)-1]; last < (30 * time.Minute).Seconds() {
		t.Errorf("the last bound is %v s, want at least 30 min", last)
	}
}
