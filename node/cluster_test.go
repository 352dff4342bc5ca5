package node

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// member is a node of a test's cluster.
type member struct {
	*Node
	stop func() // ends it and waits
}

func startMember(t *testing.T, url, name string, shards int) *member {
	t.Helper()
	return startMemberWith(t, Config{Name: name, Redis: url, TTL: 6 * time.Second}, shards)
}

func startMemberWith(t *testing.T, cfg Config, shards int, also ...func(*Node) error) *member {
	t.Helper()
	cfg.Bind = "127.0.0.1:0"
	return startNode(t, cfg, shards, also...)
}

// startNode starts a node that handles orders, in a cluster if the configuration says so; also is done before it runs.
func startNode(t *testing.T, cfg Config, shards int, also ...func(*Node) error) *member {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Handle(QueueConfig{Name: "orders", Shards: shards}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range also {
		if err := f(n); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	m := &member{Node: n, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", n.Name(), err)
		}
	}}
	t.Cleanup(m.stop)
	return m
}

// owns counts the shards that a node runs.
func (m *member) owns() int {
	if in := m.current.Load(); in != nil {
		return len(in.claims.All())
	}
	return 0
}

func spread(members ...*member) []int {
	var counts []int
	for _, m := range members {
		counts = append(counts, m.owns())
	}
	slices.Sort(counts)
	return counts
}

func awaitSpread(t *testing.T, want []int, members ...*member) {
	t.Helper()
	await(t, fmt.Sprintf("a spread of %v", want), func() bool { return slices.Equal(spread(members...), want) })
}

// A node that is alone serves at once; shards follow joins, drains and departures.
func TestCluster(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	n1 := startMember(t, url, "n1", 40)
	awaitSpread(t, []int{40}, n1)
	n2, n3 := startMember(t, url, "n2", 40), startMember(t, url, "n3", 40)
	awaitSpread(t, []int{13, 13, 14}, n1, n2, n3)
	for _, m := range []*member{n1, n2, n3} {
		await(t, m.Name()+" is ready", func() bool { return m.Ready() == nil })
	}
	await(t, "a plan of a fourth node has 10 moves", func() bool {
		moves, err := n2.Plan(t.Context(), []string{"n4"}, nil)
		return err == nil && len(moves) == 10
	})
	await(t, "n1 is the first of three members, alive", func() bool {
		list, err := n2.Members()
		return err == nil && len(list) == 3 && list[0].Node == "n1" && list[0].State == "alive"
	})
	await(t, "40 shards are owned", func() bool { return states(t, n3)[status.Owned] == 40 })
	if instance, err := n1.Drain(t.Context(), "n2", true); err != nil || identity.NodeOf(instance) != "n2" {
		t.Errorf("drain: got %s, %v", instance, err)
	}
	awaitSpread(t, []int{0, 20, 20}, n1, n2, n3)
	if n2.Ready() == nil {
		t.Error("a drained node says that it is ready")
	}
	n2.drain(false)
	awaitSpread(t, []int{13, 13, 14}, n1, n2, n3)
	n1.stop()
	awaitSpread(t, []int{20, 20}, n2, n3)
	n2.stop()
	awaitSpread(t, []int{40}, n3)
}

// states counts the shards in each state, as a node tells.
func states(t *testing.T, m *member) map[status.ShardState]int {
	t.Helper()
	list, err := m.Shards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[status.ShardState]int{}
	for _, s := range list {
		counts[s.State]++
	}
	return counts
}

// Two processes of one name: the newer works, the older stands by and says why.
func TestClusterNameTaken(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	older := startMember(t, url, "n1", 4)
	awaitSpread(t, []int{4}, older)
	newer := startMember(t, url, "n1", 4)
	await(t, "the newer works", func() bool { return newer.owns() == 4 && older.owns() == 0 })
	await(t, "the older process is not ready", func() bool { return older.Ready() != nil })
}

func TestViewOf(t *testing.T) {
	start := time.Unix(1000, 0)
	lease := func(node, boot string, at time.Duration) LeaseInfo {
		return LeaseInfo{Node: node, Boot: boot, Start: start.Add(at), Queues: map[string]int{"b": 1, "a": 0}, Weight: 2}
	}
	gossip := func(boot string, state membership.State, draining bool) membership.Member {
		return membership.Member{Instance: membership.Instance{Node: "g", Boot: boot, N: 1}, State: state, Address: "10.0.0.1:7946",
			Meta: membership.Meta{Raft: 7947, Draining: draining, RaftInfo: "{}"}}
	}
	view := viewOf([]LeaseInfo{lease("n1", "A", 0), lease("n1", "B", time.Second), lease("n2", "C", 0)},
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

// What a process tells by gossip fits, however far its numbers grow: no setting is in it.
func TestGossipMetaFits(t *testing.T) {
	t.Parallel()
	server := fmt.Sprintf("%s#%d.%d", identity.NewBoot(), uint64(math.MaxUint64), math.MaxInt)
	seat, err := json.Marshal(rebalance.RaftInfo{Server: server, Leader: server, Applied: plan.Generation{Record: math.MaxUint64, Index: math.MaxUint64}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = membership.New(membership.Config{
		Cluster: "c", Node: strings.Repeat("n", lowkiq.MaxQueueName), Boot: identity.NewBoot(), Bind: "127.0.0.1:0",
		Meta: membership.Meta{N: math.MaxInt, Raft: 65535, Draining: true, Leaving: true, RaftInfo: string(seat)},
	})
	if err != nil {
		t.Error(err)
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

// Two leases of one process, the older one about to run out: the process is what the newer
// one says, in whatever order they are read.
func TestLatest(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	older := LeaseInfo{Node: "n1", Boot: "B", Instance: "n1/B.9", Start: at, Draining: true}
	newer := LeaseInfo{Node: "n1", Boot: "B", Instance: "n1/B.10", Start: at.Add(time.Second)}
	for _, leases := range [][]LeaseInfo{{older, newer}, {newer, older}} {
		if got := latest(leases); len(got) != 1 || got[0].Instance != newer.Instance {
			t.Errorf("got %+v, want the newer one alone", got)
		}
	}
}
