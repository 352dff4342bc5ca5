package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// timingsEvery is how often an instance that works publishes how long its handlers took.
const timingsEvery = 10 * time.Second

// timings tells all nodes of this one's last minute. An idle node publishes nothing, and
// what it published last expires.
type timings struct {
	read    func() map[string]metrics.Durations
	publish func(context.Context, map[string]browse.Timing) error
	failed  func(error)

	past []map[string]metrics.Durations // the readings of the last minute, oldest first
}

// timingsSpan is how many readings make the minute.
const timingsSpan = int(time.Minute / timingsEvery)

// run publishes until ctx ends.
func (t *timings) run(ctx context.Context) {
	ticker := time.NewTicker(timingsEvery)
	defer ticker.Stop()
	t.see(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.see(ctx)
		}
	}
}

// see takes one reading, and publishes if something was handled since the last one.
func (t *timings) see(ctx context.Context) {
	now := t.read()
	past := t.past
	t.past = append(past[max(0, len(past)-timingsSpan+1):], now)
	if len(past) == 0 || len(since(past[len(past)-1], now)) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timingsEvery/2)
	defer cancel()
	if err := t.publish(ctx, since(past[0], now)); err != nil {
		t.failed(err)
	}
}

// since is what was handled between two readings, by queue.
func since(then, now map[string]metrics.Durations) map[string]browse.Timing {
	all := map[string]browse.Timing{}
	for name, n := range now {
		handler := between(then[name].Handler, n.Handler)
		if handler.Count() > 0 {
			all[name] = browse.Timing{Handler: handler, Wait: between(then[name].Wait, n.Wait)}
		}
	}
	return all
}

// between is what was counted from one reading to the next.
func between(then, now metrics.Buckets) browse.Histogram {
	h := browse.Histogram{Counts: map[int]uint64{}, Sum: now.Sum - then.Sum}
	for k, n := range now.Counts {
		if n > then.Counts[k] {
			h.Counts[k] = n - then.Counts[k]
		}
	}
	return h
}
