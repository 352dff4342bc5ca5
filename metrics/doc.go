// Package metrics answers: what does a node tell Prometheus?
//
// [Metrics] holds the counters and histograms that a node moves while it works; [Working] says what
// it is busy with, and [Shards] reads the figures of the owned shards from Redis, when Prometheus
// asks; [Pushed] counts what a program pushes. Each node exports only what it owns, so that a
// released shard's share vanishes: over the nodes, lags aggregate with max, counts with sum. What
// all nodes say of the same thing, lowkiq_queue_shards and lowkiq_generation, is a max too.
package metrics
