package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"
)

// How long handlers take and jobs wait, told by the nodes and read by anyone: each node
// publishes the histograms of its last minute under a key that expires by itself.

// timingsTTL is how long a node's figures are shown after it published them last.
const timingsTTL = time.Minute

// timingsQueues is how many queues a node publishes, those with the most calls.
const timingsQueues = 100

// Timing is about one queue and the last minute.
type Timing struct {
	Handler Histogram `json:"handler"` // duration of handler calls
	Wait    Histogram `json:"wait"`    // from a job's due time to its handler
}

// Histogram counts durations.
type Histogram struct {
	Bounds []float64 `json:"le"` // upper bounds of the buckets, seconds, rising
	Counts []uint64  `json:"n"`  // in each bucket, not in those below; one more than bounds, without a limit
	Sum    float64   `json:"s"`  // seconds
}

// Count is how many durations were counted.
func (h Histogram) Count() (n uint64) {
	for _, count := range h.Counts {
		n += count
	}
	return n
}

// Quantile estimates below how many seconds a share p of the durations lies, 0 < p <= 1,
// NaN if there are none. It reckons as histogram_quantile of Prometheus does: durations
// are spread evenly within their bucket, the lowest of which begins at 0; what lies above
// the highest bound is said to be at it.
func (h Histogram) Quantile(p float64) float64 {
	total := h.Count()
	if total == 0 || len(h.Bounds) == 0 {
		return math.NaN()
	}
	rank := p * float64(total)
	below, low := 0.0, 0.0
	for i, bound := range h.Bounds {
		in := float64(h.Counts[i])
		if in > 0 && below+in >= rank {
			return low + (bound-low)*max(0, rank-below)/in
		}
		below, low = below+in, bound
	}
	return low
}

// add joins two histograms. Nodes of two versions may have other buckets: then the result
// has the bounds of both.
func (h Histogram) add(other Histogram) Histogram {
	if len(h.Counts) == 0 {
		return other
	}
	sum := Histogram{Bounds: h.Bounds, Sum: h.Sum + other.Sum}
	if !slices.Equal(h.Bounds, other.Bounds) {
		sum.Bounds = slices.Concat(h.Bounds, other.Bounds)
		slices.Sort(sum.Bounds)
		sum.Bounds = slices.Compact(sum.Bounds)
	}
	sum.Counts = make([]uint64, len(sum.Bounds)+1)
	for _, part := range []Histogram{h, other} {
		for i, n := range part.Counts {
			place := len(sum.Bounds)
			if i < len(part.Bounds) {
				place, _ = slices.BinarySearch(sum.Bounds, part.Bounds[i])
			}
			sum.Counts[place] += n
		}
	}
	return sum
}

// sound reports whether a histogram from Redis can be reckoned with.
func (h Histogram) sound() bool {
	return len(h.Bounds) > 0 && len(h.Counts) == len(h.Bounds)+1 && slices.IsSorted(h.Bounds)
}

// PublishTimings shows the figures of an instance for a minute, by queue. Of more than 100
// queues it shows those with the most handler calls.
func (c *Client) PublishTimings(ctx context.Context, instance string, timings map[string]Timing) error {
	names := slices.SortedFunc(maps.Keys(timings), func(x, y string) int {
		return cmp.Or(cmp.Compare(timings[y].Handler.Count(), timings[x].Handler.Count()), cmp.Compare(x, y))
	})
	shown := map[string]Timing{}
	for _, name := range names[:min(len(names), timingsQueues)] {
		shown[name] = timings[name]
	}
	value, err := json.Marshal(shown)
	if err != nil {
		return err
	}
	return c.explain("publish timings of "+instance, c.rdb.Set(ctx, c.timingsKey(instance), value, timingsTTL).Err())
}

// Timings joins what the instances of the index have published, by queue. Queues that
// nobody worked on in the last minute are left out.
func (c *Client) Timings(ctx context.Context) (map[string]Timing, error) {
	index, err := c.Index(ctx)
	if err != nil || len(index) == 0 {
		return map[string]Timing{}, err
	}
	keys := make([]string, len(index))
	for i, instance := range index {
		keys[i] = c.timingsKey(instance.Name)
	}
	values, err := c.rdb.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, c.explain("read timings", err)
	}
	all := map[string]Timing{}
	for _, value := range values {
		var part map[string]Timing
		if json.Unmarshal(bytesIn(value), &part) != nil {
			continue // nothing published, or by a version that says it otherwise
		}
		for name, timing := range part {
			if timing.Handler.sound() && timing.Wait.sound() {
				all[name] = Timing{Handler: all[name].Handler.add(timing.Handler), Wait: all[name].Wait.add(timing.Wait)}
			}
		}
	}
	return all, nil
}
