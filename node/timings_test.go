package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// TestTimings: a node tells of its last minute while it works, and nothing while it idles.
func TestTimings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(prometheus.NewRegistry())
		orders, mail := m.Queue("orders"), m.Queue("mail")
		orders.Handler.Observe(1) // before the first reading: of an earlier instance
		told := make(chan string, 1)
		pub := &timings{
			read: m.Durations,
			publish: func(_ context.Context, all map[string]queue.Timing) error {
				told <- fmt.Sprint(all["orders"].Handler.Count(), all["mail"].Handler.Count(), all["orders"].Wait.Count())
				return nil
			},
			failed: func(err error) { t.Error(err) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); pub.run(ctx) }()
		step := func(what, want string) {
			t.Helper()
			time.Sleep(timingsEvery)
			synctest.Wait()
			got := "nothing"
			select {
			case got = <-told:
			default:
			}
			if got != want {
				t.Errorf("%s: got %s, want %s", what, got, want)
			}
		}
		synctest.Wait()
		step("nothing handled", "nothing")
		orders.Handler.Observe(.002)
		orders.Wait.Observe(.002)
		step("one call", "1 0 1")
		step("idle", "nothing")
		for range 3 {
			mail.Handler.Observe(.002)
		}
		step("another queue", "1 3 1")
		step("idle", "nothing")
		step("idle", "nothing")
		orders.Handler.Observe(.002)
		step("the minute still has the first", "2 3 1")
		orders.Handler.Observe(.002)
		step("it is over", "2 3 0")
		cancel()
		<-done
	})
}

func TestTimingsFailures(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var failures []error
	calls := uint64(0)
	pub := &timings{
		read: func() (map[string]metrics.Durations, error) {
			if calls++; calls == 2 {
				return nil, broken
			}
			return map[string]metrics.Durations{"orders": {Handler: metrics.Buckets{Bounds: []float64{1}, Upto: []uint64{calls, calls}}}}, nil
		},
		publish: func(context.Context, map[string]queue.Timing) error { return broken },
		failed:  func(err error) { failures = append(failures, err) },
	}
	for range 3 {
		pub.see(t.Context())
	}
	if len(failures) != 2 || !errors.Is(failures[0], broken) || !errors.Is(failures[1], broken) {
		t.Errorf("got %v, want the failed reading and the failed publication", failures)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	bounds := []float64{1, 2}
	for _, c := range []struct {
		name      string
		then, now metrics.Buckets
		want      string
	}{
		{"from the start", metrics.Buckets{}, metrics.Buckets{Bounds: bounds, Upto: []uint64{1, 3, 6}, Sum: 9}, "{[1 2] [1 2 3] 9}"},
		{"nothing new", metrics.Buckets{Bounds: bounds, Upto: []uint64{1, 3, 6}, Sum: 9}, metrics.Buckets{Bounds: bounds, Upto: []uint64{1, 3, 6}, Sum: 9}, "{[1 2] [0 0 0] 0}"},
		{"some", metrics.Buckets{Bounds: bounds, Upto: []uint64{1, 3, 6}, Sum: 9}, metrics.Buckets{Bounds: bounds, Upto: []uint64{1, 4, 9}, Sum: 19}, "{[1 2] [0 1 2] 10}"},
	} {
		if got := fmt.Sprint(between(c.then, c.now)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}
