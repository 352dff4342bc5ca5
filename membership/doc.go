// Package membership answers one question: who seems alive?
//
// A [Gossip] takes part, for a process, in the gossip of its cluster (SWIM, by hashicorp/memberlist). It shows the other
// processes as a set of [Member]s, and reports whether an [Instance] is alive, dead, left or unknown. A caller waits on Changed
// and then reads the whole set, so it cannot miss an event.
//
// Goroutines: [Gossip.Run] owns memberlist, publishes this process's Meta, and joins seeds and peers repeatedly, because gossip
// alone never heals a partition. Memberlist's callbacks only update the table and wake callers. They never block.
//
// Promises: none that safety may depend on. Gossip is a hint, and the leases in Redis decide. In a cluster of five with a
// working network all processes agree on a death within 0.8 of the lease's ttl.
package membership
