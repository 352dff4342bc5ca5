// Package handler answers one question: how does a batch reach user code that is not a Go function,
// and how does its answer come back? [HTTP] posts the batch to an endpoint. [Exec] gives it to a
// long-lived child process. Both are lowkiq.Handlers and speak the JSON of package wire.
//
// HTTP promises only that the request is aborted before Handle returns. The endpoint may still be
// working on it, which is a limit of I1.
//
// Exec promises more (I1). Handle may return because its context was cancelled, or because the child
// misbehaved. By then the child and all processes that it started have been killed and reaped. When
// the node itself dies, even by kill -9, they are gone within a second.
//
// Each child has a guard process, which sees to that. The guard is the node's own binary, started
// again. It holds the read end of a pipe, and only the node has the write end. When the pipe ends,
// the guard kills the child's process group. On Linux the guard also adopts every process that the
// child leaves behind (it is a subreaper), so a process in a session of its own does not escape. On
// other Unixes such a process does. A node that is frozen (SIGSTOP) cannot kill anything, so the
// guard also kills when the time of [Exec.Grant] is over. If the guard itself is killed, the child
// dies with it, and the node kills the child's group.
//
// An answer counts only for a batch that the child has read (I2). A late answer, or a second answer
// to the batch before, must not acknowledge the next batch. The node checks that on Linux, where it
// can see how much of a pipe was read.
//
// A terminal's ^C reaches only the node, because children have sessions of their own. systemd signals
// all processes of a unit unless told otherwise, so use KillMode=mixed.
//
// A program that uses Exec must call [Guard] as the first thing in main (and in TestMain). If it does
// not, [NewExec] returns an error.
//
// Both handlers have a method Ready, which reports whether they could handle a batch. They find out
// by themselves when that changes, because a node that is not ready gets no batches. [HTTP.Run]
// connects to an endpoint that was out of reach, and [Exec.Run] goes on starting children.
//
// Batches go through an [net/http.Transport] (docs/adr/0016-http-handlers-use-net-http.md).
//
// [HTTP.Run] has one goroutine. [Exec.Run] has a goroutine for each child, which starts it, lends it
// to one Handle at a time and starts the next. Two more goroutines for each child read its stderr and
// wait for its end.
package handler
