package metrics

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// Durations are counted in buckets that grow by 2^(1/8), 9 %: bucket k is for those of more than
// 2^((k-1)/8) and at most 2^(k/8) seconds. These are the buckets of a native histogram of
// Prometheus with schema 3. What takes 1 us and less is in the first one, what takes half a year
// and more in the last.
const (
	schema      = 3
	perDoubling = 1 << schema
	firstBucket = -20 * perDoubling
	lastBucket  = 24 * perDoubling
)

// classicBounds are the buckets of a scraper that reads no native histograms: percentiles
// from these are off by up to a half.
var classicBounds = []float64{.0001, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1800}

// fractions are the bounds of the buckets of one doubling, as math.Frexp cuts numbers.
var fractions = func() (f [perDoubling]float64) {
	for i := range f {
		f[i] = math.Exp2(float64(i)/perDoubling - 1)
	}
	return f
}()

// Histogram counts durations. It is exported with native and classic buckets. To observe costs
// four additions: it is done for each job.
type Histogram struct {
	desc    *prometheus.Desc
	labels  []*dto.LabelPair
	buckets [lastBucket - firstBucket + 1]atomic.Uint64
	classic [32]atomic.Uint64 // by index in classicBounds; one more: beyond
	sum     atomic.Int64      // nanoseconds
	squares atomic.Uint64     // bits of a float64: the sum of the squares, in square seconds
}

// Observe counts a duration; one below zero counts as zero.
func (h *Histogram) Observe(d time.Duration) {
	seconds := max(0, d.Seconds())
	// First the bucket: a reader that takes the classic ones first never finds more there than in
	// all.
	h.buckets[bucketOf(seconds)-firstBucket].Add(1)
	classic, _ := slices.BinarySearch(classicBounds, seconds)
	h.classic[classic].Add(1)
	h.sum.Add(int64(max(0, d)))
	for square := seconds * seconds; ; {
		was := h.squares.Load()
		if h.squares.CompareAndSwap(was, math.Float64bits(math.Float64frombits(was)+square)) {
			return
		}
	}
}

func bucketOf(seconds float64) int {
	fraction, exponent := math.Frexp(seconds)
	k := (exponent - 1) * perDoubling
	for _, bound := range fractions {
		if bound >= fraction {
			break
		}
		k++
	}
	if seconds == 0 {
		return firstBucket
	}
	return min(max(k, firstBucket), lastBucket)
}

// Desc implements prometheus.Metric.
func (h *Histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric.
func (h *Histogram) Write(m *dto.Metric) error {
	classic := h.writeClassic()
	counts := h.read()
	native := dto.Histogram{
		Schema: proto.Int32(schema), ZeroThreshold: proto.Float64(math.Exp2(firstBucket / perDoubling)), ZeroCount: proto.Uint64(counts.Counts[firstBucket]),
	}
	all := uint64(0)
	for _, n := range counts.Counts {
		all += n
	}
	delete(counts.Counts, firstBucket)
	writeNative(&native, counts.Counts)
	native.Bucket, native.SampleCount, native.SampleSum = classic, proto.Uint64(all), proto.Float64(counts.Sum)
	m.Label, m.Histogram = h.labels, &native
	return nil
}

func (h *Histogram) writeClassic() (buckets []*dto.Bucket) {
	upto := uint64(0)
	for i, bound := range classicBounds {
		upto += h.classic[i].Load()
		buckets = append(buckets, &dto.Bucket{UpperBound: proto.Float64(bound), CumulativeCount: proto.Uint64(upto)})
	}
	return buckets
}

// writeNative writes counts as Prometheus wants them: spans of buckets side by side, and the
// differences between the counts of one bucket and the next.
func writeNative(to *dto.Histogram, counts map[int]uint64) {
	next, before := 0, int64(0) // the bucket after the last span, and the last count
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		if spans := len(to.PositiveSpan); spans > 0 && k == next {
			*to.PositiveSpan[spans-1].Length++
		} else {
			to.PositiveSpan = append(to.PositiveSpan, &dto.BucketSpan{Offset: proto.Int32(int32(k - next)), Length: proto.Uint32(1)})
		}
		to.PositiveDelta = append(to.PositiveDelta, int64(counts[k])-before)
		next, before = k+1, int64(counts[k])
	}
}

// read returns what was counted so far.
func (h *Histogram) read() Buckets {
	b := Buckets{Counts: map[int]uint64{}}
	for i := range h.buckets {
		if n := h.buckets[i].Load(); n > 0 {
			b.Counts[i+firstBucket] = n
		}
	}
	b.Sum = time.Duration(h.sum.Load()).Seconds()
	b.Squares = math.Float64frombits(h.squares.Load())
	return b
}

// histograms are those of one name, one for each queue.
type histograms struct {
	desc *prometheus.Desc

	mu sync.Mutex
	of map[string]*Histogram // by queue; guarded by mu
}

func newHistograms(name, help string) *histograms {
	return &histograms{desc: prometheus.NewDesc(name, help, []string{"queue"}, nil), of: map[string]*Histogram{}}
}

// queue returns the histogram of a queue.
func (all *histograms) queue(name string) *Histogram {
	all.mu.Lock()
	defer all.mu.Unlock()
	h := all.of[name]
	if h == nil {
		h = &Histogram{desc: all.desc, labels: []*dto.LabelPair{{Name: proto.String("queue"), Value: proto.String(name)}}}
		all.of[name] = h
	}
	return h
}

func (all *histograms) snapshot() map[string]*Histogram {
	all.mu.Lock()
	defer all.mu.Unlock()
	return maps.Clone(all.of)
}

// Describe implements prometheus.Collector.
func (all *histograms) Describe(ch chan<- *prometheus.Desc) { ch <- all.desc }

// Collect implements prometheus.Collector.
func (all *histograms) Collect(ch chan<- prometheus.Metric) {
	for _, h := range all.snapshot() {
		ch <- h
	}
}

// Durations are a queue's histograms since the process began.
type Durations struct{ Handler, Wait Buckets }

// Buckets are a histogram as it is scraped.
type Buckets struct {
	// Counts are how many durations were more than 2^((k-1)/8) and at most 2^(k/8) seconds, by k;
	// none is 0.
	Counts  map[int]uint64
	Sum     float64 // seconds
	Squares float64 // sum of the squares, in square seconds
}

// Durations reads what was observed of each queue.
func (m *Metrics) Durations() map[string]Durations {
	all := map[string]Durations{}
	for name, h := range m.handler.snapshot() {
		all[name] = Durations{Handler: h.read(), Wait: m.wait.queue(name).read()}
	}
	return all
}

// Totals are what was counted of a queue since the process began.
type Totals struct {
	Durations
	Processed, Failed, Retried, Buried uint64
}

// Totals reads what was counted of each queue.
func (m *Metrics) Totals() map[string]Totals {
	all := map[string]Totals{}
	for name, durations := range m.Durations() {
		all[name] = Totals{
			Durations: durations, Processed: countOf(m.processed, name), Failed: countOf(m.failed, name),
			Retried: countOf(m.retried, name), Buried: countOf(m.buried, name),
		}
	}
	return all
}

func countOf(all *prometheus.CounterVec, queue string) uint64 {
	var m dto.Metric
	if all.WithLabelValues(queue).Write(&m) != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
