package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the metrics that a node updates while it works.
type Metrics struct {
	counters   map[*Metric]*prometheus.CounterVec
	gauges     map[*Metric]*prometheus.GaugeVec
	histograms map[*Metric]*histograms
	retried    *prometheus.CounterVec // for the figures of days; not exported
	remaining  atomic.Pointer[func() time.Duration]

	// Unreplicated counts claims that no replica had confirmed after 100 ms.
	Unreplicated prometheus.Counter

	Moves      prometheus.Counter  // shards gained or lost by this node
	Handover   prometheus.Observer // seconds from the wish to release a shard to its release
	Unowned    prometheus.Observer // seconds from the wish to claim a shard to its claim
	RaftLeader prometheus.Gauge    // 1 if this node leads the cluster
	Generation prometheus.Gauge    // Raft index of the applied assignment

	RecurringLate prometheus.Gauge // seconds that the oldest tick of a recurring job has been due
}

// New returns the metrics and registers them.
func New(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		counters: map[*Metric]*prometheus.CounterVec{}, gauges: map[*Metric]*prometheus.GaugeVec{}, histograms: map[*Metric]*histograms{},
		retried: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "retried"}, []string{"queue"}),
	}
	for _, of := range table {
		switch {
		case of.scraped:
		case of.Type == TypeCounter:
			m.counters[of] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: of.Name, Help: of.Help}, of.Labels)
			registry.MustRegister(m.counters[of])
		case of.Type == TypeGauge:
			m.gauges[of] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: of.Name, Help: of.Help}, of.Labels)
			registry.MustRegister(m.gauges[of])
		default:
			m.histograms[of] = newHistograms(of)
			registry.MustRegister(m.histograms[of].vec)
		}
	}
	m.Unreplicated, m.Moves = m.counters[unreplicated].WithLabelValues(), m.counters[shardMoves].WithLabelValues()
	m.Handover, m.Unowned = m.histograms[handoverSeconds].vec.WithLabelValues(), m.histograms[unownedSeconds].vec.WithLabelValues()
	m.RaftLeader, m.Generation = m.gauges[raftLeader].WithLabelValues(), m.gauges[generation].WithLabelValues()
	m.RecurringLate = m.gauges[recurringLate].WithLabelValues()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: leaseRemaining.Name, Help: leaseRemaining.Help}, m.leaseRemaining))
	// Each operation has a series from the start, because increase() does not see the step from no
	// series to 1.
	for _, op := range []string{"pop", "ack", "nack", "bury", "note", "release"} {
		m.counters[fenced].WithLabelValues(op)
	}
	return m
}

// NoRaft removes the metric of the leader, because the node is in no cluster.
func (m *Metrics) NoRaft() { m.gauges[raftLeader].DeleteLabelValues() }

// RecurringMissed counts ticks of recurring jobs that were left out or refused.
func (m *Metrics) RecurringMissed(name string, n int64) {
	m.counters[recurringMissed].WithLabelValues(name).Add(float64(n))
}

// RefusedFollowUp counts a follow-up that was dropped. The reason is hops, size or invalid.
func (m *Metrics) RefusedFollowUp(queue, reason string) {
	m.counters[outgoingRefused].WithLabelValues(queue, reason).Inc()
}

// SetReshard sets the figures of a reshard under way. left is the number of jobs that have not moved. took is the time since
// the reshard began or, once jobs move, since their first move.
func (m *Metrics) SetReshard(queue string, left int64, took time.Duration) {
	m.gauges[reshardLeft].WithLabelValues(queue).Set(float64(left))
	m.gauges[reshardSeconds].WithLabelValues(queue).Set(took.Seconds())
}

// EndReshard removes the figures of a reshard.
func (m *Metrics) EndReshard(queue string) {
	m.gauges[reshardLeft].DeleteLabelValues(queue)
	m.gauges[reshardSeconds].DeleteLabelValues(queue)
}

// SetRedisMemory sets the used memory of Redis and its limit, in bytes. A limit of 0 is none.
func (m *Metrics) SetRedisMemory(used, limit int64) {
	m.gauges[redisMemoryUsed].WithLabelValues().Set(float64(used))
	m.gauges[redisMemoryMax].WithLabelValues().Set(float64(limit))
}

