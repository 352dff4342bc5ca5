package node

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/status"
)

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
	launch := func(i int, dial rebalance.DialFunc) *cluster.Cluster {
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
		nodes[i].describe(&known)
		return slices.ContainsFunc(known.Warnings, func(text string) bool { return strings.Contains(text, address) }) &&
			logs[i].has("level=WARN", "raft address out of reach", address)
	}
	first := launch(0, behind)
	await(t, "a leader", func() bool { return first.Status().Leading })
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
	says("the leader names the second's address in status and log", 0, second.RaftAddress())
	says("so does the second itself", 1, second.RaftAddress())
	if bothWays {
		says("the second names the first's address", 1, first.RaftAddress())
	} else if warned(1, first.RaftAddress()) {
		t.Error("the second names the first's address, which it can connect to")
	}
	wall.Store(false)
	await(t, "both are content", func() bool { return len(first.Warnings())+len(second.Warnings()) == 0 })
	await(t, "the second follows", func() bool { return second.Status().Leader != "" })
}
