// Package node runs jobs: it is the composition root that joins queue, metrics and (with the
// cluster) membership and rebalance to one process. It serves nothing over HTTP by itself: see
// web.Serve, and the examples.
//
// Build a [Node] with [New], give each of its queues a handler with [Node.Handle], and call
// [Node.Run], which works until its context ends and then drains. A program that also pushes does
// so with [Node.Client]. What a node knows of its cluster is told by [Node.Cluster].
//
// A node has a stable name. Each run of its process is a boot; what holds a lease is
// an instance, "<node>/<boot>.<n>". A process whose lease is lost goes on as instance
// n+1 with the same shards.
//
// Goroutines: Run's oklog/run group has the attached server, the handlers that have a Run
// method, the instance loop, what fires recurring jobs, publishes events and keeps the figures of days, and the
// cluster. An instance has a lease keeper, a supervisor that claims and releases shards, and loops beside them:
// docs/design.md has a table of all. A shard costs goroutines only while it has work: shard_concurrency lanes at most.
//
// It keeps I1 (no handler starts after the lease's deadline, nothing is released while
// a handler runs), I2 (a job is acked only after its handler's answer) and I4.
package node
