package rebalance

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// changeKind is a step of the Raft configuration.
type changeKind int

const (
	noChange changeKind = iota
	addServer
	promote
	demote
	removeServer
)

// change is one step of the Raft configuration.
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

// serverState is a server of the configuration and what is known of its process.
type serverState struct {
	id       string
	voter    bool
	dead     bool // its process is in no view any more, or has dropped the server
	fit      bool // its process is leased and not draining
	caughtUp bool // it has applied the current assignment
	mayEnd   bool // its process began lately or stands by: it may be gone as soon
	peer     Peer
}

// nextChange returns the one step that brings the configuration nearer to what it
// should be:
//
//	a process that is no server yet                          is added, without a vote
//	fewer fit voters than there should be                    a server that has caught up is promoted
//	a server without a vote whose process is dead            is removed
//	a voter that is dead or draining, once it is replaced    is removed or demoted
//	more fit voters than there should be                     the last one is demoted
//
// So a voter is promoted before another one is given up, and the group does not shrink on the way.
func nextChange(servers []raft.Server, view View, self string, current plan.Generation) change {
	if c := newcomer(servers, view, self); c.kind != noChange {
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
	// A voter that dies is a vote missing. One that may is taken only where there would be no
	// other, as when a leader leaves.
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
	// While a voter is silent but not dead yet, no live one may go: the two left would have
	// no quorum without it.
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

// statesOf looks up the servers' processes, ordered by id.
func statesOf(servers []raft.Server, view View, current plan.Generation) []serverState {
	states := make([]serverState, 0, len(servers))
	for _, server := range servers {
		p, seen := view.peer(string(server.ID))
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

// newcomer returns the first process under the record that is no server yet.
func newcomer(servers []raft.Server, view View, self string) change {
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

// after returns the voters once the change is made.
func (c change) after(voters []string) []string {
	switch c.kind {
	case promote:
		return append(slices.Clone(voters), c.server)
	case demote, removeServer:
		return slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == c.server })
	}
	return voters
}
