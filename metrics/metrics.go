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
	owned                          *prometheus.GaugeVec
	fenced                         *prometheus.CounterVec
	overdue                        *prometheus.CounterVec
	remaining                      atomic.Pointer[func() time.Duration]

	Moves      prometheus.Counter   // shards gained or lost by this node
	Handover   prometheus.Histogram // seconds from the wish to release a shard to its release
	Unowned    prometheus.Histogram // seconds a shard this node claimed had no live owner
	RaftLeader prometheus.Gauge     // 1 if this node leads the cluster
	Generation prometheus.Gauge     // Raft index of the applied assignment
}

// Buckets from 0.1 ms to 100 s: an empty handler and a slow report both have a place.
var seconds = []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 100}

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
		handler:     prometheus.NewHistogramVec(histogram("lowkiq_handler_seconds", "Duration of handler calls.", seconds), byQueue),
		wait:        prometheus.NewHistogramVec(histogram("lowkiq_wait_seconds", "Time from a job's due time to its handler.", seconds), byQueue),
		owned:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lowkiq_shards_owned", Help: "Shards that this node works on."}, byQueue),
		fenced:      counter("lowkiq_fenced_total", "Operations that Redis refused because another instance holds the shard.", "op"),
		overdue:     counter("lowkiq_handler_overdue_total", "Handler calls that had not returned 30 s after their timeout.", byQueue...),
		Moves:       prometheus.NewCounter(prometheus.CounterOpts{Name: "lowkiq_shard_moves_total", Help: "Shards that this node claimed or released."}),
		Handover:    prometheus.NewHistogram(histogram("lowkiq_handover_seconds", "Time from the wish to release a shard to its release.", seconds)),
		Unowned:     prometheus.NewHistogram(histogram("lowkiq_unowned_seconds", "Time from the wish to claim a shard to its claim.", seconds)),

		RaftLeader: gauge("lowkiq_raft_leader", "1 if this node leads the cluster."),
		Generation: gauge("lowkiq_generation", "Index of the assignment that this node has applied."),
	}
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lowkiq_lease_remaining_seconds", Help: "Time until this node must stop working unless it renews its lease; 0 without a lease.",
	}, m.leaseRemaining)
	registry.MustRegister(m.processed, m.failed, m.redelivered, m.handler, m.wait, m.owned, m.fenced, m.overdue,
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
}

// Queue returns the metrics of a queue.
func (m *Metrics) Queue(name string) *Queue {
	return &Queue{
		Processed: m.processed.WithLabelValues(name), Failed: m.failed.WithLabelValues(name),
		Redelivered: m.redelivered.WithLabelValues(name), Overdue: m.overdue.WithLabelValues(name),
		Handler: m.handler.WithLabelValues(name), Wait: m.wait.WithLabelValues(name),
		Owned: m.owned.WithLabelValues(name),
	}
}

// Fenced counts an operation that Redis refused: pop, ack, nack, bury, release or claim.
func (m *Metrics) Fenced(op string) { m.fenced.WithLabelValues(op).Inc() }
