package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric declares a metric of a node or a producer. The exported series, the table of
// docs/operations.md and the tests of alerts and boards follow from it.
type Metric struct {
	Name   string
	Type   Type
	Labels []string
	Help   string // text for Prometheus and the table

	More  string // text that only the table has, in Markdown
	Worry string // when a person should look, in Markdown

	scraped bool // its values are read when Prometheus asks; Metrics does not have it
}

// Type is the type of a metric.
type Type string

// The types.
const (
	TypeCounter   Type = "counter"
	TypeGauge     Type = "gauge"
	TypeHistogram Type = "histogram" // of seconds
)

var table []*Metric

// Table returns the metrics in the order of docs/operations.md.
func Table() []*Metric { return table }

func declareMetric(kind Type, name, labels string, m Metric) *Metric {
	m.Name, m.Type, m.Labels = name, kind, strings.Fields(labels)
	table = append(table, &m)
	return &m
}

// declareScraped is declareMetric for metrics that Metrics does not have.
func declareScraped(kind Type, name, labels string, m Metric) *Metric {
	m.scraped = true
	return declareMetric(kind, name, labels, m)
}

func (m *Metric) newDesc() *prometheus.Desc { return prometheus.NewDesc(m.Name, m.Help, m.Labels, nil) }

// Rows returns the table of docs/operations.md.
func Rows() string {
	var b strings.Builder
	b.WriteString("| metric | type, labels | means | worry when |\n|---|---|---|---|\n")
	for _, m := range table {
		form := string(m.Type)
		for _, label := range m.Labels {
			form += ", `" + label + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, form, strings.TrimSpace(m.Help+" "+m.More), m.Worry)
	}
	return b.String()
}

