package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// hanging is a world in which middlewares hang until release is closed. They ignore their context.
type hanging struct {
	*world
	release chan struct{}
	calls   atomic.Int64
}

func (h *hanging) EncodeFollowUps(_ context.Context, _ string, _ int, all []lowkiq.FollowUp) ([]protocol.FollowUp, error) {
	h.calls.Add(1)
	<-h.release
	return []protocol.FollowUp{{Queue: all[0].Queue, ID: all[0].Push.ID, Payload: all[0].Push.Payload}}, nil
}

// TestMiddlewareHangs checks that a middleware that hangs stops neither other follow-ups nor the end of the relay, and that
// the follow-ups behind it arrive once it works.
func TestMiddlewareHangs(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	queue := func(name string, shards int) *protocol.Queue {
		return client.Registry().Unlisted(name, protocol.RegistryEntry{Shards: shards, Layout: 1})
	}
	synctest.Test(t, func(t *testing.T) {
		const sources = 8
		h := &hanging{release: make(chan struct{}), world: &world{
			queues: map[string]*protocol.Queue{"mail": queue("mail", 3), "bills": queue("bills", 1)},
			out:    map[lowkiq.Shard][]protocol.Outgoing{}, from: map[string]int64{}, arrived: map[string][]string{}, full: map[lowkiq.Shard]bool{},
		}}
		start, slow := time.Now(), 0
		r := New(Config{
			Redis: h, Now: func() time.Duration { return time.Since(start) }, Log: slog.New(slog.DiscardHandler),
			Decoder: func(context.Context, string) (func([]byte) ([]byte, error), error) { return nil, nil },
			Failed: func(_ lowkiq.Shard, err error) {
				if slow++; !errors.Is(err, verdict.ErrSlow) || protocol.Transient(err) {
					t.Errorf("got %v, want %v", err, verdict.ErrSlow)
				}
			},
			Dropped: func(_ lowkiq.Shard, _ *protocol.Outgoing, err error) { t.Errorf("dropped: %v", err) },
		})
		for _, s := range queue("orders", sources).All() {
			h.out[s.Shard] = []protocol.Outgoing{
				{Number: 1, FollowUp: protocol.FollowUp{Queue: "mail", ID: "a", Payload: []byte("1")}, End: "buried\nboom"},
				{Number: 2, FollowUp: protocol.FollowUp{Queue: "bills", ID: "b", Payload: []byte("2")}},
			}
			r.Kick(s, true)
		}
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx) }()
			return func() { cancel(); <-ended }
		}
		stop := run()
		time.Sleep(verdict.EncodePatience + time.Second)
		stop()
		if got := len(h.arrived["bills/b"]); got != sources {
			t.Errorf("%d of %d follow-ups to the other queue have arrived", got, sources)
		}
		if slow < sources {
			t.Errorf("%d of %d sources have reported that their follow-ups wait", slow, sources)
		}
		stop = run()
		for calls := h.calls.Load(); h.calls.Load() == calls; { // until the relay is in the middleware again
			time.Sleep(time.Second)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("the relay ended after %s, want at once", took)
		}
		close(h.release)
		stop = run()
		time.Sleep(slowPause + 2*maxPause)
		stop()
		if got := len(h.arrived["mail/a"]); got != sources {
			t.Errorf("%d of %d follow-ups behind the middleware have arrived", got, sources)
		}
	})
}

// TestHungCodeIsTriedSeldom checks that code that hangs takes the relay's time only once per slowPause, for any number of
// queues that need it.
func TestHungCodeIsTriedSeldom(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	queue := func(name string) *protocol.Queue {
		return client.Registry().Unlisted(name, protocol.RegistryEntry{Shards: 1, Layout: 1})
	}
	for _, decoderHangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := &hanging{release: make(chan struct{}), world: &world{
				queues: map[string]*protocol.Queue{}, out: map[lowkiq.Shard][]protocol.Outgoing{},
				from: map[string]int64{}, arrived: map[string][]string{}, full: map[lowkiq.Shard]bool{},
			}}
			start := time.Now()
			r := New(Config{
				Redis: h, Now: func() time.Duration { return time.Since(start) }, Log: slog.New(slog.DiscardHandler),
				Decoder: func(context.Context, string) (func([]byte) ([]byte, error), error) {
					if decoderHangs {
						h.calls.Add(1)
						<-h.release
					}
					return nil, nil
				},
				Failed:  func(lowkiq.Shard, error) {},
				Dropped: func(_ lowkiq.Shard, _ *protocol.Outgoing, err error) { t.Errorf("dropped: %v", err) },
			})
			for i := range 10 {
				source, target := fmt.Sprint("orders", i), "alerts"
				if decoderHangs {
					source, target = "orders", fmt.Sprint("alerts", i)
				}
				h.queues[target] = queue(target)
				if h.queues[source] == nil {
					h.queues[source] = queue(source)
				}
				s := h.queues[source].All()[0]
				h.out[s.Shard] = append(h.out[s.Shard], protocol.Outgoing{
					Number: int64(i + 1), FollowUp: protocol.FollowUp{Queue: target, ID: "a", Payload: []byte("1")}, End: "buried\nboom",
				})
				r.Kick(s, true)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx) }()
			const rounds = 5
			time.Sleep(rounds * (slowPause + verdict.EncodePatience))
			cancel()
			<-ended
			close(h.release)
			if got := h.calls.Load(); got < 2 || got > rounds {
				t.Errorf("decoder hangs %v: %d calls in %d times the pause, want 2 to %d", decoderHangs, got, rounds, rounds)
			}
		})
	}
}
