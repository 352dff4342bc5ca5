// Package demo answers one question: does it really work, before my eyes?
//
// [Run] starts an embedded Redis and three worker processes that run [Work]: nodes of
// one cluster that handle the queue "history" and write a history of what their handlers
// do. It pushes the bundled stream of real events over HTTP, to whichever node answers.
// While they flow it kills one node with SIGKILL, adds one, and drains one with SIGTERM;
// each time it waits until every shard is owned by the nodes that should. At the end
// package judge decides whether I1, I2 and I3 were kept: that is the [Outcome]. A
// [Screen] shows the [Picture] of all this.
//
// Goroutines of Run: one that pushes, one that asks the nodes who owns what, and two per
// worker process, which read its progress and wait for its end. All have ended when Run
// returns, the worker processes and the files too. A worker whose parent is gone ends by
// itself: it reads the end of its standard input.
package demo
