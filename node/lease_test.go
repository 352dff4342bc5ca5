package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

const shortTTL = 3 * time.Second

// next waits until the node works as an instance after this one.
func (r *running) next(after *instance) (in *instance) {
	r.t.Helper()
	await(r.t, "an instance after "+after.name, func() bool {
		in = r.instance()
		return in != nil && in.number > after.number && r.settled.Load() && len(in.claims.All()) > 0
	})
	return in
}

// quarantines reports whether a shard has ids in quarantine.
func quarantines(t *testing.T, addr string, s lowkiq.Shard) bool {
	t.Helper()
	return raw(t, addr, "EXISTS", fmt.Sprintf("lk:{default/orders/1/%d}:crashes", s.Index)) != "0"
}

// TestLeaseLost: Redis freezes for longer than the lease. Handlers are cancelled by the
// deadline, the next instance goes on with the same shards, and nothing was a failure.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	began := make(chan struct{}, 1)
	cancelled := make(chan error, 1)
	var calls atomic.Int64
	run := start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{Shards: 2}, func(ctx context.Context, b *lowkiq.Batch) error {
		if calls.Add(1) > 1 {
			if job := b.Jobs[0]; job.RetryCount != -1 || job.Error != "" || quarantines(t, srv.Addr(), b.Shard) {
				t.Errorf("retry count %d, error %q, or quarantine: that was no failure", job.RetryCount, job.Error)
			}
			return nil
		}
		began <- struct{}{}
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		return ctx.Err() // an error after the cancel is none
	})
	run.serving()
	first := run.instance()
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	srv.Pause()
	if err := receive(t, "the cancel", cancelled); !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("the cause is %v", err)
	}
	if at, least := sinceBoot(), first.keeper.SafeEnd(); at < least {
		t.Errorf("cancelled %s before the deadline", least-at)
	}
	if first.mayWork() {
		t.Error("a lost lease lets handlers start")
	}
	srv.Resume()
	run.next(first)
	p.drained()
	if s := p.stats(); s.Failed != 0 || s.Processed != 1 || s.Morgue != 0 {
		t.Errorf("%d failed, %d processed, %d buried; want 0, 1, 0", s.Failed, s.Processed, s.Morgue)
	}
}

// TestNoCallAfterThaw: the process freezes during a call, for longer than its lease. The lane that comes out of the call has
// its next jobs at hand and must not begin them, although nobody has noticed the loss yet (I1).
func TestNoCallAfterThaw(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var mu sync.Mutex
	fences := map[int64]int{} // calls by fence
	var first int64
	begin := make(chan struct{})
	var frozen atomic.Int64 // ns that the clock has counted meanwhile
	run := start(t, Config{Redis: srv.URL(), TTL: shortTTL, now: func() time.Duration {
		return sinceBoot() + time.Duration(frozen.Load())
	}}, QueueConfig{Shards: 1, BatchSize: 1}, func(_ context.Context, b *lowkiq.Batch) error {
		<-begin
		mu.Lock()
		defer mu.Unlock()
		fences[b.Fence]++
		if first == 0 {
			first = b.Fence
			frozen.Store(int64(shortTTL)) // as if it woke up now
		}
		return nil
	})
	in := run.serving().instance()
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		p.push(numbered(id, 0, 1)...)
	}
	close(begin)
	run.next(in)
	p.drained()
	mu.Lock()
	defer mu.Unlock()
	if fences[first] != 1 {
		t.Errorf("%d calls under the fence of before the freeze, want 1", fences[first])
	}
	if got := p.stats(); got.Processed != 5 || got.Failed != 0 {
		t.Errorf("%d processed and %d failed, want 5 and 0", got.Processed, got.Failed)
	}
}

// TestOverrunOfLease: a handler that ignores its cancel leads to OnOverrun at 0.9 ttl, and
// its shard is not released before it has returned.
func TestOverrunOfLease(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	began, release := make(chan struct{}, 2), make(chan struct{})
	overrun := make(chan time.Duration, 2)
	w := newWitness(1)
	var run *running
	run = start(t, Config{Redis: srv.URL(), TTL: shortTTL, OnOverrun: func(stacks []byte) {
		in := run.instance()
		if !strings.Contains(string(stacks), "TestOverrunOfLease") {
			t.Error("the stacks do not show the handler")
		}
		overrun <- sinceBoot() - in.keeper.SafeEnd() - shortTTL/5
		srv.Resume()
		if owner, err := p.Shard(0).Owner(context.Background()); err != nil || owner.Instance != in.name {
			t.Errorf("owner is %q, %v; want %q: the handler still runs", owner.Instance, err, in.name)
		}
		close(release)
	}}, QueueConfig{Shards: 1}, w.around(func(context.Context, *lowkiq.Batch) error {
		began <- struct{}{}
		<-release
		return nil
	}))
	first := run.serving().instance()
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	srv.Pause()
	if late := receive(t, "the overrun", overrun); late < 0 {
		t.Errorf("OnOverrun was called %s before 0.9 ttl", -late)
	}
	run.next(first)
	p.drained()
	if got := p.stats().Processed; got != 1 {
		t.Errorf("%d processed, want 1: it was done, and acked under the old name", got)
	}
}

