package rebalance

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// changeKind is a kind of step of the Raft configuration.
type changeKind int

const (
	noChange changeKind = iota
	addServer
	promote
	demote
	removeServer
)

// change is a step of the Raft configuration.
type change struct {
	kind   changeKind
	server string
	peer   Peer // for addServer and promote
}

// votersFor returns how many voters a cluster of n nodes should have.
func votersFor(n int) int {
	switch {
	case n < 3:
		return 1
	case n < 7:
		return 3
	}
	return 5
}

// serverState is a server of the configuration and the state of its process.
type serverState struct {
	id       string
	voter    bool
	dead     bool // the view lacks its process, or the process has dropped the server
	fit      bool // its process is leased and not draining
	caughtUp bool // it has applied the current assignment
	mayEnd   bool // its process began lately or stands by, and may end as soon
	peer     Peer
}

// nextChange returns the next step towards the right configuration:
//
//	a process has no server in the configuration             its server is added, without a vote
//	too few fit voters                                       a server that has caught up is promoted
//	a server without a vote has a dead process               it is removed
//	a voter is dead or draining, and has been replaced       it is removed or demoted
//	too many fit voters                                      the last voter is demoted
//
// A new voter is promoted before an old voter is removed, so the group does not shrink on the way.
func nextChange(servers []raft.Server, view View, self string, current plan.Generation) change {
	if c := findNewcomer(servers, view, self); c.kind != noChange {
		return c
	}
	states := statesOf(servers, view, current)
	fit, good, candidates := 0, 0, 0
	for _, s := range states {
		switch {
		case !s.fit:
			continue
		case s.voter:
			good++
		case !s.mayEnd:
			candidates++
		}
		fit++
	}
	// A voter that dies leaves a missing vote. A process that may end soon becomes a voter only if there is no
	// other candidate, as when a leader leaves.
	any := good == 0 && candidates == 0
	want := votersFor(fit)
	for _, s := range states {
		switch {
		case s.id == self:
		case s.fit && !s.voter && s.caughtUp && good < want && (any || !s.mayEnd):
			return change{promote, s.id, s.peer}
		case s.dead && !s.voter:
			return change{kind: removeServer, server: s.id}
		}
	}
	// While a voter is silent but not dead yet, no live voter may go, because the remaining voters would have
	// no quorum without the silent voter.
	silent := slices.ContainsFunc(states, func(s serverState) bool { return s.voter && !s.fit && !s.peer.Draining })
	replaced := good >= want || candidates == 0 && good > 0
	for _, s := range slices.Backward(states) {
		switch {
		case s.id == self || !s.voter:
		case s.dead && replaced:
			return change{kind: removeServer, server: s.id}
		case !s.dead && s.peer.Draining && replaced:
			return change{kind: demote, server: s.id}
		case s.fit && good > want && !silent:
			return change{kind: demote, server: s.id}
		}
	}
	return change{}
}

// statesOf returns the states of the servers, ordered by id.
func statesOf(servers []raft.Server, view View, current plan.Generation) []serverState {
	states := make([]serverState, 0, len(servers))
	for _, server := range servers {
		p, seen := view.peerOf(string(server.ID))
		states = append(states, serverState{
			id:       string(server.ID),
			voter:    server.Suffrage == raft.Voter,
			dead:     !seen,
			fit:      seen && p.mayVote(),
			caughtUp: seen && p.RaftInfo.Applied.Compare(current) >= 0,
			mayEnd:   p.Recent || p.Deferred || p.Superseded,
			peer:     p,
		})
	}
	slices.SortFunc(states, func(a, b serverState) int { return cmp.Compare(a.id, b.id) })
	return states
}

// findNewcomer returns the addition of the first process of the record's group whose server is missing from the configuration.
func findNewcomer(servers []raft.Server, view View, self string) change {
	for _, p := range view.Peers {
		id := p.RaftInfo.Server
		if !p.Leased || recordOf(id) != recordOf(self) {
			continue
		}
		if !slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == id }) {
			return change{addServer, id, p}
		}
	}
	return change{}
}

// voterIDs returns the ids of the voters, ascending.
func voterIDs(servers []raft.Server) []string {
	var ids []string
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			ids = append(ids, string(s.ID))
		}
	}
	slices.Sort(ids)
	return ids
}

// after returns the voters after the change.
func (c change) after(voters []string) []string {
	switch c.kind {
	case promote:
		return append(slices.Clone(voters), c.server)
	case demote, removeServer:
		return slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == c.server })
	}
	return voters
}
