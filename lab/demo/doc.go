// Package demo answers one question: does it really work, before my eyes?
//
// [Run] starts an embedded Redis and three worker processes, which run [RunWorker]. They are nodes of a cluster that handle
// the queue "history" and write a history of their handler calls. Run pushes the bundled stream of real events over HTTP to
// any node that answers. Meanwhile it kills a node with SIGKILL, adds a node, and drains a node with SIGTERM. Each time it
// waits until every shard is owned by the node that should own it. At the end package judge decides whether I1, I2 and I3
// were kept. That is the [Outcome]. A [Screen] shows the [Picture].
//
// Run has a goroutine that pushes, a goroutine that asks the nodes for the owners of shards, and two goroutines per worker
// process, which read its progress and wait for its end. When Run returns, all goroutines and worker processes have ended
// and the files are gone. A worker whose parent is gone ends by itself, because its standard input ends.
package demo