// TestRedisAwayAndBack: Redis stops until the lease is lost, and comes back with its data.
func TestRedisAwayAndBack(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := open(t, srv.URL(), 4)
	w := newWitness(1)
	run := start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{Shards: 4}, w.around(nothing)).serving()
	in := run.instance()
	p.push(numbered("a", 0, 5)...)
	p.drained()
	for n := range 2 {
		srv.Stop()
		receive(t, "the lease's loss", in.keeper.Lost())
		srv.Restart()
		in = run.next(in)
		p.push(numbered("a", 5+5*n, 10+5*n)...)
		p.drained()
	}
	w.check(t, 15)
	if got := p.stats().Failed; got != 0 {
		t.Errorf("%d failed, want 0", got)
	}
}

// TestRedisRestartedEmpty: the jobs are gone, the node goes on at once with the shards that
// it ran last, although absent claims count as held, and the queue is registered again. A
// second node that sees the absent claims first does not take them.
func TestRedisRestartedEmpty(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	w := newWitness(1)
	var mu sync.Mutex
	served := map[string]bool{}
	began := make(chan struct{}, 1)
	node := func(name string) *running {
		return start(t, Config{Name: name, Redis: srv.URL()}, QueueConfig{Shards: 2}, w.around(func(ctx context.Context, b *lowkiq.Batch) error {
			mu.Lock()
			served[name] = true
			mu.Unlock()
			if string(b.Jobs[0].Payloads[0].Data) == "0" {
				began <- struct{}{}
				<-ctx.Done()
			}
			return nil
		}))
	}
	run := node("n1").serving()
	first := run.instance()
	second := node("n2")
	await(t, "the second node stands by", func() bool { return second.instance() != nil && second.instance().wakes != nil })
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	srv.Kill()
	srv.Restart()
	p.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	if in := run.instance(); in != nil {
		in.keeper.Poke() // it would notice within ttl/6
	}
	run.next(first)
	await(t, "new jobs are handled", func() bool { return p.stats().Jobs.Total() == 0 })
	await(t, "the queue is registered again", func() bool {
		entries, err := p.client.Registry(context.Background())
		return err == nil && entries["orders"].Shards == 2
	})
	mu.Lock()
	defer mu.Unlock()
	if served["n2"] {
		t.Error("the second node took absent claims of shards whose owner lived")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		if !strings.Contains(f, "payload") { // of the lost one
			t.Error(f)
		}
	}
}

// TestScriptFlush: Redis forgets the scripts while jobs flow.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	w := newWitness(1)
	start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2}, w.around(func(context.Context, *lowkiq.Batch) error { return nil }))
	for n := range 30 {
		raw(t, srv.Addr(), "SCRIPT", "FLUSH", "SYNC")
		p.push(append(numbered("a", n, n+1), numbered("b", n, n+1)...)...)
	}
	p.drained()
	w.check(t, 60)
}

// TestOutOfMemory: while Redis refuses to grow, pushes are refused, and the node handles
// what is there: it keeps its lease, pops, acks and retries.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	w := newWitness(1)
	gate := make(chan struct{})
	var failed atomic.Bool
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2, RetryIn: func(int) time.Duration { return time.Millisecond }},
		w.around(func(context.Context, *lowkiq.Batch) error {
			<-gate
			if !failed.Swap(true) {
				return errBoom
			}
			return nil
		}))
	run.serving()
	for n := range 20 {
		p.push(append(numbered("a", n, n+1), numbered("b", n, n+1)...)...)
	}
	raw(t, srv.Addr(), "CONFIG", "SET", "maxmemory", "1")
	if _, err := p.Push(t.Context(), numbered("c", 0, 1)...); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("the push's error is %v", err)
	}
	close(gate)
	p.drained()
	run.renew()
	raw(t, srv.Addr(), "CONFIG", "SET", "maxmemory", "0")
	p.push(numbered("c", 0, 1)...)
	p.drained()
	w.check(t, 41)
	if got := run.instance().name; !strings.HasSuffix(got, ".1") {
		t.Errorf("works as %s: its lease was lost", got)
	}
}
