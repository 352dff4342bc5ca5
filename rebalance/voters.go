package rebalance

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"
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

// seated is a server of the configuration and what is known of its process.
type seated struct {
	id       string
	voter    bool
	dead     bool // its process is not seen any more, or has dropped the server
	fit      bool // its process is leased and not draining
	caughtUp bool // it has applied the current assignment
	brief    bool // its process began lately or stands by: it may be gone as soon
	peer     Peer
}

// nextChange returns the one step that brings the configuration nearer to what it
// should be. Every process becomes a server; a voter is promoted before another one
// is given up, so that the group does not shrink on the way.
func nextChange(servers []raft.Server, view View, self string, current Generation) change {
	seats := seat(servers, view, current)
	if c := newcomer(servers, view, self); c.kind != noChange {
		return c
	}
	fit, good, candidates := 0, 0, 0
	for _, s := range seats {
		if s.fit {
			fit++
			if s.voter {
				good++
			} else if !s.brief {
				candidates++
			}
		}
	}
	// A voter that dies is a vote missing. One that may is taken only where there would be no
	// other, as when a leader leaves.
	briefToo := good == 0 && candidates == 0
	want := votersFor(fit)
	for _, s := range seats {
		switch {
		case s.id == self:
		case s.fit && !s.voter && s.caughtUp && good < want && (briefToo || !s.brief):
			return change{promote, s.id, s.peer}
		case s.dead && !s.voter:
			return change{kind: removeServer, server: s.id}
		}
	}
	// While a voter is silent but not dead yet, no live one may go: the two left would have
	// no quorum without it.
	silent := slices.ContainsFunc(seats, func(s seated) bool { return s.voter && !s.fit && !s.peer.Draining })
	for _, s := range slices.Backward(seats) {
		replaced := good >= want || candidates == 0 && good > 0
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

// seat looks up the servers' processes, ordered by id.
func seat(servers []raft.Server, view View, current Generation) []seated {
	seats := make([]seated, 0, len(servers))
	for _, server := range servers {
		p, seen := view.peer(string(server.ID))
		seats = append(seats, seated{
			id:       string(server.ID),
			voter:    server.Suffrage == raft.Voter,
			dead:     !seen,
			fit:      seen && p.Leased && !p.Draining,
			caughtUp: seen && p.Seat.Applied.Compare(current) >= 0,
			brief:    p.Young || p.Doubted || p.Superseded,
			peer:     p,
		})
	}
	slices.SortFunc(seats, func(a, b seated) int { return cmp.Compare(a.id, b.id) })
	return seats
}

// newcomer returns the first process under the record that is no server yet.
func newcomer(servers []raft.Server, view View, self string) change {
	for _, p := range view.Peers {
		id := p.Seat.Server
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
