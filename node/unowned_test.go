package node

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// ghostQueue is a queue of two shards that no node handles, with one job, "a".
func ghostQueue(t *testing.T, p *producer) *queue.Queue {
	t.Helper()
	ghost, err := p.client.Register(t.Context(), lowkiq.Queue{Name: "ghost", Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ghost.Push(t.Context(), lowkiq.Push{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	return ghost
}

// A queue that nobody handles any more, whose last worker died: the leader counts its
// shards as unowned, and what was in flight waits again.
func TestUnowned(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghost := ghostQueue(t, p)
	popped, err := dead(t, p, ghost.Of("a"), 1).Pop(t.Context(), queue.PopRequest{IDs: 1, Bytes: 1 << 20})
	if err != nil || len(popped.Jobs) != 1 {
		t.Fatalf("got %d jobs in flight with the dead, %v; want one", len(popped.Jobs), err)
	}
	m := startMember(t, url, "n1", 4)
	awaitSpread(t, []int{4}, m)
	unowned := func(queue string) (float64, int) { return scrape(t, m, "lowkiq_shards_unowned", queue) }
	await(t, "two unowned shards are exported", func() bool { n, _ := unowned("ghost"); return n == 2 })
	await(t, "no unowned shard of orders is, in one series", func() bool { n, series := unowned("orders"); return n == 0 && series == 1 })
	await(t, "the job waits again", func() bool {
		stats, err := ghost.Stats(t.Context())
		return err == nil && stats.Jobs.Ready == 1 && stats.Jobs.InFlight == 0
	})
	await(t, "the queue is known to be unhandled", func() bool { n, _ := scrape(t, m, "lowkiq_queue_unhandled", "ghost"); return n == 1 })
	await(t, "its lag is exported", func() bool {
		n, series := scrape(t, m, "lowkiq_queue_lag_seconds", "ghost")
		return n > 0 && series == 1
	})
	if n, _ := scrape(t, m, "lowkiq_queue_unhandled", "orders"); n != 0 {
		t.Errorf("orders: got unhandled %v, want 0", n)
	}
	if owner, err := ghost.Of("a").Owner(t.Context()); err != nil || owner.Instance != "" {
		t.Errorf("got owner %q, %v; want none", owner.Instance, err)
	}
}

// Without a cluster a node looks, too.
func TestUnhandledWithoutCluster(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghostQueue(t, p)
	m := startNode(t, Config{Name: "n1", Redis: url, TTL: 3 * time.Second}, 4)
	await(t, "the lag of a queue that nobody handles is exported", func() bool { n, _ := scrape(t, m, "lowkiq_queue_lag_seconds", "ghost"); return n > 0 })
	await(t, "it is known to be unhandled", func() bool { n, _ := scrape(t, m, "lowkiq_queue_unhandled", "ghost"); return n == 1 })
}

// The answer to the leader's claim is lost, or that to its release: it does not stay the owner
// of a shard that it does not serve, for which others would wait as long as it lives.
func TestUnownedAnswerLost(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]string{"claim": {"seize"}, "release": {":wake"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			p := open(t, server.URL(), 4)
			ghost, err := p.client.Register(t.Context(), lowkiq.Queue{Name: "ghost", Shards: 1})
			if err != nil {
				t.Fatal(err)
			}
			dead(t, p, ghost.Shard(0), 1)
			lose := func(request []string) bool {
				text := strings.Join(request, " ")
				return strings.HasPrefix(strings.ToLower(request[0]), "eval") && strings.Contains(text, "/ghost/") && strings.Contains(text, words[0])
			}
			if name == "claim" {
				proxy.CutReplyOf(lose)
			} else {
				proxy.CutRequestOf(lose)
			}
			m := startMember(t, proxy.URL(), "n1", 4)
			awaitSpread(t, []int{4}, m)
			await(t, "an answer was lost", func() bool { return proxy.Cuts() > 0 })
			await(t, "nobody owns the shard", func() bool {
				owner, err := ghost.Shard(0).Owner(t.Context())
				return err == nil && owner.Instance == ""
			})
		})
	}
}

// How often a queue with a wrong sum is looked at.
func TestDoubt(t *testing.T) {
	t.Parallel()
	w := &watcher{doubts: map[string]*doubt{}}
	var read []int
	for look := range 40 {
		if w.due("q") {
			read = append(read, look)
		}
	}
	want := []int{1, 3, 7, 15, 31}
	if len(read) != len(want) {
		t.Fatalf("claims were read at looks %v, want %v", read, want)
	}
	for i := range want {
		if read[i] != want[i] {
			t.Errorf("claims were read at looks %v, want %v", read, want)
		}
	}
}

// What the leases of all nodes add up to.
func TestSumsOfLeases(t *testing.T) {
	t.Parallel()
	handled, owned := sums([]LeaseInfo{
		{Queues: map[string]int{"orders": 3, "mail": 0}}, {Queues: map[string]int{"orders": 2}},
	})
	if !handled["mail"] || handled["ghost"] || owned["orders"] != 5 || owned["mail"] != 0 {
		t.Errorf("got handled %v, owned %v", handled, owned)
	}
}
