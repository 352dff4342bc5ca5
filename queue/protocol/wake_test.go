package protocol_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

var wakeTests = []testCase{{"Wakes", testWakes}, {"Drain_IsHeard", testDrainIsHeard}, {"Peek", testPeek}}

// listen returns the wakes that a listener tells.
func listen(t *testing.T, r *rig) <-chan Wake {
	t.Helper()
	return r.listens(r.c.NewWakes(r.ctx, "n/b.1"))
}

// listens runs a listener until the test ends.
func (r *rig) listens(w *Wakes) <-chan Wake {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	news, done := make(chan Wake, 1000), make(chan error, 1)
	r.noErr(w.Add(ctx, r.s))
	go func() { done <- w.Run(ctx, func(wake Wake) { news <- wake }) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run: %v", err)
		}
	})
	return news
}

func next(t *testing.T, news <-chan Wake) Wake {
	t.Helper()
	select {
	case wake := <-news:
		return wake
	case <-time.After(patience):
		t.Fatalf("no news in %s", patience)
		return Wake{}
	}
}

func testWakes(t *testing.T, b *backend) {
	r := newRig(t, b)
	news := listen(t, r)
	eq(t, "confirmed", next(t, news), Wake{Shard: r.s.Shard, Confirmed: true})
	now := Wake{Shard: r.s.Shard}
	r.push(job("a", "1"))
	eq(t, "from nothing to something due", next(t, news), now)
	r.push(job("b", "1"))
	r.push(job("a", "2"))
	later := time.Now().Add(time.Hour).Truncate(time.Second)
	r.push(job("c", "1", in(time.Until(later))))
	if wake := next(t, news); wake.Due.IsZero() || wake.Due.Sub(later).Abs() > time.Second {
		t.Errorf("scheduled: got %+v, want one due at %s", wake, later)
	}
	r.push(job("d", "1", in(2*time.Hour)))
	r.push(job("e", "1", in(time.Minute)))
	if wake := next(t, news); wake.Due.IsZero() || !wake.Due.Before(later) {
		t.Errorf("earlier: got %+v, want one due before %s", wake, later)
	}
	_, err := browse.Of(r.q).RunNow(r.ctx, "c")
	r.noErr(err)
	eq(t, "run now", next(t, news), now)
	r.noErr(r.s.RequestRelease(r.ctx, Owner{Instance: "n/b.1", Fence: 42}))
	eq(t, "wanted", next(t, news), Wake{Shard: r.s.Shard, Wanted: 42})
	r.drain()
	r.push(job("a", "3"), job("b", "1", score(1)))
	eq(t, "again", next(t, news), now)
	p := r.pop(2)
	r.push(job("a", "4"), job("a", "5")) // parked: nothing is due
	eq(t, "parked", next(t, news), Wake{Shard: r.s.Shard, Parked: true})
	r.push(job("a", "6"))
	r.ack(p.Flight, "b")
	r.ack(p.Flight, "a")
	eq(t, "an ack alone lets a wait again", next(t, news), now)
	_, err = r.claim.Release(r.ctx)
	r.noErr(err)
	eq(t, "released", next(t, news), now)
}

func TestWakesAfterALostConnection(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	r := newRig(t, &backend{url: proxy.URL()})
	news := listen(t, r)
	next(t, news)
	proxy.DropAll()
	eq(t, "lost", next(t, news).Lost, true)
	for wake := next(t, news); !wake.Confirmed; wake = next(t, news) {
	}
	until(t, "a push after the loss", func() bool { _, err := r.q.Push(r.ctx, job("a", "1")); return err == nil })
	eq(t, "news", next(t, news), Wake{Shard: r.s.Shard})
}

// TestWakesNoticeSilence lets the network drop a connection. It ends silently. Nothing is read from it, and writes to
// it disappear.
func TestWakesNoticeSilence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	r := newRig(t, b)
	// Only the listener is impatient. On a busy machine it may also lose its connection before the pause.
	w := b.open(t, func(cfg *Config) { cfg.Cluster, cfg.Timeout = r.c.Cluster(), 100*time.Millisecond }).NewWakes(r.ctx, "n/b.1")
	w.SetSilence(20 * time.Millisecond)
	news := r.listens(w)
	for wake := next(t, news); !wake.Confirmed; wake = next(t, news) {
	}
	server.Pause()
	defer server.Resume() // for the end of the test, if it fails here
	for wake := next(t, news); !wake.Lost; wake = next(t, news) {
	}
	server.Resume()
	for wake := next(t, news); !wake.Confirmed; wake = next(t, news) {
	}
	until(t, "a push after the silence", func() bool { _, err := r.q.Push(r.ctx, job("a", "1")); return err == nil })
	for wake := next(t, news); wake != (Wake{Shard: r.s.Shard}); wake = next(t, news) {
	}
}

// testDrainIsHeard checks that a drain is heard wherever in a Redis Cluster the instance listens.
func testDrainIsHeard(t *testing.T, b *backend) {
	c := b.open(t)
	q := newQueue(t, c, 4)
	for i, s := range q.All() {
		r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: s}
		instance := fmt.Sprintf("n/b.%d", i)
		news := r.listens(c.NewWakes(r.ctx, instance)) // the shard's channel decides on the master
		until(t, "drain of "+instance, func() bool {
			heard, err := c.Drain(r.ctx, instance, true)
			r.noErr(err)
			return heard
		})
		for wake := next(t, news); wake.Drain != "on"; wake = next(t, news) {
		}
		for range 10 {
			heard, err := c.Drain(r.ctx, instance, true)
			r.noErr(err)
			eq(t, "heard", heard, true)
		}
	}
	heard, err := c.Drain(t.Context(), "n/nobody.1", true)
	if err != nil || heard {
		t.Errorf("drain of nobody: got %t, %v, want false", heard, err)
	}
}

func testPeek(t *testing.T, b *backend) {
	r := newRig(t, b)
	look := func() Due {
		t.Helper()
		seen, err := r.c.PeekDue(r.ctx, r.s, r.s)
		r.noErr(err)
		eq(t, "the same twice", seen[0], seen[1])
		return seen[0]
	}
	eq(t, "empty", look(), Due{})
	r.push(job("a", "1", in(time.Hour)))
	p := look()
	eq(t, "ready", p.Ready, false)
	near(t, "next", p.Next, time.Hour)
	r.push(job("b", "1"))
	eq(t, "ready", look().Ready, true)
	r.pop(1)
	eq(t, "ready with all in flight", look().Ready, false)
	r.own(Seize)
	eq(t, "ready in quarantine", look().Ready, true)
}
