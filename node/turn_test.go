package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// scarce is a handler whose calls need one of a few processes.
type scarce struct {
	free    chan struct{}
	strange atomic.Int64 // calls without a process of their own
	handle  lowkiq.HandlerFunc
}

type scarceKey struct{}

func newScarce(n int, handle lowkiq.HandlerFunc) *scarce {
	s := &scarce{free: make(chan struct{}, n), handle: handle}
	for range n {
		s.free <- struct{}{}
	}
	return s
}

func (s *scarce) Processes() int { return cap(s.free) }

func (s *scarce) Reserve(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error) {
	select {
	case <-s.free:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	var used atomic.Bool
	with = func(ctx context.Context) context.Context { return context.WithValue(ctx, scarceKey{}, &used) }
	leave = func() {
		if !used.Swap(true) {
			s.free <- struct{}{}
		}
	}
	return with, leave, nil
}

func (s *scarce) Handle(ctx context.Context, b *lowkiq.Batch) error {
	if used, ok := ctx.Value(scarceKey{}).(*atomic.Bool); !ok || used.Swap(true) {
		s.strange.Add(1)
	}
	defer func() { s.free <- struct{}{} }()
	return s.handle(ctx, b)
}

// ids pushes n jobs of different ids.
func (p *producer) ids(prefix string, n int) {
	var jobs []lowkiq.Push
	for i := range n {
		jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint(prefix, i)})
	}
	p.push(jobs...)
}

// TestTimeoutOfTheCall: the timeout counts from when the handler has its batch, not while that
// waits for a process.
func TestTimeoutOfTheCall(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	srv := redistest.Start(t)
	const takes, timeout, jobs = 100 * time.Millisecond, time.Second, 20
	h := newScarce(1, func(ctx context.Context, _ *lowkiq.Batch) error {
		select {
		case <-time.After(takes): // the work
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	startHandler(t, Config{Redis: srv.URL(), Concurrency: 16}, QueueConfig{Shards: 8, HandlerTimeout: timeout}, h)
	p := open(t, srv.URL(), 8)
	p.ids("a", jobs)
	await(t, "all are done", func() bool { s := p.stats(); return s.Processed == jobs || s.Failed > 0 })
	if s := p.stats(); s.Failed > 0 || h.strange.Load() > 0 {
		t.Errorf("%d failed, %d calls had no process; want none", s.Failed, h.strange.Load())
	}
}

// TestProcessWait: how long batches wait for a process is counted apart, of handlers that have some.
func TestProcessWait(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const takes, jobs = 50 * time.Millisecond, 10
	slow := newScarce(1, func(ctx context.Context, _ *lowkiq.Batch) error {
		time.Sleep(takes) // the work
		return nil
	})
	run := startQueues(t, Config{Redis: srv.URL(), Concurrency: 16}, func(n *Node) error {
		return errors.Join(n.Handle(QueueConfig{Name: "orders", Shards: 8}, slow), n.Handle(QueueConfig{Name: "instant", Shards: 8}, lowkiq.HandlerFunc(nothing)))
	})
	p := open(t, srv.URL(), 8)
	p.ids("a", jobs)
	await(t, "all are done", func() bool { return p.stats().Processed == jobs })
	families, err := run.cfg.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "lowkiq_process_wait_seconds" {
			continue
		}
		if len(f.GetMetric()) != 1 || f.GetMetric()[0].GetLabel()[0].GetValue() != "orders" {
			t.Fatalf("got %v, want orders alone", f)
		}
		// One call at a time: the first batch waits for none, the second for one call …, of those at hand at once.
		h := f.GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != jobs || h.GetSampleSum() < (jobs-1)*takes.Seconds() {
			t.Errorf("got %d waits of %v s in all, want %d, and each but the first for one call at least", h.GetSampleCount(), h.GetSampleSum(), jobs)
		}
		return
	}
	t.Error("lowkiq_process_wait_seconds is not exported")
}

// twoQueues runs a node with a queue that is stuck and one that is not.
func twoQueues(t *testing.T, url string, rules QueueConfig, stuck lowkiq.Handler) {
	t.Helper()
	startQueues(t, Config{Redis: url, Concurrency: 3}, func(n *Node) error {
		rules.Name, rules.Shards = "orders", 8
		return errors.Join(n.Handle(rules, stuck), n.Handle(QueueConfig{Name: "instant", Shards: 4}, lowkiq.HandlerFunc(nothing)))
	})
}

// TestBusyQueueTakesNoSlot: a queue whose processes are all busy, or which is at its own
// concurrency, leaves the rest of the node's slots to others.
func TestBusyQueueTakesNoSlot(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"processes", "concurrency"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			var running atomic.Int64
			release := make(chan struct{})
			block := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
				if running.Add(1) > 2 {
					t.Error("more than two at once")
				}
				<-release
				running.Add(-1)
				return nil
			})
			stuck, rules := lowkiq.Handler(block), QueueConfig{Concurrency: 2}
			if name == "processes" {
				stuck, rules = newScarce(2, block), QueueConfig{}
			}
			p := open(t, srv.URL(), 8)
			p.ids("stuck", 40)
			twoQueues(t, srv.URL(), rules, stuck)
			await(t, "two handlers at work", func() bool { return running.Load() == 2 })
			q, err := p.client.Register(t.Context(), lowkiq.Queue{Name: "instant", Shards: 4})
			if err != nil {
				t.Fatal(err)
			}
			instant := &producer{t, q, p.client}
			instant.ids("i", 10)
			instant.drained()
			close(release)
			p.drained()
		})
	}
}

// TestPauseGivesBack: pausing a queue gives back what no handler has, at the head of its line
// and with nothing spent.
func TestPauseGivesBack(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 4)
	p.ids("a", 40)
	var calls atomic.Int64
	release := make(chan struct{})
	run := startHandler(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 4, ShardConcurrency: 4}, newScarce(1, func(context.Context, *lowkiq.Batch) error {
		calls.Add(1)
		<-release
		return nil
	}))
	await(t, "ids are popped that wait for the process", func() bool { return calls.Load() == 1 && p.stats().Jobs.InFlight > 4 })
	if err := p.client.Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	run.renew()
	await(t, "all but one are given back", func() bool { s := p.stats().Jobs; return s.InFlight == 1 && s.Ready == 39 })
	close(release)
	await(t, "the last one is done", func() bool { s := p.stats(); return s.Jobs.InFlight == 0 && s.Processed == 1 })
	if err := p.client.Resume(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	run.renew()
	p.drained()
	if s := p.stats(); s.Processed != 40 || s.Failed != 0 {
		t.Errorf("%d done, %d failed; want 40, 0", s.Processed, s.Failed)
	}
}
