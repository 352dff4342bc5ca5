// Package membership answers one question: who seems alive?
//
// A [Gossip] is a process's part in the gossip of its cluster (SWIM, by
// hashicorp/memberlist). It shows the other processes as a set of [Member]s, and
// says of an [Instance] whether it is alive, dead, left or unknown. A caller
// waits on Changed and then looks at the whole set; there are no events to miss.
//
// Goroutines: [Gossip.Run] owns memberlist, publishes what this process says of
// itself, and joins seeds and peers again and again, because gossip alone never
// heals a partition. Memberlist's callbacks only note and wake; they never block.
//
// What it promises: nothing that a caller may rely on for safety. What gossip says is
// a hint; a lease in Redis decides. Death is agreed on within 0.8 of the lease's ttl
// in a cluster of five whose network works.
package membership
