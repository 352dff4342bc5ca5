package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/status"
)

// startMember starts a node of a cluster that handles orders; also is done before it runs.
func startMember(t *testing.T, cfg Config, shards int, also ...func(*Node) error) *running {
	t.Helper()
	if cfg.Bind = "127.0.0.1:0"; cfg.TTL == 0 {
		cfg.TTL = 6 * time.Second
	}
	orders := func(n *Node) error {
		return n.Handle(QueueConfig{Name: "orders", Shards: shards}, lowkiq.HandlerFunc(nothing))
	}
	return startQueues(t, cfg, append(also, orders)...)
}

func spread(members ...*running) []int {
	var counts []int
	for _, m := range members {
		counts = append(counts, m.owns())
	}
	slices.Sort(counts)
	return counts
}

func awaitSpread(t *testing.T, want []int, members ...*running) {
	t.Helper()
	var got []int
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the spread was %v at last, want %v", got, want)
		}
	})
	await(t, fmt.Sprintf("a spread of %v", want), func() bool { got = spread(members...); return slices.Equal(got, want) })
}

// TestCluster checks that a node that is alone serves at once, and that shards follow joins, drains and departures.
func TestCluster(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	n1 := startMember(t, Config{Name: "n1", Redis: url}, 40)
	awaitSpread(t, []int{40}, n1)
	await(t, "n1 leads", func() bool { return n1.cluster.Load() != nil && n1.isLeader() })
	n2, n3 := startMember(t, Config{Name: "n2", Redis: url}, 40), startMember(t, Config{Name: "n3", Redis: url}, 40)
	awaitSpread(t, []int{13, 13, 14}, n1, n2, n3)
	for _, m := range []*running{n1, n2, n3} {
		await(t, m.Name()+" is ready", func() bool { return m.Ready() == nil })
	}
	await(t, "a plan of a fourth node has 10 moves", func() bool {
		moves, err := n2.Cluster().Plan(t.Context(), []string{"n4"}, nil)
		return err == nil && len(moves) == 10
	})
	await(t, "n1 is the first of three members, alive", func() bool {
		list, err := n2.Cluster().Members()
		return err == nil && len(list) == 3 && list[0].Node == "n1" && list[0].State == "alive"
	})
	await(t, "40 shards are owned", func() bool { return states(t, n3)[status.Owned] == 40 })
	if instance, err := n1.Cluster().Drain(t.Context(), "n2", true); err != nil || identity.NodeOf(instance) != "n2" {
		t.Errorf("drain: got %s, %v", instance, err)
	}
	awaitSpread(t, []int{0, 20, 20}, n1, n2, n3)
	if n2.Ready() == nil {
		t.Error("a drained node says that it is ready")
	}
	n2.setDrained(false)
	awaitSpread(t, []int{13, 13, 14}, n1, n2, n3)
	n1.stop()
	awaitSpread(t, []int{20, 20}, n2, n3)
	n2.stop()
	awaitSpread(t, []int{40}, n3)
	await(t, "all of it is written down", func() bool {
		lines, _, err := changes.In(n3.client.DB()).Read(t.Context(), changes.Query{Limit: 100})
		told := map[string]bool{}
		for _, line := range lines {
			told[line.Action+" "+line.Target+string(line.New)] = true
		}
		for _, want := range []string{"leads n1", "joined n1", "shards moved 40", "joined n3", "left n2", "joined n2", "left n1", "leads n3"} {
			if !told[want] {
				return false
			}
		}
		return err == nil
	})
}

// states counts the shards in each state, as a node tells.
func states(t *testing.T, m *running) map[status.ShardState]int {
	t.Helper()
	list, err := m.Cluster().Shards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[status.ShardState]int{}
	for _, s := range list {
		counts[s.State]++
	}
	return counts
}

// TestClusterNameTaken starts two processes with a name. The newer process works, and the older process stands by and says why.
func TestClusterNameTaken(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	older := startMember(t, Config{Name: "n1", Redis: url}, 4)
	awaitSpread(t, []int{4}, older)
	newer := startMember(t, Config{Name: "n1", Redis: url}, 4)
	await(t, "the newer works", func() bool { return newer.owns() == 4 && older.owns() == 0 })
	await(t, "the older process is not ready", func() bool { return older.Ready() != nil })
}

// TestLeaseOfTheDead checks that a lease ends as soon as its process is proven to exist no more, even if it owned no shard, so
// that its permits are free. The lease of a process without such a proof stays.
func TestLeaseOfTheDead(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	dead := identity.ThisProcess()
	dead.PID = 1 << 30
	unknown := dead
	unknown.Host = "another"
	for name, who := range map[string]identity.Process{"n1/DEAD.1": dead, "n2/UNKNOWN.1": unknown} {
		text, err := json.Marshal(identity.Identity{Process: who, TTL: 60000})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.client.Leases().Take(t.Context(), name, text, []byte("{}"), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	startMember(t, Config{Name: "n3", Redis: url}, 4)
	leased := func(name string) bool {
		i, err := p.client.Leases().Instance(t.Context(), name)
		if err != nil || i.Identity == nil {
			t.Errorf("%s: got the identity %s, %v, want the index to keep it", name, i.Identity, err)
		}
		return i.Lease != nil
	}
	await(t, "the lease of the dead has ended", func() bool { return !leased("n1/DEAD.1") })
	if !leased("n2/UNKNOWN.1") {
		t.Error("a lease ended of whose process nothing is known")
	}
}
