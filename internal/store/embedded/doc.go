// Package embedded serves a Redis inside the process, to try lowkiq on a machine that has only the
// binary.
//
// [Start] serves miniredis on a free port of 127.0.0.1. All goroutines of the [Server] have ended
// when [Server.Close] returns.
//
// Keys expire and TIME advances by the wall clock, as in Redis. Nothing is durable, because the
// data live in this process. It is for trials and for tests, never for work that matters (I2, I8).
package embedded
