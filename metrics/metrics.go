package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what a node counts while it works.
type Metrics struct {
	processed, failed, redelivered *prometheus.CounterVec
	handler, wait                  *prometheus.HistogramVec
	owned, shards                  *prometheus.GaugeVec
	fenced                         *prometheus.CounterVec
	overdue                        *prometheus.CounterVec
	ownerless                      *prometheus.GaugeVec
	remaining                      atomic.Pointer[func() time.Duration]
	durations                      *prometheus.Registry // handler and wait once more, apart

	// Unreplicated counts claims that no replica had confirmed after 100 ms.
	Unreplicated prometheus.Counter

	Moves      prometheus.Counter   // shards gained or lost by this node
	Handover   prometheus.Histogram // seconds from the wish to release a shard to its release
	Unowned    prometheus.Histogram // seconds from the wish to claim a shard to its claim
	RaftLeader prometheus.Gauge     // 1 if this node leads the cluster
	Generation prometheus.Gauge     // Raft index of the applied assignment
}

// The names of the histograms that Durations reads.
const (
	handlerSeconds = "lowkiq_handler_seconds"
	waitSeconds    = "lowkiq_wait_seconds"
)

// Buckets from 0.1 ms to 30 min: an empty handler and one that nears the default
// handler_timeout both have a place.
var seconds = []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 100, 300, 1800}

// New makes the metrics and registers them.
func New(registry prometheus.Registerer) *Metrics {
	byQueue := []string{"queue"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	m := &Metrics{
		processed:   counter("lowkiq_jobs_processed_total", "Job ids handled and acknowledged.", byQueue...),
		failed:      counter("lowkiq_jobs_failed_total", "Failures of job ids.", byQueue...),
		redelivered: counter("lowkiq_jobs_redelivered_total", "Job ids that were in flight when their shard was claimed, and are handled again.", byQueue...),
		handler:     prometheus.NewHistogramVec(histogram(handlerSeconds, "Duration of handler calls.", seconds), byQueue),
		wait:        prometheus.NewHistogramVec(histogram(waitSeconds, "Time from a job's due time to its handler.", seconds), byQueue),
		owned:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lowkiq_shards_owned", Help: "Shards that this node works on."}, byQueue),
		shards:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lowkiq_queue_shards", Help: "Shards of the queue, whoever works on them."}, byQueue),
		fenced:      counter("lowkiq_fenced_total", "Operations that Redis refused because another instance holds the shard.", "op"),
		overdue:     counter("lowkiq_handler_overdue_total", "Handler calls that had not returned 30 s after their timeout.", byQueue...),
		ownerless: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lowkiq_shards_unowned",
			Help: "Shards that no live node owns, as the leader found; nothing is exported by others."}, byQueue),
		Unreplicated: prometheus.NewCounter(prometheus.CounterOpts{Name: "lowkiq_claims_unreplicated_total",
			Help: "Claims that no replica of Redis had confirmed after 100 ms."}),
		Moves:    prometheus.NewCounter(prometheus.CounterOpts{Name: "lowkiq_shard_moves_total", Help: "Shards that this node claimed or released."}),
		Handover: prometheus.NewHistogram(histogram("lowkiq_handover_seconds", "Time from the wish to release a shard to its release.", seconds)),
		Unowned:  prometheus.NewHistogram(histogram("lowkiq_unowned_seconds", "Time from the wish to claim a shard to its claim.", seconds)),

		RaftLeader: gauge("lowkiq_raft_leader", "1 if this node leads the cluster."),
		Generation: gauge("lowkiq_generation", "Index of the assignment that this node has applied."),
		durations:  prometheus.NewRegistry(),
	}
	m.durations.MustRegister(m.handler, m.wait)
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lowkiq_lease_remaining_seconds", Help: "Time until this node must stop working unless it renews its lease; 0 without a lease.",
	}, m.leaseRemaining)
	// Each operation from the start: increase() does not see the step from no series to 1.
	for _, op := range []string{"pop", "ack", "nack", "bury", "release"} {
		m.fenced.WithLabelValues(op)
	}
	registry.MustRegister(m.processed, m.failed, m.redelivered, m.handler, m.wait, m.owned, m.shards, m.fenced, m.overdue, m.ownerless, m.Unreplicated,
		m.Moves, m.Handover, m.Unowned, remaining, m.RaftLeader, m.Generation)
	return m
}

// LeaseRemaining says who knows how long the node may still work: it is asked for every
// scrape, as the time runs on while nothing is renewed.
func (m *Metrics) LeaseRemaining(ask func() time.Duration) { m.remaining.Store(&ask) }

func (m *Metrics) leaseRemaining() float64 {
	if ask := m.remaining.Load(); ask != nil {
		return max(0, (*ask)()).Seconds()
	}
	return 0
}

// Queue are the metrics of one queue, looked up once.
type Queue struct {
	Processed   prometheus.Counter
	Failed      prometheus.Counter
	Redelivered prometheus.Counter
	Overdue     prometheus.Counter
	Handler     prometheus.Observer
	Wait        prometheus.Observer
	Owned       prometheus.Gauge
	Shards      prometheus.Gauge
}

// Queue returns the metrics of a queue.
func (m *Metrics) Queue(name string) *Queue {
	return &Queue{
		Processed: m.processed.WithLabelValues(name), Failed: m.failed.WithLabelValues(name),
		Redelivered: m.redelivered.WithLabelValues(name), Overdue: m.overdue.WithLabelValues(name),
		Handler: m.handler.WithLabelValues(name), Wait: m.wait.WithLabelValues(name),
		Owned: m.owned.WithLabelValues(name), Shards: m.shards.WithLabelValues(name),
	}
}

// SetUnowned says how many shards of a queue the leader found without an owner.
func (m *Metrics) SetUnowned(queue string, shards int) {
	m.ownerless.WithLabelValues(queue).Set(float64(shards))
}

// NoUnowned ends what SetUnowned exports: this node does not lead.
func (m *Metrics) NoUnowned() { m.ownerless.Reset() }

// Fenced counts an operation that Redis refused: pop, ack, nack, bury or release.
func (m *Metrics) Fenced(op string) { m.fenced.WithLabelValues(op).Inc() }
