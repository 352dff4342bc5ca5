package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
)

// dead claims a shard for an instance of this host whose process is gone. seize says what
// it does to the holder before it.
func dead(t *testing.T, p *producer, s *protocol.Shard, number int) *protocol.Claim {
	t.Helper()
	who := identity.ThisProcess()
	who.PID = 1 << 30
	text, err := json.Marshal(identity.Identity{Process: who, TTL: 3000})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("n0/DEAD%d.%d", s.Index, number)
	if _, err := p.client.Leases().Take(t.Context(), name, text, []byte("{}"), time.Minute); err != nil {
		t.Fatal(err)
	}
	owner, err := s.Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cause := protocol.Seize
	if owner.Instance == "" {
		cause = protocol.Fresh
	}
	claim, err := s.Claim(t.Context(), name, cause, owner)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// ghostQueue is a queue of two shards that no node handles, with one job, "a".
func ghostQueue(t *testing.T, p *producer) *protocol.Queue {
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

// TestUnowned checks a queue that no node handles, after its last worker has died. The leader exports its unowned shards and
// their lag, and its in-flight jobs wait again. When a person deletes the queue through the API, its metrics end, so that
// alerts end, too.
func TestUnowned(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghost := ghostQueue(t, p)
	popped, err := dead(t, p, ghost.Of("a"), 1).Pop(t.Context(), protocol.PopRequest{IDs: 1, Bytes: 1 << 20})
	if err != nil || len(popped.Jobs) != 1 {
		t.Fatalf("got %d jobs in flight with the dead, %v; want one", len(popped.Jobs), err)
	}
	m := startMember(t, Config{Name: "n1", Redis: url, TTL: shortTTL}, 4, func(n *Node) error { return web.Serve(n, web.Config{}) })
	exported := func(value float64, name, of string) {
		t.Helper()
		await(t, fmt.Sprintf("one %s of %s, %v", name, of, value), func() bool { n, series := scrape(t, m, name, of); return n == value && series == 1 })
	}
	exported(2, "lowkiq_shards_unowned", "ghost")
	exported(0, "lowkiq_shards_unowned", "orders")
	exported(1, "lowkiq_queue_unhandled", "ghost")
	exported(0, "lowkiq_queue_unhandled", "orders")
	await(t, "the job waits again", func() bool {
		stats, err := ghost.Stats(t.Context())
		return err == nil && stats.Jobs.Ready == 1 && stats.Jobs.InFlight == 0
	})
	await(t, "its lag is exported", func() bool { n, _ := scrape(t, m, "lowkiq_queue_lag_seconds", "ghost"); return n > 0 })
	if owner, err := ghost.Of("a").Owner(t.Context()); err != nil || owner.Instance != "" {
		t.Errorf("got owner %q, %v; want none", owner.Instance, err)
	}
	post := func(path, body string) (int, string) {
		t.Helper()
		answer, err := http.Post(m.URL()+"/api/v1/queues/"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	if status, text := post("orders/delete", `{"force":true}`); status != http.StatusConflict || !strings.Contains(text, "handled by n1") {
		t.Errorf("orders: got %d %s, want 409 with the node", status, text)
	}
	if status, text := post("ghost/delete", `{"force":true}`); status != http.StatusOK || !strings.Contains(text, `"jobs":1`) {
		t.Errorf("ghost: got %d %s, want its one job deleted", status, text)
	}
	for _, name := range []string{"lowkiq_shards_unowned", "lowkiq_queue_unhandled", "lowkiq_queue_lag_seconds", "lowkiq_queue_jobs"} {
		await(t, name+" of ghost ends", func() bool { _, series := scrape(t, m, name, "ghost"); return series == 0 })
	}
	// Another client of the node does not go on with what it remembers.
	if status, text := post("ghost/jobs", `{"id":"b"}`); status != http.StatusNotFound {
		t.Errorf("push: got %d %s, want 404", status, text)
	}
	p.push(lowkiq.Push{ID: "c"})
	p.drained()
}

// TestUnhandledWithoutCluster checks that a node without a cluster finds such queues, too.
func TestUnhandledWithoutCluster(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghostQueue(t, p)
	m := start(t, Config{Redis: url, TTL: shortTTL}, QueueConfig{Shards: 4}, nothing)
	await(t, "the lag of a queue that no node handles is exported", func() bool { n, _ := scrape(t, m, "lowkiq_queue_lag_seconds", "ghost"); return n > 0 })
	await(t, "it is known to be unhandled", func() bool { n, _ := scrape(t, m, "lowkiq_queue_unhandled", "ghost"); return n == 1 })
}
