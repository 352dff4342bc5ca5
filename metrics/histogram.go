package metrics

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Durations are counted in buckets that grow by 2^(1/8), which is 9 %. Bucket k counts durations of
// more than 2^((k-1)/8) and at most 2^(k/8) seconds. These are the buckets of a native histogram
// with schema 3. Durations of at most 1 us, 2^-20 s, share zeroBucket.
const (
	bucketFactor = 1.1 // makes schema 3
	zeroBucket   = -20 * 8
)

// classicBounds are the buckets for a scraper without native histograms. Percentiles from these are
// off by up to a half.
var classicBounds = []float64{.0001, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1800}

// Histogram counts durations. It is exported with native and classic buckets.
type Histogram struct {
	prometheus.Histogram

	squares atomic.Uint64 // bits of a float64: the sum of the squares, in square seconds
}

// Observe counts a duration. A duration below zero counts as zero.
func (h *Histogram) Observe(d time.Duration) {
	seconds := max(0, d.Seconds())
	h.Histogram.Observe(seconds)
	for {
		was := h.squares.Load()
		if h.squares.CompareAndSwap(was, math.Float64bits(math.Float64frombits(was)+seconds*seconds)) {
			return
		}
	}
}

// readBuckets returns the counts so far.
func (h *Histogram) readBuckets() Buckets {
	var m dto.Metric
	if h.Histogram.Write(&m) != nil {
		return Buckets{}
	}
	native := m.GetHistogram()
	b := Buckets{Counts: map[int]uint64{}, Sum: native.GetSampleSum(), Squares: math.Float64frombits(h.squares.Load())}
	if n := native.GetZeroCount(); n > 0 {
		b.Counts[zeroBucket] = n
	}
	// Spans are adjacent buckets. Deltas are the differences between the counts of successive
	// buckets.
	k, n, deltas := 0, int64(0), native.GetPositiveDelta()
	for _, span := range native.GetPositiveSpan() {
		k += int(span.GetOffset())
		for range span.GetLength() {
			n += deltas[0]
			if n > 0 {
				b.Counts[k] = uint64(n)
			}
			k, deltas = k+1, deltas[1:]
		}
	}
	return b
}

// histograms has the histograms of a metric by queue.
type histograms struct {
	vec *prometheus.HistogramVec

	mu sync.Mutex
	of map[string]*Histogram // by queue; guarded by mu
}

func newHistograms(m *Metric) *histograms {
	return &histograms{of: map[string]*Histogram{}, vec: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: m.Name, Help: m.Help, Buckets: classicBounds, NativeHistogramBucketFactor: bucketFactor, NativeHistogramZeroThreshold: math.Exp2(zeroBucket / 8),
	}, m.Labels)}
}

// forQueue returns the histogram of a queue.
func (all *histograms) forQueue(name string) *Histogram {
	all.mu.Lock()
	defer all.mu.Unlock()
	h := all.of[name]
	if h == nil {
		h = &Histogram{Histogram: all.vec.WithLabelValues(name).(prometheus.Histogram)}
		all.of[name] = h
	}
	return h
}

func (all *histograms) snapshot() map[string]*Histogram {
	all.mu.Lock()
	defer all.mu.Unlock()
	return maps.Clone(all.of)
}

// Durations has the histograms of a queue since the process began.
type Durations struct{ Handler, Wait Buckets }

// Buckets is a histogram as Prometheus scrapes it.
type Buckets struct {
	// Counts has the number of durations of more than 2^((k-1)/8) and at most 2^(k/8) seconds, by
	// k. No number is 0.
	Counts  map[int]uint64
	Sum     float64 // seconds
	Squares float64 // sum of the squares, in square seconds
}

// Durations returns the histograms of each queue.
func (m *Metrics) Durations() map[string]Durations {
	all := map[string]Durations{}
	for name, h := range m.histograms[handlerSeconds].snapshot() {
		all[name] = Durations{Handler: h.readBuckets(), Wait: m.histograms[waitSeconds].forQueue(name).readBuckets()}
	}
	return all
}

// Totals has the counts of a queue since the process began.
type Totals struct {
	Durations
	Processed, Failed, Retried, Buried uint64
}

// Totals returns the counts of each queue.
func (m *Metrics) Totals() map[string]Totals {
	all := map[string]Totals{}
	for name, durations := range m.Durations() {
		all[name] = Totals{
			Durations: durations, Processed: countOf(m.counters[processed], name), Failed: countOf(m.counters[failed], name),
			Retried: countOf(m.retried, name), Buried: countOf(m.counters[buried], name),
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
