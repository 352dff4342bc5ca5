// Package protocol stores jobs in Redis and refuses instances that may not touch them.
//
// It answers one question: what happens to a job? It is the protocol of producers and nodes with Redis. Each
// transition of a shard is one Lua script (package lua), so no crash exposes a half-done step (I6). Each script of
// a worker first checks the shard's claim (I1). I1 to I8 are the promises of docs/design.md. Programs that push use
// package queue, which shows a producer's part.
//
// A [Client] is a connection to a Redis (single, Sentinel or Cluster) under the name of a cluster. Its [Registry]
// knows the queues. A [Queue] pushes jobs. An instance that has a lease (package queue/lease) claims a [Shard]. The
// resulting [Claim] pops, acks, nacks and buries jobs, and releases the shard. Lists of jobs and actions of people
// are in queue/browse, the audit is in queue/audit.
//
// Some work runs in goroutines of its own: commits of concurrent pushes, reads of a queue's entry during a
// push, and [Wakes.Run]. They end with their work. A client that makes calls listens for replies until a
// minute after its last call. A client that pushes writes its counts every ten seconds. [Client.Close] ends
// both.
package protocol
