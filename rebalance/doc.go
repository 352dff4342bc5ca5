// Package rebalance lets all processes of a cluster agree on which node should own
// which shard.
//
// They agree on a [plan.Assignment]. Package plan, which is pure, computes it from the nodes and the
// queues. An [Agent] takes part in the Raft group for a process. It founds or finds the group through
// the cluster record, maintains the set of voters, and plans while it leads.
//
//	agent.go      Agent, its loop and its states
//	view.go       inputs of an agent: view of the cluster, record, leader's mark
//	group.go      founding, joining and leaving the Raft group
//	leader.go     a leader's turn: voters, plans, transfer of leadership
//	voters.go     which servers should be voters
//	watch.go      which changes of a view are believed, and when
//	machine.go    the replicated state: log entries and snapshots
//	server.go     a Raft server
//	pulse.go      detection of a server that has hung
//	store.go      a server's log, in memory
//	transport.go  Raft's connections: handshake, failing addresses
//	guard.go      checks of other processes' requests
//
// Goroutines: only the loop of [Agent.Run] starts, drops and calls the process's Raft server. The
// [Listener] accepts Raft connections. Raft's own goroutines call the state machine, which stores a
// value and wakes the agent.
//
// Promises: an assignment moves no more shards than balance needs (I5). Nothing that this package keeps
// matters after a crash (I8), because an assignment is a wish. The claims in Redis, which this package
// never reads, decide which process may touch a shard.
package rebalance
