package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// TestUnreached checks that people are told only about an address of a living process that fails for half a ttl and is
// still tried.
func TestUnreached(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	start := time.Now()
	alive := []rebalance.Peer{{Node: plan.Node{Name: "n2"}, Address: "h2:7947"}}
	fails := func(since, last time.Duration) []rebalance.Failing {
		return []rebalance.Failing{{Address: "h2:7947", Since: start.Add(since), Last: start.Add(last), Err: errors.New("timeout")}}
	}
	var w warnings
	for _, tt := range []struct {
		name                 string
		at                   time.Duration
		failing              []rebalance.Failing
		alive                []rebalance.Peer
		news, over, warnings int
	}{
		{"nothing", 0, nil, alive, 0, 0, 0},
		{"just now", ttl/2 - 1, fails(0, 0), alive, 0, 0, 0},
		{"dead by gossip", ttl / 2, fails(0, ttl/2), nil, 0, 0, 0},
		{"for ttl/2", ttl / 2, fails(0, ttl/2), alive, 1, 0, 1},
		{"longer", ttl, fails(0, ttl), alive, 0, 0, 1},
		{"well again", 2 * ttl, nil, alive, 0, 1, 0},
		{"nobody tries any more", 9 * ttl, fails(2*ttl, 6*ttl), alive, 0, 0, 0},
	} {
		news, over := w.replace(unreachable, findUnreachable(start.Add(tt.at), ttl, tt.failing, tt.alive))
		if len(news) != tt.news || len(over) != tt.over || len(w.list()) != tt.warnings {
			t.Errorf("%s: got news %q, over %q, warnings %q; want %d, %d, %d", tt.name, news, over, w.list(), tt.news, tt.over, tt.warnings)
		}
		for _, text := range news {
			if !strings.Contains(text, "node n2 ") || !strings.Contains(text, "h2:7947") || !strings.Contains(text, "timeout") {
				t.Errorf("%s: got %q, want the node, its address and the error", tt.name, text)
			}
		}
	}
}

// TestLeaderless checks that a process without a leader tries the leader's address soon, and again from time to time.
// It tells people before a ttl is over.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	start := time.Now()
	alone, led := rebalance.Status{Server: "b2#7.1"}, rebalance.Status{Server: "b2#7.1", Leader: "b1#7.1"}
	var l leaderless
	for _, tt := range []struct {
		at        time.Duration
		status    rebalance.Status
		try, tell bool
	}{
		{0, rebalance.Status{}, false, false},
		{ttl, alone, false, false},
		{ttl + ttl/3 - 1, alone, false, false},
		{ttl + ttl/3, alone, true, false},
		{ttl + ttl/2, alone, false, false},
		{ttl + ttl*5/6 - 1, alone, false, false},
		{ttl + ttl*5/6, alone, true, true},
		{2 * ttl, alone, false, true},
		{3 * ttl, alone, true, true},
		{4 * ttl, led, false, false},
		{5 * ttl, alone, false, false},
		{6 * ttl, alone, true, true},
	} {
		if try, tell := l.update(start.Add(tt.at), ttl, tt.status); try != tt.try || tell != tt.tell {
			t.Errorf("at %s: got try %v, tell %v; want %v, %v", tt.at, try, tell, tt.try, tt.tell)
		}
	}
}

// TestLeaderOf checks that the leader is a living process of the same group that some process follows.
func TestLeaderOf(t *testing.T) {
	t.Parallel()
	peer := func(server, leader string) rebalance.Peer {
		return rebalance.Peer{Address: server, RaftInfo: rebalance.RaftInfo{Server: server, Leader: leader}}
	}
	status := rebalance.Status{Server: "b9#7.1"}
	for _, tt := range []struct {
		name  string
		alive []rebalance.Peer
		want  string
	}{
		{"itself", []rebalance.Peer{peer("b1#7.1", "b1#7.1")}, "b1#7.1"},
		{"another", []rebalance.Peer{peer("b1#7.1", ""), peer("b2#7.1", "b1#7.1")}, "b1#7.1"},
		{"nobody follows", []rebalance.Peer{peer("b1#7.1", ""), peer("", "")}, ""},
		{"dead", []rebalance.Peer{peer("b2#7.1", "b1#7.1")}, ""},
		{"of an older record", []rebalance.Peer{peer("b1#6.1", "b1#6.1")}, ""},
	} {
		if got, found := findLeader(tt.alive, status); got.Address != tt.want || found != (tt.want != "") {
			t.Errorf("%s: got %q %v, want %q", tt.name, got.Address, found, tt.want)
		}
	}
}

func TestHostsApart(t *testing.T) {
	t.Parallel()
	lease := func(name, host, gossip string) identity.Lease {
		return identity.Lease{Node: name, Gossip: gossip, Process: identity.Process{Host: host}}
	}
	for _, c := range []struct {
		name string
		own  identity.Lease
		live []identity.Lease
		want string // "" = none
	}{
		{"alone", lease("n1", "h1", "127.0.0.1:7946"), []identity.Lease{lease("n1", "h1", "127.0.0.1:7946")}, ""},
		{"one host", lease("n1", "h1", "127.0.0.1:7946"), []identity.Lease{lease("n2", "h1", "127.0.0.1:7956")}, ""},
		{"two hosts", lease("n1", "h1", "10.0.0.1:7946"), []identity.Lease{lease("n2", "h2", "10.0.0.2:7946")}, ""},
		{"unknown host", lease("n1", "", "127.0.0.1:7946"), []identity.Lease{lease("n2", "h2", "127.0.0.1:7946")}, ""},
		{"no gossip", lease("n1", "h1", "10.0.0.1:7946"), []identity.Lease{lease("n2", "h2", "")}, ""},
		{"this one", lease("n1", "h1", "127.0.0.1:7946"), []identity.Lease{lease("n2", "h2", "10.0.0.2:7946")}, "gossip at 127.0.0.1:7946"},
		{"the other", lease("n1", "h1", "10.0.0.1:7946"), []identity.Lease{lease("n2", "h2", "[::1]:7946")}, "gossip at [::1]:7946"},
		{"both", lease("n1", "h1", "127.0.0.1:7946"), []identity.Lease{lease("n1", "h1", "127.0.0.1:7946"), lease("n2", "h2", "127.0.0.1:7946")}, "node n2 of another host"},
	} {
		var w warnings
		got, _ := w.replace(hostsApart, findHostsApart(c.own, c.live))
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestStandstill checks that an agent that takes no turn for that many checks has hung. It is reported once.
func TestStandstill(t *testing.T) {
	t.Parallel()
	var s standstill
	told := 0
	for look := range uint64(100) {
		turns := min(look/3, 10) // none from the 30th look on
		if s.update(turns, 30) {
			told++
			if look != 60 {
				t.Errorf("told at look %d, want 60", look)
			}
		}
	}
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
}

// TestLeaveInTime checks that the end of a node does not wait for a hung agent.
func TestLeaveInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Cluster{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hung := make(chan struct{})
		defer close(hung)
		began := time.Now()
		if err := c.leaveInTime(ctx, func(context.Context) error { <-hung; return nil }); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != maxLeave {
			t.Errorf("it took %s, want %s", took, maxLeave)
		}
	})
}
