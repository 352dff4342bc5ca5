package rebalance

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	rec := &record{ID: 7, Voters: []string{"a#7.1", "b#7.1", "c#7.1"}}
	step := &record{ID: 7, Voters: rec.Voters, Fewer: rec.Voters[:2]}
	mine := &record{ID: 9, Voters: []string{"a#9.2"}}
	base := outlook{ttl: ttl, patience: 2 * ttl, leased: true, server: "a#7.1", record: rec, livingVoters: 3}
	tests := []struct {
		name   string
		change func(o *outlook)
		want   action
	}{
		{"all is well", func(o *outlook) { o.marked = true }, stay},
		{"no server yet", func(o *outlook) { o.server = "" }, join},
		{"another record", func(o *outlook) { o.record = &record{ID: 8, Voters: []string{"b#8.1"}} }, join},
		{"another record, leading the old", func(o *outlook) { o.record, o.leading = mine, true }, join},
		{"a record of its own, answer lost", func(o *outlook) { o.record, o.offered = mine, "a#9.2" }, resume},
		{"mark missing for a moment", func(o *outlook) { o.markMissing = ttl }, stay},
		{"mark missing for long", func(o *outlook) { o.markMissing = 2 * ttl }, refound},
		{"mark missing for long, leading", func(o *outlook) { o.markMissing, o.leading = 2*ttl, true }, stay},
		{"mark missing for long, no lease", func(o *outlook) { o.markMissing, o.leased = 2*ttl, false }, stay},
		{"mark missing, voters dead", func(o *outlook) { o.livingVoters = 1 }, refound},
		{"mark there, voters dead", func(o *outlook) { o.livingVoters, o.marked = 1, true }, stay},
		{"mark missing, voters dead, not followed before", func(o *outlook) { o.livingVoters, o.standsBack = 1, true }, stay},
		{"half of a step, its lesser side lost, mark missing for a moment", func(o *outlook) { o.record, o.livingVoters, o.livingFewer = step, 2, 1 }, stay},
		{"half of a step, its lesser side lost", func(o *outlook) { o.record, o.livingVoters, o.livingFewer, o.markMissing = step, 2, 1, ttl/2 }, refound},
		{"half of a step, its lesser side lost, mark there", func(o *outlook) { o.record, o.livingVoters, o.livingFewer, o.marked = step, 2, 1, true }, stay},
		{"half of a step, both sides live", func(o *outlook) { o.record, o.livingVoters, o.livingFewer, o.markMissing = step, 3, 2, ttl }, stay},
		{"no record, not followed before", func(o *outlook) { o.record, o.server, o.standsBack = nil, "", true }, stay},
		{"no record, alone", func(o *outlook) { o.record, o.server = nil, "" }, bootstrap},
		{"no record, no lease", func(o *outlook) { o.record, o.server, o.leased = nil, "", false }, stay},
		{"no record, leading", func(o *outlook) { o.record, o.leading = nil, true }, restore},
		{"no record, leading without lease", func(o *outlook) { o.record, o.leading, o.leased = nil, true, false }, stay},
		{"no record, a peer has a leader", func(o *outlook) { o.record, o.peerLeader = nil, true }, stay},
		{"no record for a ttl, a peer has a leader", func(o *outlook) { o.record, o.peerLeader, o.recordMissing = nil, true, ttl }, bootstrap},
		{"no record for a ttl, a leader", func(o *outlook) { o.record, o.leader, o.recordMissing = nil, true, ttl }, stay},
		{"no record for 2 ttl, a leader", func(o *outlook) { o.record, o.leader, o.recordMissing = nil, true, 2*ttl }, bootstrap},
	}
	for _, tt := range tests {
		o := base
		tt.change(&o)
		if got := decide(o); got != tt.want {
			t.Errorf("%s: got action %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestLiving(t *testing.T) {
	t.Parallel()
	rec := &record{ID: 7, Voters: []string{"a#7.1", "b#7.1", "c#7.1", "d#7.1"}}
	peers := []Peer{
		{Boot: "a", Leased: true, RaftInfo: RaftInfo{Server: "a#7.1"}},
		{Boot: "b", Leased: true, RaftInfo: RaftInfo{Server: "b#6.1"}}, // its lease is older than its server
		{Boot: "c", Leased: true, RaftInfo: RaftInfo{Server: "c#7.2"}}, // it dropped its vote
		{Boot: "d", RaftInfo: RaftInfo{Server: "d#7.1"}},               // no lease
	}
	if got := countLiving(rec.Voters, peers); got != 2 {
		t.Errorf("got %d living voters, want 2", got)
	}
}

// TestNextChange writes voters in upper case. A mark behind a server means: "-" draining, "!" dead, "?" lags, "~"
// without a lease, "+" not yet added, "*" recent. The leader comes first.
func TestNextChange(t *testing.T) {
	t.Parallel()
	tests := []struct {
		servers string
		want    changeKind
		who     string
	}{
		{"A", noChange, ""},
		{"A b", noChange, ""},
		{"A b+", addServer, "b"},
		{"A b c", promote, "b"},
		{"A b? c", promote, "c"},
		{"A b? c?", noChange, ""},
		{"A B c", promote, "c"},
		{"A B C", noChange, ""},
		{"A B C d e", noChange, ""},
		{"A B C d e f g", promote, "d"},
		{"A B C! d", promote, "d"},
		{"A B C! d?", noChange, ""},
		{"A B C! D", removeServer, "C"},
		{"A B C d!", removeServer, "d"},
		{"A B C!", removeServer, "C"},
		{"A B", demote, "B"},
		{"A B C- d", promote, "d"},
		{"A B C- D", demote, "C"},
		{"A B C D", demote, "D"},
		{"A- b", promote, "b"},
		{"A- B", noChange, ""},
		{"A- B-", noChange, ""},
		{"A B C~", noChange, ""}, // B may not go: A and C would be no quorum
		{"A B~ C", noChange, ""},
		{"A B! C", removeServer, "B"},
		{"A B C~ d", promote, "d"},
		{"A b* c", promote, "c"},
		{"A b* c*", noChange, ""},
		{"A B C! d*", removeServer, "C"}, // two votes are as good as two of three
		{"A B C- d*", demote, "C"},
		{"A- b* c", promote, "c"},
		{"A- b*", promote, "b"},
		{"A! b", promote, "b"}, // self is never given up
	}
	for _, tt := range tests {
		servers, view, current := drawnServers(tt.servers)
		got := nextChange(servers, view, string(servers[0].ID), current)
		who := ""
		if tt.who != "" {
			who = tt.who + "#1.1"
		}
		if got.kind != tt.want || got.server != who {
			t.Errorf("%q: got change %d of %q, want %d of %q", tt.servers, got.kind, got.server, tt.want, who)
		}
	}
}

func drawnServers(drawing string) ([]raft.Server, View, plan.Generation) {
	current := gen(1, 5)
	var servers []raft.Server
	var view View
	for word := range strings.FieldsSeq(drawing) {
		name, mark := word[:1], word[1:]
		server := raft.Server{ID: raft.ServerID(name + "#1.1"), Suffrage: raft.Nonvoter}
		if name < "a" {
			server.Suffrage = raft.Voter
		}
		if mark != "+" {
			servers = append(servers, server)
		}
		p := Peer{Node: plan.Node{Name: name, Draining: mark == "-"}, Leased: mark != "~", RaftInfo: RaftInfo{Server: string(server.ID), Applied: current}}
		p.Recent = mark == "*"
		if mark == "?" {
			p.RaftInfo.Applied.Index--
		}
		if mark != "!" {
			view.Peers = append(view.Peers, p)
		}
	}
	return servers, view, current
}
