// Package timings answers one question: how long do handlers take, and how long do jobs wait? Each node publishes
// the histograms of its last minute under a key that expires. Any process can read them.
package timings

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// shownFor is how long a node's figures stay after it published them last.
const shownFor = time.Minute

// maxQueues is the maximum number of queues that a node publishes.
const maxQueues = 100

// Minute holds the durations of a queue in the last minute.
type Minute struct {
	Handler Histogram `json:"handler"` // duration of handler calls
	Wait    Histogram `json:"wait"`    // from a job's due time to its handler
}

// Histogram counts durations, in buckets that grow by 2^(1/8), 9 %.
type Histogram struct {
	// Counts has, by k, the number of durations above 2^((k-1)/8) and up to 2^(k/8) seconds.
	Counts map[int]uint64 `json:"n"`
	Sum    float64        `json:"s"` // seconds
}

// perDoubling is the number of buckets per doubling of the duration.
const perDoubling = 8

// maxExponent is the largest k, and its negative the smallest. No duration is longer than 2^50 s or shorter than
// 2^-50 s.
const maxExponent = 50 * perDoubling

// Count returns the number of durations.
func (h Histogram) Count() (n uint64) {
	for _, count := range h.Counts {
		n += count
	}
	return n
}

// Quantile estimates the p-quantile of the durations in seconds, 0 < p <= 1. It returns NaN if there are no
// durations. The error is at most 9 %, the width of a bucket. Within a bucket it takes the durations to be spread
// evenly on a logarithmic scale, as histogram_quantile of Prometheus does.
func (h Histogram) Quantile(p float64) float64 {
	rank, below := p*float64(h.Count()), 0.0
	bound := math.NaN()
	for _, k := range slices.Sorted(maps.Keys(h.Counts)) {
		in := float64(h.Counts[k])
		bound = math.Exp2(float64(k) / perDoubling)
		if below+in >= rank {
			return math.Exp2((float64(k-1) + max(0, rank-below)/in) / perDoubling)
		}
		below += in
	}
	return bound
}

// merge returns the sum of two histograms.
func (h Histogram) merge(other Histogram) Histogram {
	sum := Histogram{Counts: maps.Clone(other.Counts), Sum: h.Sum + other.Sum}
	for k, n := range h.Counts {
		sum.Counts[k] += n
	}
	return sum
}

// Sound reports whether a histogram from Redis is valid: it has counts, none of them 0, in buckets within bounds.
func (h Histogram) Sound() bool {
	for k, n := range h.Counts {
		if k < -maxExponent || k > maxExponent || n == 0 {
			return false
		}
	}
	return h.Counts != nil
}

// Publish publishes the figures of an instance for a minute, by queue. If there are more than 100 queues, it
// publishes those with the most handler calls.
func Publish(ctx context.Context, c *protocol.Client, instance string, minutes map[string]Minute) error {
	names := slices.SortedFunc(maps.Keys(minutes), func(x, y string) int {
		return cmp.Or(cmp.Compare(minutes[y].Handler.Count(), minutes[x].Handler.Count()), cmp.Compare(x, y))
	})
	shown := map[string]Minute{}
	for _, name := range names[:min(len(names), maxQueues)] {
		shown[name] = minutes[name]
	}
	value, err := json.Marshal(shown)
	if err != nil {
		return err
	}
	_, err = c.DB().Do(ctx, "publish timings of "+instance, "SET", c.DB().Keys.Timings(instance), value, "PX", shownFor.Milliseconds())
	return err
}

// Read returns the figures that all instances have published, by queue. Queues that no node worked on in the last
// minute are left out.
func Read(ctx context.Context, c *protocol.Client) (map[string]Minute, error) {
	index, err := c.Leases().Identities(ctx)
	if err != nil || len(index) == 0 {
		return map[string]Minute{}, err
	}
	mget := []any{"MGET"}
	for _, instance := range index {
		mget = append(mget, c.DB().Keys.Timings(instance.Name))
	}
	reply, err := c.DB().Do(ctx, "read timings", mget...)
	if err != nil {
		return nil, err
	}
	all := map[string]Minute{}
	for _, value := range redisdb.List(reply) {
		var part map[string]Minute
		if json.Unmarshal(redisdb.Bytes(value), &part) != nil {
			continue // nothing is published, or by a release with another form
		}
		for name, timing := range part {
			if timing.Handler.Sound() && timing.Wait.Sound() {
				all[name] = Minute{Handler: all[name].Handler.merge(timing.Handler), Wait: all[name].Wait.merge(timing.Wait)}
			}
		}
	}
	return all, nil
}
