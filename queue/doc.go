// Package queue pushes jobs and waits for their replies. It is the package of programs that produce jobs.
//
// A [Client] is a connection to a Redis under the name of a cluster. [Client.Register] makes a queue known, and
// returns it. [Queue.Push] stores jobs, [Typed] does so with payloads of a Go type, and [Client.Call] waits for
// the reply as well. Redis has a job when its push returns. Nodes handle it (package node), now or after they
// have been started.
//
// A client is safe for concurrent use. A program needs a single client for each cluster, and closes it at its end.
// Small pushes of concurrent callers then share scripts, so pushes need no batches of their own.
//
// [Client.Protocol] leads to the protocol of nodes (package queue/protocol), and to the packages that list,
// inspect and repair jobs, such as queue/browse.
package queue
