package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are what a node counts while it works.
type Metrics struct {
	retried                      *prometheus.CounterVec // for the figures of days; not exported
	processed, failed            *prometheus.CounterVec
	redelivered, buried          *prometheus.CounterVec
	trimmed, expired, hookErrors *prometheus.CounterVec
	postponed                    *prometheus.CounterVec
	handler, wait                *histograms
	processWait                  *histograms
	owned, shards                *prometheus.GaugeVec
	fenced                       *prometheus.CounterVec
	overdue                      *prometheus.CounterVec
	missed                       *prometheus.CounterVec
	ownerless                    *prometheus.GaugeVec
	rules                        *prometheus.GaugeVec
	unhandled                    *prometheus.GaugeVec
	ready                        *prometheus.GaugeVec
	remaining                    atomic.Pointer[func() time.Duration]

	// Unreplicated counts claims that no replica had confirmed after 100 ms.
	Unreplicated prometheus.Counter

	Moves      prometheus.Counter   // shards gained or lost by this node
	Handover   prometheus.Histogram // seconds from the wish to release a shard to its release
	Unowned    prometheus.Histogram // seconds from the wish to claim a shard to its claim
	RaftLeader prometheus.Gauge     // 1 if this node leads the cluster
	Generation prometheus.Gauge     // Raft index of the applied assignment

	RecurringLate prometheus.Gauge // seconds for which the oldest tick of what recurs has been due
}

// New makes the metrics and registers them.
func New(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"queue"})
	}
	rare := func(name, help string) prometheus.Histogram {
		return factory.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: classicBounds, NativeHistogramBucketFactor: 1.1})
	}
	often := func(name, help string) *histograms {
		all := newHistograms(name, help)
		registry.MustRegister(all)
		return all
	}
	m := &Metrics{
		processed:   counter("lowkiq_jobs_processed_total", "Job ids handled and acknowledged.", "queue"),
		failed:      counter("lowkiq_jobs_failed_total", "Failures of job ids.", "queue"),
		buried:      counter("lowkiq_jobs_buried_total", "Job ids sent to the morgue by their handlers' failures: out of retries, given up by the handler, or with the process killed too often.", "queue"),
		expired:     counter("lowkiq_expired_total", "Payloads whose time was over before a handler had them.", "queue"),
		hookErrors:  counter("lowkiq_hook_errors_total", "Calls of hooks that failed, timed out or panicked.", "queue"),
		postponed:   counter("lowkiq_jobs_postponed_total", "Job ids put off without a failure: by their handler, by their group, or by a person who holds them or ended their run.", "queue", "reason"),
		trimmed:     counter("lowkiq_morgue_trimmed_total", "Payloads that the queue's rule for its morgue let this node forget.", "queue"),
		redelivered: counter("lowkiq_jobs_redelivered_total", "Job ids that were in flight when their shard was claimed, and are handled again.", "queue"),
		overdue:     counter("lowkiq_handler_overdue_total", "Handler calls that had not returned 30 s after their timeout.", "queue"),
		fenced:      counter("lowkiq_fenced_total", "Operations that Redis refused because another instance holds the shard.", "op"),

		retried: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "retried"}, []string{"queue"}),

		missed: counter("lowkiq_recurring_missed_total", "Ticks of what recurs that this node left out, as all nodes were down, or that were refused.", "name"),

		handler:     often("lowkiq_handler_seconds", "Duration of handler calls."),
		wait:        often("lowkiq_wait_seconds", "Time from a job's due time to its handler, however often it was put off since."),
		processWait: often("lowkiq_process_wait_seconds", "Time that a batch waits for a free process of its handler, or until its queue's concurrency allows another call."),

		owned:     gauge("lowkiq_shards_owned", "Shards that this node works on."),
		shards:    gauge("lowkiq_queue_shards", "Shards of the queue, whoever works on them."),
		rules:     gauge("lowkiq_rules_in_force", "Rules of the queue that were set at run time and are in force on this node, in place of its configuration."),
		ownerless: gauge("lowkiq_shards_unowned", "Shards that no live node owns, as the leader found; nothing is exported by others."),
		unhandled: gauge("lowkiq_queue_unhandled", "1 if no live node handles the queue, as the leader found; nothing is exported by others."),
		ready: gauge("lowkiq_handler_ready",
			"1 while the queue's handler on this node can work, 0 while its process or endpoint cannot be had; of handlers that know."),

		Unreplicated: factory.NewCounter(prometheus.CounterOpts{Name: "lowkiq_claims_unreplicated_total",
			Help: "Claims that no replica of Redis had confirmed after 100 ms."}),
		Moves:      factory.NewCounter(prometheus.CounterOpts{Name: "lowkiq_shard_moves_total", Help: "Shards that this node claimed or released."}),
		Handover:   rare("lowkiq_handover_seconds", "Time from the wish to release a shard to its release."),
		Unowned:    rare("lowkiq_unowned_seconds", "Time from the wish to claim a shard to its claim."),
		RaftLeader: factory.NewGauge(prometheus.GaugeOpts{Name: "lowkiq_raft_leader", Help: "1 if this node leads the cluster."}),
		Generation: factory.NewGauge(prometheus.GaugeOpts{Name: "lowkiq_generation", Help: "Index of the assignment that this node has applied."}),

		RecurringLate: factory.NewGauge(prometheus.GaugeOpts{Name: "lowkiq_recurring_late_seconds",
			Help: "For how long the oldest tick of what recurs has been due and not been pushed, as this node saw last."}),
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lowkiq_lease_remaining_seconds", Help: "Time until this node must stop working unless it renews its lease; 0 without a lease.",
	}, m.leaseRemaining)
	// Each operation from the start: increase() does not see the step from no series to 1.
	for _, op := range []string{"pop", "ack", "nack", "bury", "note", "release"} {
		m.fenced.WithLabelValues(op)
	}
	return m
}

