package metrics

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestDurations(t *testing.T) {
	m := New(prometheus.NewRegistry())
	q := m.Queue("orders")
	for _, seconds := range []float64{.0001, .002, .002, 200} {
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
		{"handler", all["orders"].Handler, "[1 1 1 3 3 3 3 3 3 3 3 3 3 4] 200.0041"},
		{"wait", all["orders"].Wait, "[0 0 0 0 0 0 0 0 0 0 1 1 1 1] 7"},
		{"nothing yet", all["mail"].Handler, "[0 0 0 0 0 0 0 0 0 0 0 0 0 0] 0"},
	} {
		if got := fmt.Sprint(c.got.Upto, c.got.Sum); got != c.want || fmt.Sprint(c.got.Bounds) != fmt.Sprint(seconds) {
			t.Errorf("%s: got %s over %v, want %s over %v", c.name, got, c.got.Bounds, c.want, seconds)
		}
	}
}
