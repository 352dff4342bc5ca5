// Package queue keeps jobs in Redis and refuses instances that may not touch them.
//
// It answers one question: what happens to a job. Every transition of a shard is one
// Lua script (package lua), so no crash exposes a half-done step (I6), and every
// script of a worker checks the shard's claim first (I1).
//
// [Client] is a connection to one Redis (single, Sentinel or Cluster) and one cluster
// name. [Queue] pushes jobs. [Shard] is claimed by an instance that has a lease (package
// queue/lease); the resulting [Claim] pops, acks, nacks, buries and releases. Lists and what
// people do to jobs are in queue/browse, the audit is in queue/audit.
//
// Goroutines besides the callers' end with what they do: commits of concurrent pushes, a look at
// a queue's entry beside a push, and [Wakes.Run]. A client that has called listens for replies for a minute after its last
// call, and one that has pushed writes its counts ten seconds later; [Client.Close] ends both. A loop over [Client.Events]
// has two goroutines, which end with it.
package queue
