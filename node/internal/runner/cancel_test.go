package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestCancel checks that a cancel ends the call, and that the id becomes what the person has asked for. Other ids of the batch
// go back without a retry, and jobs that the handler reports as done are done.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		then   protocol.Then
		answer func(context.Context) error
		left   string // what is left, and how often it failed; b was cancelled
	}{
		{protocol.ThenRetry, context.Cause, "a-1 b-1 c-1"},
		{protocol.ThenHold, context.Cause, "a-1 b-1held c-1"},
		{protocol.ThenBury, context.Cause, "a-1 c-1"},
		{protocol.ThenDelete, func(context.Context) error { return errBoom }, "a-1 c-1"},
		{protocol.ThenRetry, func(context.Context) error { return nil }, ""},
		{protocol.ThenBury, func(context.Context) error { return nil }, ""},
		{protocol.ThenBury, func(context.Context) error { return lowkiq.Failed{"b": errBoom} }, ""},
		{protocol.ThenRetry, func(context.Context) error { return lowkiq.Failed{"c": errBoom} }, "c-1"},
		{protocol.ThenRetry, func(context.Context) error { panic("at its end") }, "a-1 b-1 c-1"},
		{protocol.ThenBury, func(context.Context) error { runtime.Goexit(); return nil }, "a-1 c-1"},
	} {
		calmly(t, 10, func(t *testing.T, p *process) {
			began, calls := make(chan struct{}, 10), 0
			s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 3, MaxRetryCount: 5}}}, func(ctx context.Context, b *lowkiq.Batch) error {
				if calls++; calls > 1 {
					p.runners[b.Shard].Stop() // to look at what was put back
					return lowkiq.Postpone{After: time.Hour}
				}
				began <- struct{}{}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), lowkiq.ErrCancelled) {
					t.Errorf("the cause is %v, want ErrCancelled", context.Cause(ctx))
				}
				return c.answer(ctx)
			})
			p.give(s, "a", "b", "c")
			<-began
			r := p.runners[s.Shard]
			if r.Cancel("x", protocol.Cancellation{Then: c.then}) {
				t.Error("an id that is not there was cancelled")
			}
			p.h.judge.cancels("b", c.then)
			asked := p.Now()
			if !r.Cancel("b", protocol.Cancellation{Then: c.then, By: "ann"}) {
				t.Error("it was not cancelled, and runs")
			}
			soon()
			if got := s.left(); got != c.left {
				t.Errorf("then %s: %q is left, want %q", c.then, got, c.left)
			}
			if r.Cancel("b", protocol.Cancellation{Then: c.then}) {
				t.Error("it was cancelled again, and no handler has it")
			}
			if _, now := r.ShouldReleaseHeld(asked); now {
				t.Error("what is held is looked through at once, before its hold can have been read")
			}
			time.Sleep(time.Millisecond)
			if _, now := r.ShouldReleaseHeld(p.Now()); now != (c.then == protocol.ThenHold) {
				t.Errorf("then %s: to look again for what nobody holds: %t", c.then, now)
			}
		})
	}
}

// left is what there is of each id, with its retry count.
func (s *shard) left() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []string
	for id, r := range s.ids {
		held := ""
		if r.held {
			held = "held"
		}
		left = append(left, fmt.Sprint(id, r.retry, held))
	}
	slices.Sort(left)
	return strings.Join(left, " ")
}

// TestCancelOutOfTime cancels an id of a call that is past its timeout and has not returned. The id ends as the person has
// asked. The other ids have failed by the timeout.
func TestCancelOutOfTime(t *testing.T) {
	t.Parallel()
	for then, want := range map[protocol.Then]string{protocol.ThenBury: "a0 c0", protocol.ThenDelete: "a0 c0", protocol.ThenRetry: "a0 b-1 c0"} {
		calmly(t, 10, func(t *testing.T, p *process) {
			late, calls := make(chan struct{}), 0
			s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 3, MaxRetryCount: 5, HandlerTimeout: time.Second}}}, func(ctx context.Context, b *lowkiq.Batch) error {
				if calls++; calls > 1 {
					p.runners[b.Shard].Stop()
					return lowkiq.Postpone{After: time.Hour}
				}
				<-ctx.Done()
				close(late)
				time.Sleep(time.Second)
				return context.Cause(ctx)
			})
			p.give(s, "a", "b", "c")
			<-late
			p.h.judge.cancels("b", then)
			if !p.runners[s.Shard].Cancel("b", protocol.Cancellation{Then: then}) {
				t.Error("it was not cancelled, and runs")
			}
			time.Sleep(time.Second)
			soon()
			if got := s.left(); got != want {
				t.Errorf("then %s: %q is left, want %q", then, got, want)
			}
		})
	}
}

// TestCancelToHoldAwaitsIt checks that an id that was put back as held is not released by a change of the holds before its own
// hold arrives.
func TestCancelToHoldAwaitsIt(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		began := make(chan struct{}, 10)
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{MaxRetryCount: 5}}}, func(ctx context.Context, _ *lowkiq.Batch) error {
			began <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		p.give(s, "b")
		<-began
		r := p.runners[s.Shard]
		p.h.judge.cancels("b", protocol.ThenHold)
		if !r.Cancel("b", protocol.Cancellation{Then: protocol.ThenHold}) {
			t.Error("it was not cancelled, and runs")
		}
		asked := p.Now()
		time.Sleep(time.Second)
		another := *r.queue.rules()
		another.Held = rules.NewHeld([]rules.Hold{{ID: "a"}})
		r.queue.Change(another, 0)
		if keep, now := r.ShouldReleaseHeld(asked); !now || !keep("b") || !keep("a") || keep("c") {
			t.Errorf("after the hold of a: looks now %t, keeps b %t, a %t, c %t; want all but c", now, keep("b"), keep("a"), keep("c"))
		}
		if keep, now := r.ShouldReleaseHeld(p.Now()); !now || keep("b") {
			t.Errorf("its hold is not among those that were read since: looks now %t, keeps b %t; want it released", now, keep("b"))
		}
	})
}

// TestCancelBesideAHook cancels an id that two lanes have, because the first lane still calls a hook after its call. The call
// of the second lane ends.
func TestCancelBesideAHook(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		began, hooked, calls := make(chan struct{}, 10), make(chan struct{}), 0
		s := p.add(Queue{Rules: Rules{
			Rules:    rules.Rules{ShardConcurrency: 2, Exhausted: protocol.Bury},
			OnBuried: func(ctx context.Context, _ *lowkiq.Event) error { close(hooked); <-ctx.Done(); return nil },
		}}, func(ctx context.Context, _ *lowkiq.Batch) error {
			began <- struct{}{}
			if calls++; calls == 1 {
				return lowkiq.Bury{Reason: "boom"}
			}
			<-ctx.Done()
			return nil
		})
		p.give(s, "a")
		<-began
		<-hooked
		s.push("a", 1)
		p.wake(s)
		<-began
		r := p.runners[s.Shard]
		if where := r.Whereabouts("a"); where.Stage != protocol.Handled || where.For > time.Second {
			t.Errorf("it is said to be at %+v, want with its second handler", where)
		}
		p.h.judge.cancels("a", protocol.ThenRetry)
		if !r.Cancel("a", protocol.Cancellation{Then: protocol.ThenRetry}) {
			t.Error("it was not cancelled, and runs")
		}
	})
}
