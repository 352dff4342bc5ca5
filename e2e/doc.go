// Package e2e asks one question from outside: does a node keep its promises when
// processes die, freeze and drain, and Redis goes away, comes back, or comes back
// empty? It consists of tests.
//
// Everything is real: worker processes, a redis-server per test, signals. A worker is
// the test binary started again (see TestMain), or the built lowkiq-node. The handlers
// write a history, and package judge decides about it. A rig is what one test has: its
// Redis, its processes, its history. Each test kills what it started, and fails if
// any process of it is left.
//
// The scenarios of a cluster are in the files cluster_*: a fleet is a rig with
// some nodes and three queues of 20 shards. Real events flow into it all the time, and its watch
// follows the claims, to count moves and the pauses between two owners.
//
// The tests need Linux: they look into /proc.
package e2e
