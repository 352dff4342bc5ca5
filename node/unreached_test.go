package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/rebalance"
)

// TestRaftPortBlocked lets two nodes gossip while Raft's connections fail, between both or only to the follower. Both ends name
// the address in the status and the log until it is open. At the default ttl that takes up to 10 s on an idle machine; see
// TestUnreached and TestLeaderless.
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
	var nodes [2]*running
	var logs [2]lines
	launch := func(i int, dial rebalance.DialFunc) *cluster.Cluster {
		n := startMember(t, Config{Name: fmt.Sprint("n", i+1), Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&logs[i], nil))}, 4,
			func(n *Node) error { n.dialRaft = dial; return nil })
		nodes[i] = n
		await(t, "it has joined gossip", func() bool { return n.cluster.Load() != nil })
		return n.cluster.Load()
	}
	warned := func(i int, address string) bool {
		return slices.ContainsFunc(nodes[i].Warnings(), func(text string) bool { return strings.Contains(text, address) }) &&
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
	says("the leader names the second's address in status and log", 0, raftAddress(second))
	says("so does the second itself", 1, raftAddress(second))
	if bothWays {
		says("the second names the first's address", 1, raftAddress(first))
	} else if warned(1, raftAddress(first)) {
		t.Error("the second names the first's address, which it can connect to")
	}
	wall.Store(false)
	await(t, "both are content", func() bool { return len(first.Warnings())+len(second.Warnings()) == 0 })
	await(t, "the second follows", func() bool { return second.Status().Leader != "" })
}

// raftAddress is where a lease says that the process is called by Raft.
func raftAddress(c *cluster.Cluster) string {
	var info identity.Lease
	c.DescribeInLease(&info)
	return info.Raft
}
