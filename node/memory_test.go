package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// granted is a handler that counts how often it was told that it may go on.
type granted struct {
	times, handled atomic.Int64
	early          atomic.Bool // a batch came before the first grant
}

func (g *granted) Handle(context.Context, *lowkiq.Batch) error {
	if g.times.Load() == 0 {
		g.early.Store(true)
	}
	g.handled.Add(1)
	return nil
}

func (g *granted) Grant(time.Duration) { g.times.Add(1) }

// TestGrantWithoutRegistry checks that child processes may go on while the lease is renewed, even if the registry cannot be
// read.
func TestGrantWithoutRegistry(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.push(lowkiq.Push{ID: "a"})
	var handler granted
	run := startHandler(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, &handler)
	await(t, "a batch", func() bool { return handler.handled.Load() > 0 })
	if handler.early.Load() {
		t.Error("got a batch before the first grant: a node that froze then could not end it (I1)")
	}
	raw(t, srv.Addr(), "DEL", "lk:{default}:queues")
	raw(t, srv.Addr(), "SET", "lk:{default}:queues", "no_hash")
	for range 3 {
		before := handler.times.Load()
		run.renew()
		await(t, "the grant of a renewal", func() bool { return handler.times.Load() > before })
	}
}

// TestNotReadyBeforeClaims checks that an instance that follows another instance is not ready before it has claimed its shards.
func TestNotReadyBeforeClaims(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	run := start(t, Config{Redis: proxy.URL()}, QueueConfig{Shards: 4}, nothing).serving()
	await(t, "it is ready", func() bool { return run.Ready() == nil })
	var claims, ready atomic.Int64
	proxy.CutReplyOf(func(words []string) bool {
		if text := strings.Join(words, " "); strings.Contains(text, ".2 fresh") || strings.Contains(text, ".2 self") {
			claims.Add(1)
			if run.Ready() == nil {
				ready.Add(1)
			}
		}
		return false
	})
	first := run.instance()
	raw(t, srv.Addr(), "DEL", "lk:{default}:lease:"+first.name)
	first.keeper.RenewNow()
	run.next(first)
	if claims.Load() < 4 || ready.Load() > 0 {
		t.Errorf("ready at %d of %d claims, want 0 of 4", ready.Load(), claims.Load())
	}
}
