package rebalance

import (
	"context"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// Source tells the leader what it plans from. An error is never an empty answer:
// after one the leader plans nothing until the nodes have been the same for a while.
type Source interface {
	// View returns the processes and queues as they seem now.
	View(ctx context.Context) (View, error)
	// Claims returns who holds which shard by the claims, for the first leader that
	// never saw an assignment.
	Claims(ctx context.Context) (*Assignment, error)
	// Heard returns the processes as gossip alone shows them, at once and without Redis.
	Heard() []Peer
}

// View is the cluster as one process sees it.
type View struct {
	Leased bool   // this process's own lease is live; without it a leader plans nothing
	Peers  []Peer // processes with a live lease, or alive by gossip; this one included
	Queues []lowkiq.Queue
}

// Peer is a process.
type Peer struct {
	Node              // what Plan needs of it; Deaf is filled in by the leader
	Boot       string // the run of the process
	Address    string // host:port of its Raft listener
	Seat       Seat   // as the process last published it
	Leased     bool   // it has a live lease
	Superseded bool   // a newer process works under its name: it gets no shards

	// Filled in by the agent; see lives.
	Young   bool // it has been there for less than 2 ttl, of which its lease may be the last: it may be dead
	OnTrial bool // a process of its name crashed at its start, and this one may, too: it owns nothing
	Doubted bool // so did a process of any name: it is not given its first shards yet
}

// Seat is what a process publishes of its place in the Raft group.
type Seat struct {
	Server  string     `json:"server,omitempty"` // the id of its Raft server, "" while it has none
	Leader  string     `json:"leader,omitempty"` // the id of the leader it follows, "" while it knows none
	Applied Generation `json:"applied,omitzero"` // the newest assignment it works by
	Able    bool       `json:"able,omitempty"`   // it could plan, if it led: Redis has been in its reach for a while
}

// names returns the names of the peers that may own shards, ascending.
func (v View) names() []string {
	var names []string
	for _, p := range v.Peers {
		if p.mayOwn() {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// hears tells of a name whether its process has applied something of the record: then it
// hears at once of what is agreed.
func (v View) hears(record uint64) func(name string) bool {
	hearing := map[string]bool{}
	for _, p := range v.Peers {
		hearing[p.Name] = hearing[p.Name] || p.mayOwn() && p.Seat.Applied.Record >= record
	}
	return func(name string) bool { return hearing[name] }
}

// anyTakes reports whether one of the names may be given shards.
func (v View) anyTakes(names []string) bool {
	return slices.ContainsFunc(v.Peers, func(p Peer) bool {
		return p.mayOwn() && !p.Draining && slices.Contains(names, p.Name)
	})
}

func (p Peer) mayOwn() bool { return p.Leased && !p.Superseded }

// peer returns the process whose Raft server has the id.
func (v View) peer(server string) (Peer, bool) {
	i := slices.IndexFunc(v.Peers, func(p Peer) bool { return p.Seat.Server == server })
	if i < 0 {
		return Peer{}, false
	}
	return v.Peers[i], true
}
