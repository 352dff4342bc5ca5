package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/timings"
)

// TestTimings checks that a node publishes its last minute while it works, and nothing while it is idle.
func TestTimings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(prometheus.NewRegistry())
		orders, mail := m.Queue("orders"), m.Queue("mail")
		orders.Handler.Observe(time.Second) // before the first reading: of an earlier instance
		told := make(chan string, 1)
		pub := &lastMinute{
			read: m.Durations,
			publish: func(_ context.Context, all map[string]timings.Minute) error {
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
			time.Sleep(timingsInterval)
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
		orders.Handler.Observe(2 * time.Millisecond)
		orders.Wait.Observe(2 * time.Millisecond)
		step("one call", "1 0 1")
		step("idle", "nothing")
		for range 3 {
			mail.Handler.Observe(2 * time.Millisecond)
		}
		step("another queue", "1 3 1")
		step("idle", "nothing")
		step("idle", "nothing")
		orders.Handler.Observe(2 * time.Millisecond)
		step("the minute still has the first", "2 3 1")
		orders.Handler.Observe(2 * time.Millisecond)
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
	pub := &lastMinute{
		read: func() map[string]metrics.Durations {
			calls++
			return map[string]metrics.Durations{"orders": {Handler: metrics.Buckets{Counts: map[int]uint64{0: calls}}}}
		},
		publish: func(context.Context, map[string]timings.Minute) error { return broken },
		failed:  func(err error) { failures = append(failures, err) },
	}
	for range 3 {
		pub.takeReading(t.Context())
	}
	if len(failures) != 2 || !errors.Is(failures[0], broken) || !errors.Is(failures[1], broken) {
		t.Errorf("got %v, want two failed publications", failures)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	early, late := metrics.Buckets{Counts: map[int]uint64{1: 1, 2: 2}, Sum: 9}, metrics.Buckets{Counts: map[int]uint64{1: 1, 2: 4, 5: 3}, Sum: 19}
	for _, c := range []struct {
		name      string
		then, now metrics.Buckets
		want      string
	}{
		{"from the start", metrics.Buckets{}, early, "{map[1:1 2:2] 9}"},
		{"nothing new", early, early, "{map[] 0}"},
		{"some", early, late, "{map[2:2 5:3] 10}"},
	} {
		if got := fmt.Sprint(bucketsBetween(c.then, c.now)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestPercentiles checks that shown percentiles are within 10 % of the truth, from 1 ms to 30 min.
func TestPercentiles(t *testing.T) {
	t.Parallel()
	for _, scale := range []time.Duration{time.Millisecond, 17 * time.Millisecond, 650 * time.Millisecond, 7 * time.Second, 4 * time.Minute, 30 * time.Minute} {
		m := metrics.New(prometheus.NewRegistry())
		q := m.Queue("orders")
		var all []time.Duration
		for i := range 1000 {
			all = append(all, scale+scale*time.Duration(i*i)/1e6) // most are short, the last takes twice as long as the first
			q.Handler.Observe(all[i])
		}
		got := bucketsBetween(metrics.Buckets{}, m.Durations()["orders"].Handler)
		for _, p := range []float64{.5, .95, .99} {
			truth := all[int(p*1000)-1].Seconds()
			if v := got.Quantile(p); math.Abs(v/truth-1) > .1 {
				t.Errorf("from %s on, p%v: got %v s, want %v s within 10 %%", scale, p*100, v, truth)
			}
		}
	}
}