// The metrics, in the order of the table.
var (
	lag = declareScraped(TypeGauge, "lowkiq_queue_lag_seconds", "queue", Metric{
		Help:  "Time that the longest waiting due job of this node's shards has waited, however often it was postponed; 0 if none waits. The leader adds the shards without an owner.",
		More:  "It counts whatever stands before the job: its own flight, deleted jobs, a pause, an endpoint that puts it off, a full group. A hold or a later retry ends it.",
		Worry: "it is more than your users tolerate",
	})
	jobs = declareScraped(TypeGauge, "lowkiq_queue_jobs", "queue state", Metric{
		Help:  "Jobs of this node's shards by state: ready, scheduled, retry, held, in_flight or blocked. The leader adds the shards without an owner.",
		Worry: "ready grows for long; blocked is not 0 for long",
	})
	jobsFailed = declareScraped(TypeGauge, "lowkiq_queue_jobs_failed", "queue", Metric{
		Help:  "Failed jobs of this node's shards that wait for an attempt: those of state retry, and those of state ready that have failed. The leader adds the shards without an owner.",
		More:  "`lowkiq_queue_jobs` includes them, so do not add them.",
		Worry: "it grows",
	})
	morgue = declareScraped(TypeGauge, "lowkiq_morgue_payloads", "queue", Metric{
		Help:  "Payloads of this node's shards that ran out of retries. The leader adds the shards without an owner.",
		Worry: "it grows",
	})
	outgoing = declareScraped(TypeGauge, "lowkiq_outgoing_messages", "queue", Metric{
		Help:  "Follow-ups of this node's shards that wait to be delivered to other queues. The leader adds the shards without an owner.",
		More:  "`lowkiq-node outgoing QUEUE` shows them.",
		Worry: "it is not 0 for long",
	})
	outgoingRefused = declareMetric(TypeCounter, "lowkiq_outgoing_refused_total", "queue reason", Metric{
		Help: "Follow-ups of a queue that the rule then had made and that this node dropped, because the other queue will never take them.",
		More: "The log has the id and the error. A buried payload stays in the morgue of its queue. `reason` is `hops` (the chain is too long), `size` (the payload is beyond a limit) or `invalid` " +
			"(it cannot be decoded, or a codec or a middleware refuses it).",
		Worry: "it rises",
	})
	journalDropped = declareScraped(TypeGauge, "lowkiq_journal_dropped_lines", "queue", Metric{
		Help:  "Lines that were never written to the journals of this node's shards because Redis was out of memory. The leader adds the shards without an owner.",
		More:  "The jobs have ended all the same.",
		Worry: "it grows",
	})
	pushed = declareScraped(TypeCounter, "lowkiq_jobs_pushed_total", "queue", Metric{
		Help: "Jobs that this process has pushed and Redis has stored.",
		More: "Redis does not count pushes: a node counts those of its API and its `Client()`, a producer in Go its own, with `metrics.Pushed(registry)` first of the `Middlewares` " +
			"of its `queue.Config`.",
		Worry: "it exceeds what is processed for long",
	})
	processed = declareMetric(TypeCounter, "lowkiq_jobs_processed_total", "queue", Metric{
		Help:  "Job ids handled and acknowledged.",
		Worry: "its rate is 0 while ready is not",
	})
	failed = declareMetric(TypeCounter, "lowkiq_jobs_failed_total", "queue", Metric{
		Help:  "Failures of job ids. Each failed attempt counts.",
		Worry: "it is a tenth of all attempts",
	})
	trimmed = declareMetric(TypeCounter, "lowkiq_morgue_trimmed_total", "queue", Metric{
		Help:  "Payloads that this node deleted because of the queue's rule for its morgue.",
		More:  "The rule is [`morgue`](configuration.md).",
		Worry: "it rises, and nobody meant to lose these",
	})
	hookErrors = declareMetric(TypeCounter, "lowkiq_hook_errors_total", "queue", Metric{
		Help:  "Calls of hooks that failed, took longer than 10 s or panicked.",
		More:  "See [events](handlers.md#events).",
		Worry: "it rises: events did not reach their hooks",
	})
	postponed = declareMetric(TypeCounter, "lowkiq_jobs_postponed_total", "queue reason", Metric{
		Help: "Job ids postponed without a failure: by their handler, by their group, or by a person who holds them or cancelled their run.",
		More: "`reason` is `handler` (its answer was to wait, or its endpoint or process cannot be had), `group` (none of their [group](configuration.md) may begin now) " +
			"or `person` (held, or their run was ended).",
		Worry: "that of `handler` rises and `lowkiq_jobs_processed_total` does not: nothing gets done; that of `group` is many times the latter: the limit is far below what is pushed",
	})
	expired = declareMetric(TypeCounter, "lowkiq_expired_total", "queue", Metric{
		Help:  "Payloads that expired before a handler got them.",
		More:  "That is by the rule [`expire`](configuration.md) or the header `expires`.",
		Worry: "it rises, and these payloads mattered",
	})
	buried = declareMetric(TypeCounter, "lowkiq_jobs_buried_total", "queue", Metric{
		Help:  "Job ids sent to the morgue because of failures: out of retries, buried by the handler, or after killing their process too often.",
		More:  "What people bury, what expires and what is blocked does not count.",
		Worry: "it rises",
	})
	redelivered = declareMetric(TypeCounter, "lowkiq_jobs_redelivered_total", "queue", Metric{
		Help:  "Job ids that were in flight when their shard was claimed, and are handled again.",
		Worry: "it rises without deaths or failovers",
	})
	handlerSeconds = declareMetric(TypeHistogram, "lowkiq_handler_seconds", "queue", Metric{
		Help:  "Duration of handler calls.",
		Worry: "it nears `handler_timeout`, or 0.2 ttl for handlers that do not heed their cancel",
	})
	overdue = declareMetric(TypeCounter, "lowkiq_handler_overdue_total", "queue", Metric{
		Help:  "Handler calls that had not returned 30 s after their timeout, or hooks after their 10 s.",
		Worry: "it rises at all",
	})
	handlerReady = declareMetric(TypeGauge, "lowkiq_handler_ready", "queue", Metric{
		Help:  "1 while the queue's handler on this node can work, 0 while its process or endpoint is not available; for handlers that report it.",
		More:  "Those are `exec` and `http` handlers, and those in Go that have a method `Ready`.",
		Worry: "0",
	})
	rulesInForce = declareMetric(TypeGauge, "lowkiq_rules_in_force", "queue", Metric{
		Help:  "Rules of the queue that were set at run time and are in force on this node, in place of its configuration.",
		Worry: "it is above 0 and nobody remembers why: `lowkiq-node rules QUEUE` says who and until when",
	})
	waitSeconds = declareMetric(TypeHistogram, "lowkiq_wait_seconds", "queue", Metric{
		Help:  "Time from a job's due time to its handler, however often it was postponed.",
		Worry: "its percentiles rise while handlers are as fast as before: too little parallelism",
	})
	processWaitSeconds = declareMetric(TypeHistogram, "lowkiq_process_wait_seconds", "queue", Metric{
		Help:  "Time that a batch waits for a free process of its handler, or until its queue's concurrency allows another call.",
		More:  "`lowkiq_wait_seconds` contains it.",
		Worry: "long while CPUs are idle: more `processes`",
	})
	slots     = declareScraped(TypeGauge, "lowkiq_slots", "", Metric{Help: "Handler calls that this node may run at once.", Worry: "see `lowkiq_slots_busy`"})
	slotsBusy = declareScraped(TypeGauge, "lowkiq_slots_busy", "", Metric{
		Help:  "Slots of this node that handler calls hold.",
		Worry: "all are busy for minutes, and jobs wait: more nodes, or more `concurrency`",
	})
	callsWaiting = declareScraped(TypeGauge, "lowkiq_calls_waiting", "", Metric{
		Help:  "Payloads pushed through this node, by its API or its client, whose callers wait for replies.",
		Worry: "it grows while jobs are handled",
	})
	logDropped = declareScraped(TypeCounter, "lowkiq_log_dropped_lines_total", "", Metric{
		Help:  "Lines of this node's log that were dropped, because they came faster than they were written, or could not be written.",
		More:  "See [the log](#the-log).",
		Worry: "it rises: what reads the log is too slow, has stopped, or is gone",
	})
	children     = declareScraped(TypeGauge, "lowkiq_children", "queue", Metric{Help: "Processes of the queue's exec handler that run.", Worry: "fewer run than `processes` says: they crash"})
	childrenBusy = declareScraped(TypeGauge, "lowkiq_children_busy", "queue", Metric{
		Help:  "Processes of the queue's exec handler that have a batch.",
		Worry: "it is that of `lowkiq_children` for minutes, and jobs wait",
	})
	buildInfo = declareScraped(TypeGauge, "lowkiq_build_info", "version goversion", Metric{
		Help:  "Always 1; the labels have this node's release and its Go version.",
		Worry: "versions differ long after a rollout",
	})
	shardsOwned = declareMetric(TypeGauge, "lowkiq_shards_owned", "queue", Metric{
		Help:  "Shards that this node works on.",
		Worry: "nodes of one weight differ by more than one per queue for minutes",
	})
	queueShards = declareMetric(TypeGauge, "lowkiq_queue_shards", "queue", Metric{
		Help:  "Shards of the queue, on any node.",
		Worry: "it exceeds the sum of the owned",
	})
	shardsUnowned = declareMetric(TypeGauge, "lowkiq_shards_unowned", "queue", Metric{
		Help:  "Shards that no live node owns, as the leader found; nothing is exported by others.",
		More:  "Without a cluster the first node exports it.",
		Worry: "not 0 for a minute, unless the queue is retired",
	})
	queueUnhandled = declareMetric(TypeGauge, "lowkiq_queue_unhandled", "queue", Metric{
		Help:  "1 if no live node handles the queue, as the leader found; nothing is exported by others.",
		Worry: "1, while it has jobs",
	})
	shardMoves = declareMetric(TypeCounter, "lowkiq_shard_moves_total", "", Metric{
		Help:  "Shards that this node claimed or released.",
		Worry: "it rises all the time",
	})
	handoverSeconds = declareMetric(TypeHistogram, "lowkiq_handover_seconds", "", Metric{
		Help:  "Time from the decision to release a shard to its release.",
		More:  "That is the time of the batch in flight.",
		Worry: "it is longer than your handlers",
	})
	unownedSeconds = declareMetric(TypeHistogram, "lowkiq_unowned_seconds", "", Metric{
		Help:  "Time from the decision to claim a shard to its claim.",
		Worry: "beyond 2 ttl + 3 s",
	})
	unreplicated = declareMetric(TypeCounter, "lowkiq_claims_unreplicated_total", "", Metric{
		Help:  "Claims that no replica of Redis had confirmed after 100 ms.",
		More:  "A failover then may forget the owner for a moment.",
		Worry: "it rises with every move: the replicas lag or are cut off",
	})
	fenced = declareMetric(TypeCounter, "lowkiq_fenced_total", "op", Metric{
		Help:  "Operations that Redis refused because another instance holds the shard.",
		Worry: "it rises without a freeze, a cut or a failover",
	})
	leaseRemaining = declareScraped(TypeGauge, "lowkiq_lease_remaining_seconds", "", Metric{
		Help:  "Time until this node must stop working unless it renews its lease; 0 without a lease.",
		Worry: "below a second, again and again; 0",
	})
	redisMemoryUsed = declareMetric(TypeGauge, "lowkiq_redis_memory_used_bytes", "", Metric{
		Help:  "Memory of Redis that counts for its maxmemory, as this node saw last; in a Redis Cluster that of the master nearest to its maxmemory.",
		More:  "It is `used_memory` less `mem_not_counted_for_evict`. Nodes read it every 10 s and do not export it while Redis is away; take the max over nodes.",
		Worry: "it is above 80 % of `lowkiq_redis_memory_max_bytes`",
	})
	redisMemoryMax = declareMetric(TypeGauge, "lowkiq_redis_memory_max_bytes", "", Metric{
		Help:  "The maxmemory of the Redis of lowkiq_redis_memory_used_bytes; 0 if it has none.",
		More:  "Take the max over nodes.",
		Worry: "0: Redis takes memory until its host has none",
	})
	raftLeader = declareMetric(TypeGauge, "lowkiq_raft_leader", "", Metric{
		Help:  "1 if this node leads the cluster.",
		More:  "A node in no cluster does not export it.",
		Worry: "the sum is not 1",
	})
	recurringLate = declareMetric(TypeGauge, "lowkiq_recurring_late_seconds", "", Metric{
		Help:  "Time for which the oldest tick of a recurring job has been due and not been pushed, as this node saw last.",
		More:  "See [recurring jobs](#recurring-jobs). It is 0 if the node does not reach Redis; take the max over nodes.",
		Worry: "it is not 0 for long",
	})
	recurringMissed = declareMetric(TypeCounter, "lowkiq_recurring_missed_total", "name", Metric{
		Help:  "Ticks of recurring jobs that were not pushed because all nodes were down, the queue refused them, or a change of the entry dropped them.",
		Worry: "it rises",
	})
	reshardLeft = declareMetric(TypeGauge, "lowkiq_reshard_jobs_left", "queue", Metric{
		Help:  "Jobs that a reshard of the queue has not moved yet, as this node saw last.",
		More:  "It exists only during a reshard; take the max over nodes.",
		Worry: "it does not fall for a minute",
	})
	reshardSeconds = declareMetric(TypeGauge, "lowkiq_reshard_seconds", "queue", Metric{
		Help:  "Time since a reshard of the queue began or, once jobs move, since their first move.",
		More:  "It exists only during a reshard; take the max over nodes.",
		Worry: "it is more than 600",
	})
	generation = declareMetric(TypeGauge, "lowkiq_generation", "", Metric{
		Help:  "Index of the assignment that this node has applied.",
		Worry: "nodes differ for long",
	})
)
