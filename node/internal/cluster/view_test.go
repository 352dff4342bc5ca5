package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestViewOf(t *testing.T) {
	start := time.Unix(1000, 0)
	lease := func(node, boot string, at time.Duration) identity.Lease {
		return identity.Lease{Node: node, Boot: boot, Start: start.Add(at), Queues: map[string]int{"b": 1, "a": 0}, Weight: 2}
	}
	gossip := func(boot string, state membership.State, draining bool) membership.Member {
		return membership.Member{Instance: membership.Instance{Node: "g", Boot: boot, N: 1}, State: state, Address: "10.0.0.1:7946",
			Meta: membership.Meta{Raft: 7947, Draining: draining, RaftInfo: "{}"}}
	}
	static := lease("n1", "S", 2*time.Second) // it follows no plan, and supersedes nobody
	static.Static = &identity.Share{Of: 3}
	view := viewOf([]identity.Lease{lease("n1", "A", 0), lease("n1", "B", time.Second), lease("n2", "C", 0), static},
		[]membership.Member{gossip("C", membership.Alive, true), gossip("D", membership.Alive, false), gossip("E", membership.Dead, false)})
	want := []rebalance.Peer{
		{Node: plan.Node{Name: "n1", Weight: 2, Queues: []string{"a", "b"}}, Boot: "A", Leased: true, Superseded: true},
		{Node: plan.Node{Name: "n1", Weight: 2, Queues: []string{"a", "b"}}, Boot: "B", Leased: true},
		{Node: plan.Node{Name: "n2", Weight: 2, Queues: []string{"a", "b"}, Draining: true}, Boot: "C", Leased: true},
		{Node: plan.Node{Name: "g"}, Boot: "D", Address: "10.0.0.1:7947"},
	}
	if got, want := fmt.Sprint(view.Peers), fmt.Sprint(want); got != want {
		t.Errorf("peers: got %s, want %s", got, want)
	}
}

func TestAssignmentOf(t *testing.T) {
	a := assignmentOf(map[string][]string{"q": {"n2", "", "n1", "n2"}})
	for i, want := range []string{"n2", "", "n1", "n2"} {
		if got := a.Owner(lowkiq.Shard{Queue: "q", Index: i}); got != want {
			t.Errorf("owner of q/%d: got %q, want %q", i, got, want)
		}
	}
}

// TestLatest reads two leases of one process in both orders. The older lease is about to run out. The newer lease
// counts.
func TestLatest(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	older := identity.Lease{Node: "n1", Boot: "B", Instance: "n1/B.9", Start: at, Draining: true}
	newer := identity.Lease{Node: "n1", Boot: "B", Instance: "n1/B.10", Start: at.Add(time.Second)}
	for _, leases := range [][]identity.Lease{{older, newer}, {newer, older}} {
		if got := newestLeases(leases); len(got) != 1 || got[0].Instance != newer.Instance {
			t.Errorf("got %+v, want the newer one alone", got)
		}
	}
}

