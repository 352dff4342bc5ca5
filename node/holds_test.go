package node

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// hold keeps ids from handlers, or lets them go on.
func (p *producer) hold(h rules.Hold, undo bool) {
	p.t.Helper()
	_, err := rules.In(p.client.DB()).Change(p.t.Context(), p.Queue.Name, rules.Change{If: -1,
		Edit: func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
			edit := rules.WithHold
			if undo {
				edit = rules.WithoutHold
			}
			value, _, err := edit(in, h, now)
			if value == nil {
				return nil, []string{"holds"}, err
			}
			return map[string]json.RawMessage{"holds": value}, nil, err
		}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// heard is what a handler was given, by id, in order.
type heard struct {
	mu sync.Mutex
	of map[string][]string
}

func (h *heard) handle(_ context.Context, b *lowkiq.Batch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, job := range b.Jobs {
		for _, p := range job.Payloads {
			h.of[job.ID] = append(h.of[job.ID], string(p.Data))
		}
	}
	return nil
}

func (h *heard) has(id string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.of[id])
}

func (p *producer) counts() protocol.Counts {
	p.t.Helper()
	stats, err := p.Queue.Stats(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return stats.Jobs
}

// TestHold checks that held ids do not run, that their payloads wait in order, that the lag does not count them, and that other
// ids go on. When the hold ends, all payloads run.
func TestHold(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	got := &heard{of: map[string][]string{}}
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2, Rules: rules.Rules{BatchSize: 3}}, got.handle).serving()
	p.hold(rules.Hold{Prefix: "acme:"}, false)
	p.hold(rules.Hold{ID: "b"}, false)
	p.hold(rules.Hold{ID: "c", Until: time.Now().Add(time.Hour)}, false)
	run.renew()
	await(t, "the holds are in force", func() bool { return run.queues.handled["orders"].rulesNow().held.Holds("acme:1") })
	push := func(payload string, ids ...string) {
		t.Helper()
		for _, id := range ids {
			p.push(lowkiq.Push{ID: id, Payload: []byte(payload)})
		}
	}
	push("1", "acme:1", "acme:2", "b", "c", "d", "acme")
	await(t, "others run, held ones are held", func() bool {
		return len(got.has("d")) == 1 && len(got.has("acme")) == 1 && p.counts() == protocol.Counts{Held: 4}
	})
	push("2", "acme:1", "acme:2", "b", "c")
	if c := p.counts(); c != (protocol.Counts{Held: 4}) {
		t.Errorf("after more pushes: got %+v, want 4 held", c)
	}
	stats, err := p.Queue.Stats(t.Context())
	if err != nil || stats.Lag != 0 {
		t.Errorf("lag: got %s, %v, want none", stats.Lag, err)
	}
	page, err := browse.Of(p.Queue).Page(t.Context(), browse.Query{State: browse.StateHeld})
	if err != nil || len(page.Jobs) != 4 || page.Jobs[0].State != browse.StateHeld || page.Jobs[0].Count != 2 {
		t.Errorf("list: got %+v, %v, want 4 held ids with 2 payloads each", page.Jobs, err)
	}
	if n, err := browse.Of(p.Queue).RunNow(t.Context(), "b"); n != 0 || err != nil {
		t.Errorf("run now of a held id: got %d, %v, want that it stays", n, err)
	}

	p.hold(rules.Hold{Prefix: "acme:"}, true)
	run.renew()
	await(t, "the prefix is released", func() bool { return len(got.has("acme:1")) == 2 && len(got.has("acme:2")) == 2 })
	if b := got.has("b"); len(b) != 0 {
		t.Errorf("b is held still, and has run: %q", b)
	}
	p.hold(rules.Hold{ID: "b", Until: time.Now().Add(100 * time.Millisecond)}, false)
	await(t, "its time is over", func() bool { run.renew(); return len(got.has("b")) == 2 })
	if order := strings.Join(got.has("acme:1"), ""); order != "12" {
		t.Errorf("order: got %q, want 12", order)
	}
	p.hold(rules.Hold{ID: "c"}, true)
	run.renew()
	p.drained()
	if c := got.has("c"); len(c) != 2 {
		t.Errorf("c: got %q, want both payloads", c)
	}
}

// TestHoldOutlivesNodes checks that ids that are held when their node dies are held by the next node, and released by a node
// that starts after the hold has ended.
func TestHoldOutlivesNodes(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.hold(rules.Hold{Prefix: "x"}, false)
	p.ids("x", 50)
	got := &heard{of: map[string][]string{}}
	one := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, got.handle).serving()
	await(t, "all are held", func() bool { return p.counts() == protocol.Counts{Held: 50} })
	one.stop()
	p.hold(rules.Hold{Prefix: "x"}, true)
	start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, got.handle).serving()
	p.drained()
	got.mu.Lock()
	defer got.mu.Unlock()
	if n := len(got.of); n != 50 {
		t.Errorf("%d ids were handled, want 50", n)
	}
}

// TestHoldBehindSlowCalls checks that an id goes back at once and does not run if it is held while it waits in the node.
func TestHoldBehindSlowCalls(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	free, ran := make(chan struct{}), make(chan string, 10)
	run := start(t, Config{Redis: srv.URL(), Concurrency: 1}, QueueConfig{Shards: 2}, func(_ context.Context, b *lowkiq.Batch) error {
		ran <- b.Jobs[0].ID
		<-free
		return nil
	}).serving()
	var ids []string // one of each shard
	for i := 0; len(ids) < 2; i++ {
		if id := string(rune('a' + i)); lowkiq.ShardOf(id, 2) == len(ids) {
			ids = append(ids, id)
		}
	}
	p.push(lowkiq.Push{ID: ids[0], Payload: []byte("1")})
	<-ran
	p.push(lowkiq.Push{ID: ids[1], Payload: []byte("1")})
	await(t, "the other one waits for the slot", func() bool { return p.counts().InFlight == 2 })
	p.hold(rules.Hold{ID: ids[1]}, false)
	run.renew()
	await(t, "the hold is in force", func() bool { return run.queues.handled["orders"].rulesNow().held.Holds(ids[1]) })
	await(t, "it is held", func() bool { return p.counts() == protocol.Counts{Held: 1, InFlight: 1} })
	close(free)
	await(t, "the other one is done", func() bool { return p.counts() == protocol.Counts{Held: 1} })
	if len(ran) != 0 {
		t.Errorf("%q has run, and is held", <-ran)
	}
	p.hold(rules.Hold{ID: ids[1]}, true)
	run.renew()
	if id := <-ran; id != ids[1] {
		t.Errorf("got %q, want %q", id, ids[1])
	}
	p.drained()
}
