package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// Only what fails for half a ttl, and is tried, and is of a living process, is told.
func TestUnreached(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	start := time.Now()
	alive := []rebalance.Peer{{Node: plan.Node{Name: "n2"}, Address: "h2:7947"}}
	fails := func(since, last time.Duration) []rebalance.Failing {
		return []rebalance.Failing{{Address: "h2:7947", Since: start.Add(since), Last: start.Add(last), Err: errors.New("timeout")}}
	}
	var u unreached
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
		news, over := u.observe(start.Add(tt.at), ttl, tt.failing, tt.alive)
		if len(news) != tt.news || len(over) != tt.over || len(u.warnings()) != tt.warnings {
			t.Errorf("%s: got news %q, over %q, warnings %q; want %d, %d, %d", tt.name, news, over, u.warnings(), tt.news, tt.over, tt.warnings)
		}
		for _, text := range news {
			if !strings.Contains(text, "node n2 ") || !strings.Contains(text, "h2:7947") || !strings.Contains(text, "timeout") {
				t.Errorf("%s: got %q, want the node, its address and the error", tt.name, text)
			}
		}
	}
}

// Who has no leader tries the leader's address soon and now and then, and tells of its own before a ttl is over.
func TestLoneliness(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	start := time.Now()
	alone, led := rebalance.Status{Server: "b2#7.1"}, rebalance.Status{Server: "b2#7.1", Leader: "b1#7.1"}
	var l loneliness
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
		if try, tell := l.observe(start.Add(tt.at), ttl, tt.status); try != tt.try || tell != tt.tell {
			t.Errorf("at %s: got try %v, tell %v; want %v, %v", tt.at, try, tell, tt.try, tt.tell)
		}
	}
}

// The leader is a living process of the same group that another one, or itself, follows.
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
		if got, found := leaderOf(tt.alive, status); got.Address != tt.want || found != (tt.want != "") {
			t.Errorf("%s: got %q %v, want %q", tt.name, got.Address, found, tt.want)
		}
	}
}

// TestRaftPortBlocked: two nodes gossip, and Raft's connections do not succeed: none between them, or none to the
// one that is no leader. Both ends say which address it is, in the status and the log, until it is open: within 10 s at the default
// ttl where the machine has time, see TestUnreached and TestLoneliness.
func TestRaftPortBlocked(t *testing.T) {
	t.Parallel()
	t.Run("both ways", func(t *testing.T) { t.Parallel(); raftPortBlocked(t, true) })
	t.Run("one way", func(t *testing.T) { t.Parallel(); raftPortBlocked(t, false) })
}

func raftPortBlocked(t *testing.T, bothWays bool) {
	srv := redistest.Start(t)
	var wall atomic.Bool
	wall.Store(true)
	behind := func(ctx context.Context, hostPort string) (net.Conn, error) {
		if wall.Load() { // as behind a firewall that drops packets
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", hostPort)
	}
	var nodes [2]*Node
	var logs [2]lines
	launch := func(i int, dial rebalance.DialFunc) *cluster {
		n, err := New(Config{
			Name: []string{"n1", "n2"}[i], Redis: srv.URL(), TTL: 6 * time.Second, Bind: "127.0.0.1:0",
			Log: slog.New(slog.NewTextHandler(&logs[i], nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		n.dialRaft = dial
		if err := n.Handle(QueueConfig{Name: "orders", Shards: 4}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := receive(t, "the end", ended); err != nil {
				t.Error(err)
			}
		})
		nodes[i] = n
		await(t, "it has joined gossip", func() bool { return n.joined.Load() != nil })
		return n.joined.Load()
	}
	warned := func(i int, address string) bool {
		var known status.Status
		nodes[i].joined.Load().describe(&known)
		return slices.ContainsFunc(known.Warnings, func(text string) bool { return strings.Contains(text, address) }) &&
			logs[i].has("level=WARN", "raft address out of reach", address)
	}
	first := launch(0, behind)
	await(t, "a leader", func() bool { return first.agent.Status().Leading })
	dial := rebalance.DialFunc(behind)
	if !bothWays {
		dial = func(ctx context.Context, hostPort string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", hostPort)
		}
	}
	second := launch(1, dial)
	began := time.Now()
	says := func(what string, i int, address string) {
		t.Helper()
		await(t, what, func() bool { return warned(i, address) })
		t.Logf("%s: after %s", what, time.Since(began))
	}
	says("the leader names the second's address in status and log", 0, second.listener.Address())
	says("so does the second itself", 1, second.listener.Address())
	if bothWays {
		says("the second names the first's address", 1, first.listener.Address())
	} else if warned(1, first.listener.Address()) {
		t.Error("the second names the first's address, which it can connect to")
	}
	wall.Store(false)
	await(t, "both are content", func() bool { return len(first.unreached.warnings())+len(second.unreached.warnings()) == 0 })
	await(t, "the second follows", func() bool { return second.agent.Status().Leader != "" })
}
