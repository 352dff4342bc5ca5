package rebalance

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Source provides the inputs of a plan. An error is not an empty answer. After an error the
// leader plans nothing until the nodes have been the same for a while.
type Source interface {
	// View returns the processes and queues as they appear now.
	View(ctx context.Context) (View, error)
	// Claims returns which node holds which shard by the claims, for a first leader that
	// has never seen an assignment.
	Claims(ctx context.Context) (*plan.Assignment, error)
	// Gossiped returns the processes that gossip shows. It does not block and needs no Redis.
	Gossiped() []Peer
}

// Record is the cluster record, a value that all nodes see and that names the cluster's
// Raft group. Its bytes are opaque to the store.
type Record interface {
	// Load returns the record, nil if there is none.
	Load(ctx context.Context) ([]byte, error)
	// CompareAndSet replaces the record old by new and reports whether the record was old. A nil
	// old stands for no record, and a nil new deletes it. After an error the record may have
	// been replaced.
	CompareAndSet(ctx context.Context, old, new []byte) (bool, error)
	// Now returns the store's time. Record ids made from it grow even after the
	// record was lost.
	Now(ctx context.Context) (time.Time, error)
}

// Mark is a value that the leader renews and that expires a lease ttl after the
// last renewal.
type Mark interface {
	// Load returns the mark, nil if it is missing.
	Load(ctx context.Context) ([]byte, error)
	// Renew sets the mark for another ttl if the cluster record equals record, and
	// reports whether it did.
	Renew(ctx context.Context, record, mark []byte) (bool, error)
}

// View is the cluster as a process sees it.
type View struct {
	Leased bool   // this process's own lease is live; without it a leader plans nothing
	Peers  []Peer // processes with a live lease or alive by gossip, this process included
	Queues []lowkiq.Queue
}

// Peer is a process.
type Peer struct {
	plan.Node           // input of a plan; the leader fills in Laggard and Applied
	Boot       string   // id of the run of the process
	Address    string   // host:port of its Raft listener
	RaftInfo   RaftInfo // as the process last published it
	Leased     bool     // it has a live lease
	Superseded bool     // a newer process has its name, so it gets no shards

	// The agent fills these in; see crashWatch.
	Recent   bool // it began less than 2 ttl ago, and it may be dead with a lease that has not expired
	Barred   bool // a process of its name crashed at its start, so it owns no shards yet
	Deferred bool // a process of any name crashed at its start, so it does not get its first shards yet
}

// RaftInfo is the state of the Raft group that a process publishes.
type RaftInfo struct {
	Server  string          `json:"server,omitempty"` // id of its Raft server, "" while it has no server
	Leader  string          `json:"leader,omitempty"` // id of the leader it follows, "" while it knows no leader
	Applied plan.Generation `json:"applied,omitzero"` // the newest assignment it has applied
	CanPlan bool            `json:"able,omitempty"`   // it has reached Redis for a while, so it could plan as a leader
}

// mayOwn reports whether the process may own shards.
func (p Peer) mayOwn() bool { return p.Leased && !p.Superseded }

// mayVote reports whether the process may be a voter, and so lead.
func (p Peer) mayVote() bool { return p.Leased && !p.Draining }

// ownerNames returns the names of the peers that may own shards, ascending.
func (v View) ownerNames() []string {
	var names []string
	for _, p := range v.Peers {
		if p.mayOwn() {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// followerNames returns the names of the processes that have applied an entry of the record's log.
// They learn of a new assignment at once.
func (v View) followerNames(record uint64) map[string]bool {
	names := map[string]bool{}
	for _, p := range v.Peers {
		if p.mayOwn() && p.RaftInfo.Applied.Record >= record {
			names[p.Name] = true
		}
	}
	return names
}

// anyMayTake reports whether any node of names may get shards.
func (v View) anyMayTake(names []string) bool {
	return slices.ContainsFunc(v.Peers, func(p Peer) bool {
		return p.mayOwn() && !p.Draining && slices.Contains(names, p.Name)
	})
}

// peerOf returns the process with the given Raft server.
func (v View) peerOf(server string) (Peer, bool) {
	i := slices.IndexFunc(v.Peers, func(p Peer) bool { return p.RaftInfo.Server == server })
	if i < 0 {
		return Peer{}, false
	}
	return v.Peers[i], true
}
