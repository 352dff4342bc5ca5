package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/timings"
)

// timingsInterval is the time between two publications of an instance that works.
const timingsInterval = 10 * time.Second

// lastMinute publishes how long this node's handlers took in the last minute, for all nodes. An idle node publishes nothing,
// and its last figures expire.
type lastMinute struct {
	read    func() map[string]metrics.Durations
	publish func(context.Context, map[string]timings.Minute) error
	failed  func(error)

	past []map[string]metrics.Durations // the readings of the last minute, oldest first
}

// readingsPerMinute is the number of readings in a minute.
const readingsPerMinute = int(time.Minute / timingsInterval)

// run takes readings until ctx ends.
func (m *lastMinute) run(ctx context.Context) {
	m.takeReading(ctx)
	every(ctx, timingsInterval, func() { m.takeReading(ctx) })
}

// takeReading takes a reading, and publishes if a handler call has ended since the last reading.
func (m *lastMinute) takeReading(ctx context.Context) {
	now := m.read()
	past := m.past
	m.past = append(past[max(0, len(past)-readingsPerMinute+1):], now)
	if len(past) == 0 || len(durationsSince(past[len(past)-1], now)) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timingsInterval/2)
	defer cancel()
	if err := m.publish(ctx, durationsSince(past[0], now)); err != nil {
		m.failed(err)
	}
}

// durationsSince returns the durations between two readings, by queue.
func durationsSince(then, now map[string]metrics.Durations) map[string]timings.Minute {
	all := map[string]timings.Minute{}
	for name, n := range now {
		handler := bucketsBetween(then[name].Handler, n.Handler)
		if handler.Count() > 0 {
			all[name] = timings.Minute{Handler: handler, Wait: bucketsBetween(then[name].Wait, n.Wait)}
		}
	}
	return all
}

// bucketsBetween returns the counts between two readings.
func bucketsBetween(then, now metrics.Buckets) timings.Histogram {
	h := timings.Histogram{Counts: map[int]uint64{}, Sum: now.Sum - then.Sum}
	for k, n := range now.Counts {
		if n > then.Counts[k] {
			h.Counts[k] = n - then.Counts[k]
		}
	}
	return h
}
