// Package lowkiq holds the nouns of an ordered background-job system: jobs about
// one entity (an order, an account, a file) never run at the same time and never
// out of order.
//
// A [Queue] is cut into shards. Every job has an id; [ShardOf] maps the id to a
// [Shard]; a shard is worked on by one node at a time. The payloads that pile up
// for an id are handed to the [Handler] together, lowest score first, and stay in
// Redis until the handler has answered.
//
// This package imports the standard library only. Package queue pushes jobs and
// keeps them in Redis, package node handles them:
//
//	client, err := queue.Open(queue.Config{Redis: "redis://127.0.0.1:6379/0"})
//	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0"})
//
// The promises (I1..I8) that code and tests cite are listed in docs/design.md.
package lowkiq
