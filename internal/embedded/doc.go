// Package embedded answers one question: where does a machine with nothing but
// the binary get a Redis to try things on?
//
// [Start] serves miniredis on a private port of 127.0.0.1. Its one type is
// [Server]; the goroutines are those of its listener and connections, and all of
// them have ended when [Server.Close] returns.
//
// It promises that keys expire and TIME advances by the wall clock, as in Redis,
// and nothing about durability: its data live in this process and die with it.
// It is for trying and for tests, never for work that matters (I2, I8).
package embedded