// NoRedisMemory removes the series of SetRedisMemory, because Redis does not tell its memory.
func (m *Metrics) NoRedisMemory() {
	m.gauges[redisMemoryUsed].Reset()
	m.gauges[redisMemoryMax].Reset()
}

// LeaseRemaining sets the function that returns how long the node may still work. It is called for
// every scrape, because the time passes even if nothing is renewed.
func (m *Metrics) LeaseRemaining(ask func() time.Duration) { m.remaining.Store(&ask) }

func (m *Metrics) leaseRemaining() float64 {
	if ask := m.remaining.Load(); ask != nil {
		return max(0, (*ask)()).Seconds()
	}
	return 0
}

// Queue has the metrics of a queue.
type Queue struct {
	Processed   prometheus.Counter
	Failed      prometheus.Counter
	Retried     prometheus.Counter // failures of ids that will be retried; not exported
	Buried      prometheus.Counter
	Trimmed     prometheus.Counter // payloads forgotten by the morgue's rule
	Expired     prometheus.Counter // payloads that expired before a handler got them
	Postponed   Postponed
	HookErrors  prometheus.Counter // failed calls of hooks
	Redelivered prometheus.Counter
	Overdue     prometheus.Counter
	Handler     *Histogram
	Wait        *Histogram
	Owned       prometheus.Gauge
	Shards      prometheus.Gauge
	Rules       prometheus.Gauge // rules set at run time

	ready       func() prometheus.Gauge
	processWait func() *Histogram
}

// Postponed counts ids that were postponed without a failure.
type Postponed struct {
	Handler prometheus.Counter // the handler answered to wait
	Group   prometheus.Counter // their group is at its limit
	Person  prometheus.Counter // a person holds them or has cancelled their run
}

// Ready returns the gauge of whether the queue's handler can work. It is exported after the first
// call.
func (q *Queue) Ready() prometheus.Gauge { return q.ready() }

// ProcessWait returns the histogram of how long batches wait for a free process of their handler.
// It is exported after the first call.
func (q *Queue) ProcessWait() *Histogram { return q.processWait() }

// Queue returns the metrics of a queue.
func (m *Metrics) Queue(name string) *Queue {
	counter := func(of *Metric, labels ...string) prometheus.Counter {
		return m.counters[of].WithLabelValues(append([]string{name}, labels...)...)
	}
	gauge := func(of *Metric) prometheus.Gauge { return m.gauges[of].WithLabelValues(name) }
	return &Queue{
		Processed: counter(processed), Failed: counter(failed), Retried: m.retried.WithLabelValues(name),
		Buried: counter(buried), Redelivered: counter(redelivered), Overdue: counter(overdue),
		Trimmed: counter(trimmed), Expired: counter(expired), HookErrors: counter(hookErrors),
		Postponed: Postponed{Handler: counter(postponed, "handler"), Group: counter(postponed, "group"), Person: counter(postponed, "person")},
		Handler:   m.histograms[handlerSeconds].forQueue(name), Wait: m.histograms[waitSeconds].forQueue(name),
		Owned: gauge(shardsOwned), Shards: gauge(queueShards), Rules: gauge(rulesInForce),
		ready:       func() prometheus.Gauge { return gauge(handlerReady) },
		processWait: func() *Histogram { return m.histograms[processWaitSeconds].forQueue(name) },
	}
}

// SetUnowned sets how many shards of a queue the leader found without an owner, and whether any
// node handles the queue.
func (m *Metrics) SetUnowned(queue string, shards int, handled bool) {
	m.gauges[shardsUnowned].WithLabelValues(queue).Set(float64(shards))
	unhandled := 1.0
	if handled {
		unhandled = 0
	}
	m.gauges[queueUnhandled].WithLabelValues(queue).Set(unhandled)
}

// NoUnowned removes the series of SetUnowned, because this node does not lead.
func (m *Metrics) NoUnowned() {
	m.gauges[shardsUnowned].Reset()
	m.gauges[queueUnhandled].Reset()
}

// ForgetQueue removes the series of SetUnowned for a queue that is no longer registered.
func (m *Metrics) ForgetQueue(queue string) {
	m.gauges[shardsUnowned].DeleteLabelValues(queue)
	m.gauges[queueUnhandled].DeleteLabelValues(queue)
}

// Fenced counts an operation that Redis refused: pop, ack, nack, bury, note or release.
func (m *Metrics) Fenced(op string) { m.counters[fenced].WithLabelValues(op).Inc() }
