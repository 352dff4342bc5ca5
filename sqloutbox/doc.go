// Package sqloutbox pushes jobs as part of a transaction of a SQL database: if the transaction commits, its jobs are
// pushed, and otherwise none is. The database is PostgreSQL or SQLite.
//
// [Schema] has the statements that create the outbox, a table. [Add] puts pushes into it, in the caller's transaction.
// A [Relay] pushes what is committed, and removes it from the table. Any number of programs may run a relay, and
// a single relay works at a time.
//
// Payloads of an id are pushed in the order in which their transactions commit, and in the order of their Add in a
// transaction. The score of a payload is its number in the table, so it rises for each id.
//
// A payload is pushed at least once. If a relay is killed between the push and its removal, the payload and those
// behind it are pushed again, in order. Repeated payloads that wait merge. A handler that must not act twice compares
// the score with the last score of the id.
//
// The package is a module of its own and uses database/sql alone; the program brings the driver.
package sqloutbox
