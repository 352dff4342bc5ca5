package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
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
	tier.Usual(t)
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
