// Package lowkiq defines the types of an ordered background-job system. Jobs about the same entity (an
// order, an account, a file) never run at the same time and never out of order.
//
// # A job
//
// A program pushes. A [Push] has an id and a payload. [ShardOf] maps the id to a [Shard] of its [Queue].
// The payload waits there, in Redis, with the other payloads of its id. A shard has one owner at a time.
// The owner is a node, which takes jobs from the shard and calls the queue's [Handler] with a [Batch].
//
// The handler returns an error or nil:
//
//	nil         all jobs of the batch are done
//	[Failed]    the named jobs have failed and are retried; the others are done
//	[Postpone]  try the batch again later; does not count as a retry
//	[Throttle]  the same, and no id of the same group begins meanwhile
//	[Bury]      never retry; the payloads go to the morgue
//	other       all jobs of the batch have failed and are retried
//
// A job stays in Redis until its handler has answered. A job whose node dies runs again, so handlers
// must be idempotent.
//
// # Packages
//
// This package imports only the standard library. Package queue pushes jobs to Redis, and package node
// handles them:
//
//	client, err := queue.Open(queue.Config{Redis: "redis://127.0.0.1:6379/0"})
//	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0"})
//
// Comments and tests cite the promises I1 to I8 of docs/design.md. docs/glossary.md defines the words.
package lowkiq
