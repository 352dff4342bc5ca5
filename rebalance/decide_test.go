package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	rec := &record{ID: 7, Voters: []string{"a#7.1", "b#7.1", "c#7.1"}}
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
		{"a record of its own, answer lost", func(o *outlook) { o.record, o.minted = mine, "a#9.2" }, resume},
		{"mark missing for a moment", func(o *outlook) { o.markGone = ttl }, stay},
		{"mark missing for long", func(o *outlook) { o.markGone = 2 * ttl }, rebear},
		{"mark missing for long, leading", func(o *outlook) { o.markGone, o.leading = 2*ttl, true }, stay},
		{"mark missing for long, no lease", func(o *outlook) { o.markGone, o.leased = 2*ttl, false }, stay},
		{"mark missing, voters dead", func(o *outlook) { o.livingVoters = 1 }, rebear},
		{"mark there, voters dead", func(o *outlook) { o.livingVoters, o.marked = 1, true }, stay},
		{"mark missing, voters dead, unheard before", func(o *outlook) { o.livingVoters, o.shy = 1, true }, stay},
		{"no record, unheard before", func(o *outlook) { o.record, o.server, o.shy = nil, "", true }, stay},
		{"no record, alone", func(o *outlook) { o.record, o.server = nil, "" }, found},
		{"no record, no lease", func(o *outlook) { o.record, o.server, o.leased = nil, "", false }, stay},
		{"no record, leading", func(o *outlook) { o.record, o.leading = nil, true }, restore},
		{"no record, leading without lease", func(o *outlook) { o.record, o.leading, o.leased = nil, true, false }, stay},
		{"no record, a peer has a leader", func(o *outlook) { o.record, o.peerLeader = nil, true }, stay},
		{"no record for a ttl, a peer has a leader", func(o *outlook) { o.record, o.peerLeader, o.recordGone = nil, true, ttl }, found},
		{"no record for a ttl, a leader", func(o *outlook) { o.record, o.leader, o.recordGone = nil, true, ttl }, stay},
		{"no record for 2 ttl, a leader", func(o *outlook) { o.record, o.leader, o.recordGone = nil, true, 2*ttl }, found},
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
		{Boot: "a", Leased: true, Seat: Seat{Server: "a#7.1"}},
		{Boot: "b", Leased: true, Seat: Seat{Server: "b#6.1"}}, // its lease is older than its server
		{Boot: "c", Leased: true, Seat: Seat{Server: "c#7.2"}}, // it dropped its vote
		{Boot: "d", Seat: Seat{Server: "d#7.1"}},               // no lease
	}
	if got := living(rec, peers); got != 2 {
		t.Errorf("got %d living voters, want 2", got)
	}
}

func TestServerID(t *testing.T) {
	t.Parallel()
	id := serverID("01J", 1763600000123, 4)
	if id != "01J#1763600000123.4" || bootOf(id) != "01J" || recordOf(id) != 1763600000123 {
		t.Errorf("got %q of boot %q and record %d", id, bootOf(id), recordOf(id))
	}
	if got := recordOf("nonsense"); got != 0 {
		t.Errorf("got record %d, want 0", got)
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "{}", "[1]", `{"id":-1}`} {
		if rec, err := decodeRecord([]byte(data)); err == nil {
			t.Errorf("%q: got %+v, want an error", data, rec)
		}
	}
}

// TestNextChange: voters are upper case, draining ends in "-", dead in "!", not
// caught up in "?", without a lease in "~", not yet added in "+"; the leader comes first.
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

func drawnServers(drawing string) ([]raft.Server, View, Generation) {
	current := Generation{1, 5}
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
		p := Peer{Node: Node{Name: name, Draining: mark == "-"}, Leased: mark != "~", Seat: Seat{Server: string(server.ID), Applied: current}}
		if mark == "?" {
			p.Seat.Applied.Index--
		}
		if mark != "!" {
			view.Peers = append(view.Peers, p)
		}
	}
	return servers, view, current
}

func TestSteady(t *testing.T) {
	t.Parallel()
	all, most, few := []string{"a", "b", "c", "d"}, []string{"a", "b"}, []string{"a"}
	start := time.Unix(0, 0)
	tests := []struct {
		name  string
		steps []struct {
			at    time.Duration
			names []string
		}
		want []bool
	}{
		{"at first", steps(0, all, 1, all, 2, all), []bool{false, false, true}},
		{"a change starts again", steps(0, all, 1, most, 2, most, 3, most), []bool{false, false, false, true}},
		{"half may vanish", steps(0, all, 2, all, 3, most), []bool{false, true, true}},
		{"more than half may not", steps(0, all, 2, all, 3, few, 4, few, 5, few), []bool{false, true, false, false, true}},
		{"back again", steps(0, all, 2, all, 3, few, 4, all, 5, all, 6, all), []bool{false, true, false, false, false, true}},
	}
	for _, tt := range tests {
		s := steady{hold: 2 * time.Second}
		s.doubt(start)
		for i, step := range tt.steps {
			if got := s.observe(start.Add(step.at), step.names); got != tt.want[i] {
				t.Errorf("%s: step %d: got %v, want %v", tt.name, i, got, tt.want[i])
			}
		}
	}
}

