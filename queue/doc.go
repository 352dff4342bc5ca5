// Package queue keeps jobs in Redis and refuses whoever may not touch them.
//
// It answers one question: what happens to a job. Every transition of a shard is one
// Lua script (package lua), so no crash exposes a half-done step (I6), and every
// script of a worker checks the shard's claim first (I1).
//
// [Client] is a connection to one Redis (single, Sentinel or Cluster) and one cluster
// name. [Queue] pushes jobs and lists them. [Shard] is claimed by an instance that has
// a [Lease]; the resulting [Claim] pops, acks, nacks, buries and releases.
//
// Nothing here runs by itself: there are no goroutines but the callers', and that of
// [Wakes.Run].
package queue
