// Package demo answers one question: does it really work, before my eyes?
//
// [Run] starts an embedded Redis, and a worker process that runs [Work]: a node that
// handles the queue "history" and writes a history of what its handlers do. It pushes
// the bundled stream of real events over HTTP, kills the worker with SIGKILL half-way,
// starts it again, and lets package history judge whether I1, I2 and I3 were kept.
//
// Goroutines of Run: one that pushes, and two per worker process, which read its
// progress and wait for its end. All have ended when Run returns, the worker process
// and the files too. A worker whose parent is gone ends by itself: it reads the end of
// its standard input.
package demo
