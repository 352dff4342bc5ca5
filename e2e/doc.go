// Package e2e tests from outside whether a node keeps its promises when processes die, freeze and drain, and when Redis goes
// away and comes back, with or without its data.
//
// Everything is real: worker processes, a redis-server per test, signals. A worker is the test binary, started again (see
// TestMain), or the built lowkiq-node. The handlers write a history, which package judge judges. A rig belongs to a test and
// has its Redis, its processes and its history. Each test kills the processes that it has started, and fails if any of them
// is left.
//
// The scenarios of a cluster are in the files cluster_*. A fleet is a rig with some nodes and three queues of 20 shards.
// Real events flow into it all the time. Its watch follows the claims, to count moves and to measure the pauses between two
// owners.
//
// The tests need Linux, because they read /proc.
package e2e
