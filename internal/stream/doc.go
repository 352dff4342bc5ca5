// Package stream answers: which real events do the demo and the tests push? It
// bundles a stream of ordered, keyed updates: the file changes in the version
// history of rqlite, a public project (github.com/rqlite/rqlite), oldest first.
//
// An event is one change of one file. Its id is the file's path, its score the
// position in the stream (1, 2, 3, …), and its payload says which commit changed
// the file, when (unix seconds), how (A added, M modified, D deleted), and which
// blob the file then was. There are [Count] events of [IDs] files; one file,
// CHANGELOG.md, has [Hottest] of them, so one id holds 15 % of the work. No two
// events of an id have equal payloads: none of them merge when they wait together.
//
// [Open] gives the stream as NDJSON, a line as `lowkiq-node push` reads it;
// [Events] gives it parsed. The package has no state and no goroutines.
package stream
