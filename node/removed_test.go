package node

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
	"github.com/lowkiq/lowkiq/web"
)

// A retired queue is deleted through the API. What the leader exported of it, and alerts were about, ends.
func TestDeletedQueue(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 4)
	ghost := ghostQueue(t, p)
	dead(t, p, ghost.Of("a"), 1) // its last node has died
	m := startMemberWith(t, Config{Name: "n1", Redis: url, TTL: 6 * time.Second}, 4, func(n *Node) error { return web.Serve(n, web.Config{}) })
	await(t, "the queue is known to be unhandled", func() bool { n, _ := scrape(t, m, "lowkiq_queue_unhandled", "ghost"); return n == 1 })
	post := func(name, body string) (int, string) {
		t.Helper()
		answer, err := http.Post(m.URL()+"/api/v1/queues/"+name+"/delete", "application/json", strings.NewReader(body))
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
	if status, text := post("orders", `{"force":true}`); status != http.StatusConflict || !strings.Contains(text, "handled by n1") {
		t.Errorf("orders: got %d %s, want 409 with the node", status, text)
	}
	await(t, "the dead owner is relieved, and the queue deleted", func() bool {
		status, text := post("ghost", `{"force":true}`)
		if status != http.StatusOK && status != http.StatusConflict {
			t.Fatalf("got %d %s", status, text)
		}
		return status == http.StatusOK && strings.Contains(text, `"jobs":1`)
	})
	for _, name := range []string{"lowkiq_shards_unowned", "lowkiq_queue_unhandled", "lowkiq_queue_lag_seconds", "lowkiq_queue_jobs"} {
		await(t, name+" of ghost ends", func() bool { _, series := scrape(t, m, name, "ghost"); return series == 0 })
	}
	// Another client of the node does not go on with what it remembers.
	answer, err := http.Post(m.URL()+"/api/v1/queues/ghost/jobs", "application/json", strings.NewReader(`{"id":"b"}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound {
		t.Errorf("push: got %s, want 404", answer.Status)
	}
	p.push(lowkiq.Push{ID: "c"})
	p.drained()
}

// A queue is deleted and registered anew while a node that knows it by its first shards starts: it goes on with the new ones.
func TestQueueRegisteredAnew(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := open(t, server.URL(), 2)
	run := start(t, Config{Redis: server.URL()}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	first := run.instance()
	db := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	defer db.Close()
	if err := db.HSet(t.Context(), "lk:{default}:queues", "orders", `{"shards":2,"layout":1,"removed":true}`).Err(); err != nil {
		t.Fatal(err)
	}
	run.renew() // it registers the queue anew
	await(t, "the queue is registered anew", func() bool {
		entries, err := p.client.Registry(t.Context())
		return err == nil && entries["orders"].Layout == 2
	})
	if in := run.instance(); in == first {
		in.keeper.Poke()
	}
	run.next(first)
	anew, err := p.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anew.Push(t.Context(), lowkiq.Push{ID: "a"}, lowkiq.Push{ID: "b"}, lowkiq.Push{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	await(t, "its jobs are handled", func() bool {
		stats, err := anew.Stats(t.Context())
		return err == nil && stats.Processed == 3
	})
}