// TestGossipOfANodeIsBounded checks that all gossip of a node fits into memberlist's limit. It has nothing about other
// nodes, and does not change with a plan, which is no news for gossip.
func TestGossipOfANodeIsBounded(t *testing.T) {
	t.Parallel()
	boot := identity.NewBoot()
	server := fmt.Sprintf("%s#%d.%d", boot, uint64(math.MaxUint64), math.MaxInt)
	encoded := func(index uint64) string {
		seat := rebalance.RaftInfo{Server: server, Leader: server, Applied: plan.Generation{Record: math.MaxUint64, Index: index}, CanPlan: true}
		text, err := json.Marshal(membership.Meta{N: math.MaxInt, Raft: 65535, Draining: true, Leaving: true, RaftInfo: gossipedInfo(seat)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := encoded(1)
	t.Logf("%d bytes at most: %s", len(first), first)
	if len(first) >= membership.MaxMeta {
		t.Errorf("%d bytes, want fewer than %d", len(first), membership.MaxMeta)
	}
	if next := encoded(2); next != first {
		t.Errorf("after a change of the plan: got %s, want the same as before, %s", next, first)
	}
}

// TestTheDeadAreNotAskedFor checks that an instance that has lost its lease is read again only from time to time. It is
// forgotten with its entry in the index.
func TestTheDeadAreNotAskedFor(t *testing.T) {
	t.Parallel()
	const again = time.Minute
	named := func(names ...string) (list []lease.Instance) {
		for _, name := range names {
			list = append(list, lease.Instance{Name: name, Identity: []byte("{}")})
		}
		return list
	}
	s := viewCache{index: named("a", "b", "c")}
	look := func(now time.Duration, leased ...string) string {
		asked, names := s.instancesToRead(now, again), ""
		for i := range asked {
			names += asked[i].Name
			if slices.Contains(leased, asked[i].Name) {
				asked[i].Lease = []byte("{}")
			}
		}
		s.noteLost(now, asked)
		return names
	}
	for _, step := range []struct {
		at     time.Duration
		leased string
		want   string
	}{
		{0, "abc", "abc"},
		{time.Second, "ac", "abc"},
		{2 * time.Second, "ac", "ac"},
		{time.Second + again - 1, "ac", "ac"},
		{time.Second + again, "a", "abc"}, // and b has not come back
		{2*time.Second + again, "a", "a"},
		{time.Second + 2*again, "abc", "abc"}, // a failover shows what was before
		{2*time.Second + 2*again, "ab", "abc"},
		{3*time.Second + 2*again, "ab", "ab"},
	} {
		if got := look(step.at, strings.Split(step.leased, "")...); got != step.want {
			t.Errorf("at %s: asked for %s, want %s", step.at, got, step.want)
		}
	}
	s.index = named("a", "d")
	if got := look(4*time.Second+2*again, "a", "d"); got != "ad" || len(s.withoutLease) != 0 {
		t.Errorf("asked for %s, lost %v; want a and d, and none", got, s.withoutLease)
	}
}

// TestClaimsOverManyTurns checks that several turns together read the claims of a group. Its first plan needs all
// claims, and each turn may be too short for all of them, for example with a slow Redis.
func TestClaimsOverManyTurns(t *testing.T) {
	t.Parallel()
	const shards = lowkiq.MaxShards
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	client, err := protocol.Open(protocol.Config{Redis: proxy.URL(), Cluster: "default"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Shard(shards-1).Claim(t.Context(), "n7/B.1", protocol.Fresh, protocol.Owner{}); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{cfg: Config{TTL: time.Minute, Redis: client, Now: func() time.Duration { return 0 }}}
	proxy.Delay(80 * time.Millisecond)
	turns, read := 0, false
	for deadline := time.Now().Add(3 * time.Minute); !read && time.Now().Before(deadline); turns++ {
		read = func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			defer cancel()
			all, err := c.Claims(ctx)
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) && !protocol.Unreachable(err) {
					t.Fatal(err)
				}
				return false
			}
			for i, want := range []string{shards - 1: "n7"} {
				if got := all.Owner(lowkiq.Shard{Queue: "orders", Index: i}); got != want {
					t.Fatalf("shard %d belongs to %q, want %q", i, got, want)
				}
			}
			return true
		}()
	}
	if !read {
		t.Fatal("not all claims were read within three minutes")
	}
	if turns < 2 {
		t.Errorf("read in %d turn, want one that is too short before", turns)
	}
}

// TestAddressesWhileLookingAway checks that a process that reads only its own lease finds the others at their addresses
// of the last read of all leases.
func TestAddressesWhileLookingAway(t *testing.T) {
	t.Parallel()
	c := &Cluster{cfg: Config{Boot: "B", TTL: time.Second, Now: func() time.Duration { return time.Hour }}}
	c.cache.recent.Store(&recentView{live: []identity.Lease{{Boot: "B", Gossip: "h1:7946"}, {Boot: "C", Gossip: "h2:7946"}}})
	c.cache.lookedAway.Store(true)
	if got, err := c.gossipAddresses(t.Context()); err != nil || !slices.Equal(got, []string{"h2:7946"}) {
		t.Errorf("got %v %v, want the other process's", got, err)
	}
}
