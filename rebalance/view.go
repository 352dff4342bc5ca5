package rebalance

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Source tells the leader what it plans from. An error is never an empty answer:
// after one the leader plans nothing until the nodes have been the same for a while.
type Source interface {
	// View returns the processes and queues as they seem now.
	View(ctx context.Context) (View, error)
	// Claims returns which node holds which shard by the claims, for the first leader that
	// never saw an assignment.
	Claims(ctx context.Context) (*plan.Assignment, error)
	// Gossiped returns the processes as gossip alone shows them, at once and without Redis.
	Gossiped() []Peer
}

// Record is the cluster record: one value, kept where all nodes see it, that says
// which Raft group is the cluster's. The bytes mean nothing to its keeper.
type Record interface {
	// Load returns the record, nil if there is none.
	Load(ctx context.Context) ([]byte, error)
	// CompareAndSet replaces the record old, nil for none, by new, nil to delete it,
	// and reports whether the record was old. After an error it may have happened.
	CompareAndSet(ctx context.Context, old, new []byte) (bool, error)
	// Now returns the keeper's time; it makes record ids that grow even when the
	// record was lost.
	Now(ctx context.Context) (time.Time, error)
}

// Mark is the leader's sign of life: a value that vanishes one lease ttl after its
// last renewal.
type Mark interface {
	// Load returns the mark, nil if it is missing.
	Load(ctx context.Context) ([]byte, error)
	// Renew sets the mark for another ttl, but only while the cluster record equals
	// record, and reports whether it did.
	Renew(ctx context.Context, record, mark []byte) (bool, error)
}

// View is the cluster as one process sees it.
type View struct {
	Leased bool   // this process's own lease is live; without it a leader plans nothing
	Peers  []Peer // processes with a live lease, or alive by gossip; this one included
	Queues []lowkiq.Queue
}

// Peer is a process.
type Peer struct {
	plan.Node           // what a plan needs of it; Laggard and Applied are filled in by the leader
	Boot       string   // the run of the process
	Address    string   // host:port of its Raft listener
	RaftInfo   RaftInfo // as the process last published it
	Leased     bool     // it has a live lease
	Superseded bool     // a newer process works under its name: it gets no shards

	// Filled in by the agent; see crashWatch.
	Recent   bool // it began less than 2 ttl ago; its lease may be all that is left of it
	Barred   bool // a process of its name crashed at its start, and this one may, too: it owns nothing
	Deferred bool // a process of any name did: it is not given its first shards yet
}

// RaftInfo is what a process publishes of its part in the Raft group.
type RaftInfo struct {
	Server  string          `json:"server,omitempty"` // the id of its Raft server, "" while it has none
	Leader  string          `json:"leader,omitempty"` // the id of the leader it follows, "" while it knows none
	Applied plan.Generation `json:"applied,omitzero"` // the newest assignment it works by
	CanPlan bool            `json:"able,omitempty"`   // it could plan, if it led: it has reached Redis for a while
}

// mayOwn reports whether the process may own shards.
func (p Peer) mayOwn() bool { return p.Leased && !p.Superseded }

// mayVote reports whether the process may be a voter, and so lead.
func (p Peer) mayVote() bool { return p.Leased && !p.Draining }

// owners returns the names of the peers that may own shards, ascending.
func (v View) owners() []string {
	var names []string
	for _, p := range v.Peers {
		if p.mayOwn() {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// followers returns the names whose process has applied something of the record's log.
// They learn at once of what is agreed.
func (v View) followers(record uint64) map[string]bool {
	names := map[string]bool{}
	for _, p := range v.Peers {
		if p.mayOwn() && p.RaftInfo.Applied.Record >= record {
			names[p.Name] = true
		}
	}
	return names
}

// anyTakes reports whether one of the names may be given shards.
func (v View) anyTakes(names []string) bool {
	return slices.ContainsFunc(v.Peers, func(p Peer) bool {
		return p.mayOwn() && !p.Draining && slices.Contains(names, p.Name)
	})
}

// peer returns the process whose Raft server has the id.
func (v View) peer(server string) (Peer, bool) {
	i := slices.IndexFunc(v.Peers, func(p Peer) bool { return p.RaftInfo.Server == server })
	if i < 0 {
		return Peer{}, false
	}
	return v.Peers[i], true
}
