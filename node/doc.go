// Package node runs jobs. It joins the packages queue, metrics, membership and rebalance to a process. It serves
// nothing over HTTP by itself; see web.Serve, and the examples.
//
// Build a [Node] with [New], give each of its queues a handler with [Node.Handle], and call [Node.Run], which works
// until its context ends and then drains. A program that also pushes jobs does so with [Node.Client]. Package
// status answers questions about the node's cluster.
//
// A node has a stable name. Each run of its process is a boot. An instance, "<node>/<boot>.<n>", is the part of a boot in which
// the process holds one lease. A process that loses its lease continues as instance n+1 with the same shards.
//
// Run has a goroutine for each of these: the attached server, the handlers with a Run method, the loop of instances,
// recurring jobs, events, the figures of days, and the cluster. An instance has a lease keeper, a supervisor that
// claims and releases shards, and other loops. docs/design.md has a table of all goroutines. A shard has
// goroutines only while it has work, at most shard_concurrency lanes.
//
// The package keeps these promises of docs/design.md: no handler starts after the lease's deadline, and no shard is released
// while its handlers run (I1); a job is acknowledged only after its handler's answer (I2); each shard gets an owner (I4).
package node
