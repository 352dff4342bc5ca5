// Package rebalance answers one question: which node should own which shard?
//
// Its answer is an [Assignment], the map from shard to node at one [Generation].
// [Plan] is the pure function from an assignment, the nodes and the queues to the
// next assignment. An [Agent] is a process's seat in the Raft group that agrees on
// assignments: it finds or founds the group through the cluster record, keeps the
// set of voters, and plans while it leads.
//
// Goroutines: [Agent.Run] is one loop that alone starts and drops the process's
// Raft server, and alone calls into it; the [Listener] accepts Raft connections.
// Raft's own goroutines call the state machine, which only stores a value and wakes
// whoever waits for it.
//
// What it promises: an assignment moves no more shards than balance needs (I5);
// nothing it keeps matters after a crash (I8), because an assignment is a wish: who
// may touch a shard is decided by the claims in Redis, which this package never sees.
package rebalance
