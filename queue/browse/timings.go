package browse

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue"

	"github.com/lowkiq/lowkiq/internal/redisdb"
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

// Histogram counts durations, in buckets that grow by 2^(1/8), 9 %.
type Histogram struct {
	// Counts are how many durations were more than 2^((k-1)/8) and at most 2^(k/8) seconds, by k.
	Counts map[int]uint64 `json:"n"`
	Sum    float64        `json:"s"` // seconds
}

// perDoubling is how many buckets double the duration.
const perDoubling = 8

// farthest bounds k: 2^50 s are longer than anything lasts, 2^-50 s shorter.
const farthest = 50 * perDoubling

// Count is how many durations were counted.
func (h Histogram) Count() (n uint64) {
	for _, count := range h.Counts {
		n += count
	}
	return n
}

// Quantile estimates below how many seconds a share p of the durations lies, 0 < p <= 1, NaN if
// there are none. It is off by 9 % at most, a bucket's width. Within a bucket durations are taken
// to be spread evenly on a logarithmic scale, as histogram_quantile of Prometheus does.
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

// add joins two histograms.
func (h Histogram) add(other Histogram) Histogram {
	sum := Histogram{Counts: maps.Clone(other.Counts), Sum: h.Sum + other.Sum}
	for k, n := range h.Counts {
		sum.Counts[k] += n
	}
	return sum
}

// Sound reports whether a histogram from Redis can be reckoned with.
func (h Histogram) Sound() bool {
	for k, n := range h.Counts {
		if k < -farthest || k > farthest || n == 0 {
			return false
		}
	}
	return h.Counts != nil
}

// PublishTimings shows the figures of an instance for a minute, by queue. Of more than 100
// queues it shows those with the most handler calls.
func PublishTimings(ctx context.Context, c *queue.Client, instance string, timings map[string]Timing) error {
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
	_, err = c.DB().Do(ctx, "publish timings of "+instance, "SET", c.DB().Keys.Timings(instance), value, "PX", timingsTTL.Milliseconds())
	return err
}

// Timings joins what the instances of the index have published, by queue. Queues that
// no node worked on in the last minute are left out.
func Timings(ctx context.Context, c *queue.Client) (map[string]Timing, error) {
	index, err := c.Leases().Identities(ctx)
	if err != nil || len(index) == 0 {
		return map[string]Timing{}, err
	}
	mget := []any{"MGET"}
	for _, instance := range index {
		mget = append(mget, c.DB().Keys.Timings(instance.Name))
	}
	reply, err := c.DB().Do(ctx, "read timings", mget...)
	if err != nil {
		return nil, err
	}
	all := map[string]Timing{}
	for _, value := range redisdb.List(reply) {
		var part map[string]Timing
		if json.Unmarshal(redisdb.Bytes(value), &part) != nil {
			continue // nothing published, or by a version that says it otherwise
		}
		for name, timing := range part {
			if timing.Handler.Sound() && timing.Wait.Sound() {
				all[name] = Timing{Handler: all[name].Handler.add(timing.Handler), Wait: all[name].Wait.add(timing.Wait)}
			}
		}
	}
	return all, nil
}
