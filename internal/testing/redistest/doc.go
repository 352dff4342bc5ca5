// Package redistest answers one question: how does a test get a real Redis of its own, and break it?
//
// [Start], [StartCluster] and [StartSentinel] run redis-server processes on private ports of 127.0.0.1. [StartOld] runs a
// server that may be older, and [StartMini] serves the embedded Redis. [Each] runs a test on several kinds. [NewProxy] stands
// between a client and any of them and loses requests and replies on purpose. [Addresses] returns private ports for other
// purposes. Each server has a goroutine that waits for its process. A proxy has a goroutine per listener and two per
// connection.
//
// When the test ends, everything that was started is gone with its files. On Linux this holds also if the process of the
// test was killed. On a machine without a suitable redis-server the test fails and says what to install. It is not skipped.
package redistest