type step = struct {
	at    time.Duration
	names []string
}

func steps(pairs ...any) []step {
	var all []step
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, step{time.Duration(pairs[i].(int)) * time.Second, pairs[i+1].([]string)})
	}
	return all
}

func TestLobby(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	l := lobby{settle: time.Second}
	check := func(what string, now time.Time, names, want []string) {
		t.Helper()
		if got := l.admit(now, names, []string{"old"}, all); !slices.Equal(got, want) {
			t.Errorf("%s: got %v in, want %v", what, got, want)
		}
	}
	check("owners are in", at(0), []string{"a", "old"}, []string{"old"})
	check("a second one prolongs", at(0.9), []string{"a", "b", "old"}, []string{"old"})
	check("still waiting", at(1.8), []string{"a", "b", "old"}, []string{"old"})
	if got, want := l.due(), at(1.9); !got.Equal(want) {
		t.Errorf("due: got %s, want %s", got, want)
	}
	check("settled", at(1.9), []string{"a", "b", "old"}, []string{"a", "b", "old"})
	check("deaths at once", at(2), []string{"a"}, []string{"a"})
	names := []string{"a"}
	for i := range 9 {
		names = append(names, fmt.Sprintf("x%d", i))
		if got := l.admit(at(3+0.9*float64(i)), names, nil, all); (len(got) > 1) != (i >= 6) {
			t.Errorf("stream of joins: %d in after %d came", len(got)-1, i+1)
		}
	}
}

func all(string) bool { return true }

// A node that would not hear of its shards waits for as long as that is so; others are
// not kept waiting by it, but for the first plan, and then not for ever.
func TestLobbyWantsHearing(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	hears := map[string]bool{"a": true}
	l := lobby{settle: time.Second}
	names := []string{"a", "b"}
	for _, step := range []struct {
		name      string
		at        time.Duration
		hear      string // who begins to hear
		want      []string
		gathering bool
		due       time.Duration // 0 = none
	}{
		{"both wait", 0, "", nil, true, time.Second},
		{"one is in", time.Second, "", []string{"a"}, true, 0},
		{"the other hears nothing for long", 7 * time.Second, "", []string{"a"}, false, 0},
		{"then it hears, and others may be coming", 8 * time.Second, "b", []string{"a"}, false, 9 * time.Second},
		{"nobody was", 9 * time.Second, "", []string{"a", "b"}, false, 0},
	} {
		hears[step.hear] = true
		now := start.Add(step.at)
		got := l.admit(now, names, nil, func(name string) bool { return hears[name] })
		if !slices.Equal(got, step.want) || l.gathering(now) != step.gathering {
			t.Errorf("%s: got %v in, gathering %v; want %v, %v", step.name, got, l.gathering(now), step.want, step.gathering)
		}
		if due := l.due(); due.IsZero() != (step.due == 0) || step.due > 0 && !due.Equal(start.Add(step.due)) {
			t.Errorf("%s: got due %s, want after %s", step.name, due, step.due)
		}
	}
}

// When all that were in the lobby are leaving, nobody waits: their shards would have no
// owner.
func TestLobbyOpens(t *testing.T) {
	t.Parallel()
	l := lobby{settle: time.Second}
	names := []string{"new", "old"}
	view := View{Peers: []Peer{{Node: Node{Name: "old", Draining: true}, Leased: true}, {Node: Node{Name: "new"}, Leased: true}}}
	admitted := l.admit(time.Unix(0, 0), names, []string{"old"}, all)
	if !slices.Equal(admitted, []string{"old"}) || view.anyTakes(admitted) {
		t.Fatalf("got %v in, somebody takes shards: %v; want the leaving node alone", admitted, view.anyTakes(admitted))
	}
	if got := l.open(names); !view.anyTakes(got) || !l.due().IsZero() {
		t.Errorf("opened: got %v in, want all, and nobody waiting", got)
	}
	if got := l.admit(time.Unix(0, 1), names, nil, all); !slices.Equal(got, names) {
		t.Errorf("afterwards: got %v in, want %v", got, names)
	}
}

func TestLag(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	l := lag{patience: 2 * ttl}
	peer := func(index uint64) []Peer { return []Peer{{Boot: "b", Seat: Seat{Applied: Generation{1, index}}}} }
	tests := []struct {
		name             string
		at               time.Duration
		applied, current uint64
		want             bool
	}{
		{"behind", 0, 4, 5, false},
		{"for long", 2 * ttl, 4, 5, true},
		{"progress counts", 2*ttl + 1, 5, 6, false},
		{"stuck again", 4*ttl + 1, 5, 7, true},
		{"caught up", 4*ttl + 2, 7, 7, false},
		{"a new plan", 4*ttl + 3, 7, 8, false},
	}
	for _, tt := range tests {
		if got := l.deaf(start.Add(tt.at), peer(tt.applied), Generation{1, tt.current})["b"]; got != tt.want {
			t.Errorf("%s: got deaf %v, want %v", tt.name, got, tt.want)
		}
	}
}
