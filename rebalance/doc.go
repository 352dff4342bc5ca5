// Package rebalance agrees, between all processes of a cluster, on which node should own
// which shard.
//
// What is agreed is a [plan.Assignment]; how one follows from the nodes and the queues is
// package plan, which is pure. An [Agent] is a process's part in the Raft group that agrees:
// it founds or finds the group through the cluster record, keeps the set of voters, and
// plans while it leads.
//
//	agent.go      Agent: its loop and its states
//	view.go       what an agent is given: view of the cluster, record, leader's mark
//	group.go      founding, joining and leaving the Raft group
//	leader.go     what a leader does: voters, plans, handing leadership over
//	voters.go     which servers should be voters
//	watch.go      what of a view is believed, and since when
//	machine.go    the replicated state: log entries and snapshots
//	server.go     one Raft server
//	pulse.go      whether that server has hung
//	store.go      its log, in memory
//	transport.go  Raft's connections: handshake, which addresses fail
//	guard.go      which requests of other processes Raft may see
//
// Goroutines: [Agent.Run] is one loop that alone starts and drops the process's
// Raft server, and alone calls into it; the [Listener] accepts Raft connections.
// Raft's own goroutines call the state machine, which only stores a value and wakes
// the agent.
//
// What it promises: an assignment moves no more shards than balance needs (I5);
// nothing it keeps matters after a crash (I8), because an assignment is a wish: which
// process may touch a shard is decided by the claims in Redis, which this package never sees.
package rebalance