// RecurringMissed counts ticks of what recurs that were left out or refused.
func (m *Metrics) RecurringMissed(name string, n int64) {
	m.missed.WithLabelValues(name).Add(float64(n))
}

// LeaseRemaining sets the function that knows how long the node may still work: it is called for
// every scrape, as the time runs on while nothing is renewed.
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
	Retried     prometheus.Counter // failures of ids that are to be retried; not exported
	Buried      prometheus.Counter
	Trimmed     prometheus.Counter // payloads forgotten by the morgue's rule
	Expired     prometheus.Counter // payloads whose time was over before a handler had them
	Postponed   Postponed
	HookErrors  prometheus.Counter // calls of hooks that failed
	Redelivered prometheus.Counter
	Overdue     prometheus.Counter
	Handler     *Histogram
	Wait        *Histogram
	Owned       prometheus.Gauge
	Shards      prometheus.Gauge
	Rules       prometheus.Gauge // set at run time

	ready       func() prometheus.Gauge
	processWait func() *Histogram
}

// Postponed counts ids that were put off without a failure.
type Postponed struct {
	Handler prometheus.Counter // its answer was to wait
	Group   prometheus.Counter // none of their group may begin now
	Person  prometheus.Counter // somebody holds them, or has ended their run
}

// Ready says whether the queue's handler can work. It is exported once it is asked for.
func (q *Queue) Ready() prometheus.Gauge { return q.ready() }

// ProcessWait counts how long batches wait for a free process of their handler. It is exported
// once it is asked for.
func (q *Queue) ProcessWait() *Histogram { return q.processWait() }

// Queue returns the metrics of a queue.
func (m *Metrics) Queue(name string) *Queue {
	return &Queue{
		Processed: m.processed.WithLabelValues(name), Failed: m.failed.WithLabelValues(name), Retried: m.retried.WithLabelValues(name),
		Buried: m.buried.WithLabelValues(name), Redelivered: m.redelivered.WithLabelValues(name), Overdue: m.overdue.WithLabelValues(name),
		Trimmed: m.trimmed.WithLabelValues(name), Expired: m.expired.WithLabelValues(name), HookErrors: m.hookErrors.WithLabelValues(name),
		Postponed: Postponed{
			Handler: m.postponed.WithLabelValues(name, "handler"), Group: m.postponed.WithLabelValues(name, "group"), Person: m.postponed.WithLabelValues(name, "person"),
		},
		Handler: m.handler.queue(name), Wait: m.wait.queue(name),
		Owned: m.owned.WithLabelValues(name), Shards: m.shards.WithLabelValues(name), Rules: m.rules.WithLabelValues(name),
		ready:       func() prometheus.Gauge { return m.ready.WithLabelValues(name) },
		processWait: func() *Histogram { return m.processWait.queue(name) },
	}
}

// SetUnowned says how many shards of a queue the leader found without an owner, and whether
// any node handles the queue.
func (m *Metrics) SetUnowned(queue string, shards int, handled bool) {
	m.ownerless.WithLabelValues(queue).Set(float64(shards))
	unhandled := 1.0
	if handled {
		unhandled = 0
	}
	m.unhandled.WithLabelValues(queue).Set(unhandled)
}

// NoUnowned ends what SetUnowned exports: this node does not lead.
func (m *Metrics) NoUnowned() {
	m.ownerless.Reset()
	m.unhandled.Reset()
}

// ForgetQueue ends what SetUnowned exports of one queue: it is not registered any more.
func (m *Metrics) ForgetQueue(queue string) {
	m.ownerless.DeleteLabelValues(queue)
	m.unhandled.DeleteLabelValues(queue)
}

// Fenced counts an operation that Redis refused: pop, ack, nack, bury, note or release.
func (m *Metrics) Fenced(op string) { m.fenced.WithLabelValues(op).Inc() }
