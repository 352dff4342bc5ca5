package node

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
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
	tier.Usual(t)
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
	tier.Usual(t)
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghostQueue(t, p)
	m := startNode(t, Config{Name: "n1", Redis: url, TTL: 3 * time.Second}, 4)
	await(t, "the lag of a queue that nobody handles is exported", func() bool { n, _ := scrape(t, m, "lowkiq_queue_lag_seconds", "ghost"); return n > 0 })
	await(t, "it is known to be unhandled", func() bool { n, _ := scrape(t, m, "lowkiq_queue_unhandled", "ghost"); return n == 1 })
}
