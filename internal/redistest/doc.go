// Package redistest answers one question: how does a test get a real Redis of its
// own, and break it?
//
// [Start], [StartCluster] and [StartSentinel] run redis-server processes on private ports of
// 127.0.0.1, [StartOld] one that may be older, [StartMini] serves the embedded Redis, and [NewProxy] stands between a client and any
// of them to lose requests and replies on purpose. [Addresses] are such ports for other things.
// Each server has one goroutine that waits for its process, a proxy has one per listener and two
// per connection.
//
// It promises that everything started is gone, with its files, when the test ends;
// on Linux also when the test's own process is killed. A machine without a fitting
// redis-server fails the test and says what to install: nothing is skipped.
package redistest
