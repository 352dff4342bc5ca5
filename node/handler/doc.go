// Package handler answers one question: how does a batch reach user code that is
// not a Go function, and how does its answer come back? [HTTP] posts it to an
// endpoint, [Exec] gives it to a long-lived child process; both are
// lowkiq.Handlers and speak the JSON of package wire.
//
// Of an HTTP endpoint it promises only that the request is aborted before Handle
// returns: the endpoint may still be working on it (the limit of I1).
//
// Of exec children it promises more (I1). When Handle returns because its context
// was cancelled, or because the child misbehaved, the child and everything it
// started have been killed and reaped. When the node itself dies, even by kill -9,
// they are gone within a second. A guard process per child sees to that: it is the
// node's own binary started again, holds the read end of a pipe whose write end only
// the node has, and kills the child's process group when the pipe ends. On Linux it
// also adopts every process that the child leaves behind (a subreaper), so that one
// that made its own session does not get away. On other Unixes such a process does.
// A node that is frozen (SIGSTOP) can kill nothing: for that the guards kill when the
// time that [Exec.Grant] granted is over.
// If the guard itself is killed, the child dies with it, and its group is
// killed by the node.
//
// An answer of a child counts only for a batch that it has read (on Linux, where the node can
// see what was read of a pipe): a second answer, or one that comes late, acknowledges nothing
// of the next batch (I2).
//
// A terminal's ^C reaches the node only, as children have sessions of their own. systemd signals
// all processes of a unit unless told otherwise: use KillMode=mixed.
//
// A program that uses Exec must call [Guard] as the first thing in main (and in
// TestMain); [NewExec] says so if it did not.
//
// Both say by a method Ready whether batches would be taken, and find out by themselves,
// with no batch to try it with, that this is so again: [HTTP.Run] connects to an endpoint that
// was out of reach, [Exec.Run] goes on starting children.
//
// A small batch to a plain http:// endpoint is posted by the goroutine of Handle itself; all others go
// through an [net/http.Transport] (docs/adr/0016-small-batches-without-a-transport.md).
//
// [HTTP.Run] has one goroutine. [Exec.Run] has one per child, which starts it, lends it to
// one Handle at a time and starts the next; besides, each child has one that reads
// its stderr and one that waits for its end.
package handler
