// Package demodata answers one question: which real events do the demo and the tests push? It bundles a stream of ordered,
// keyed updates: the file changes in the version history of rqlite, a public project (github.com/rqlite/rqlite), the oldest
// first.
//
// An event is a change of a file. Its id is the path of the file, and its score is the position in the stream (1, 2, 3, …).
// Its payload has the commit, its time in unix seconds, the kind of change (A added, M modified, D deleted), and the blob of
// the file after the change. There are [Count] events of [IDs] files. The file CHANGELOG.md has [Hottest] of them, so a
// single id has 15 % of the work. No two events of an id have equal payloads, so none merge while they wait.
//
// [Open] returns the stream as NDJSON, with a line as `lowkiq-node push` reads it. [Events] returns it parsed. The package
// has no state and no goroutines.
package demodata
