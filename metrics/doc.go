// Package metrics exports the metrics of a node to Prometheus.
//
// [Metrics] has the counters and histograms that a node updates while it works. [Working] exports
// what the node is busy with, and [Shards] reads the figures of the owned shards from Redis when
// Prometheus asks. [Pushed] counts the pushes of a program. Each node exports only what it owns, so
// the share of a released shard vanishes. Aggregate lags over the nodes with max, and counts with
// sum. Use max also for lowkiq_queue_shards and lowkiq_generation, which all nodes export.
package metrics
