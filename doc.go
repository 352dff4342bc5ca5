// Package lowkiq holds the nouns of an ordered background-job system: jobs about one entity (an
// order, an account, a file) never run at the same time and never out of order.
//
// # The way of a job
//
// A program pushes: a [Push] names an id and carries a payload. The id's [Shard] is found by
// [ShardOf], and the job waits there, in Redis, with the other payloads of its id. The shard is a
// part of a [Queue] and has one owner at a time, a node, which takes jobs from it and calls the
// queue's [Handler] with a [Batch].
//
// The handler answers with an error, or none:
//
//	nil         all jobs of the batch are done
//	[Failed]    the jobs named failed and are retried, the others are done
//	[Postpone]  not now: put the batch back, no retry spent
//	[Limit]     the same, and no id of the same group begins meanwhile
//	[Bury]      never retry: to the morgue at once
//	other       all jobs of the batch failed and are retried
//
// A job stays in Redis until its handler has answered. So a job whose node dies runs again, and
// handlers must be idempotent.
//
// # Packages
//
// This package imports the standard library only. Package queue pushes jobs and keeps them in
// Redis, package node handles them:
//
//	client, err := queue.Open(queue.Config{Redis: "redis://127.0.0.1:6379/0"})
//	n, err := node.New(node.Config{Redis: "redis://127.0.0.1:6379/0"})
//
// The promises (I1 to I8) that comments and tests cite are listed in docs/design.md, the words in
// docs/glossary.md.
package lowkiq
