package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// TestCancel: the call ends; its id becomes what was asked for, others of the batch go back, no retry spent, and what the handler says
// is done is done.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		then   queue.Then
		answer func(context.Context) error
		left   string // what is left, and how often it failed; b was cancelled
	}{
		{queue.ThenRetry, context.Cause, "a-1 b-1 c-1"},
		{queue.ThenHold, context.Cause, "a-1 b-1held c-1"},
		{queue.ThenBury, context.Cause, "a-1 c-1"},
		{queue.ThenDelete, func(context.Context) error { return errBoom }, "a-1 c-1"},
		{queue.ThenRetry, func(context.Context) error { return nil }, ""},
		{queue.ThenBury, func(context.Context) error { return nil }, ""},
		{queue.ThenBury, func(context.Context) error { return lowkiq.Failed{"b": errBoom} }, ""},
		{queue.ThenRetry, func(context.Context) error { return lowkiq.Failed{"c": errBoom} }, "c-1"},
		{queue.ThenRetry, func(context.Context) error { panic("at its end") }, "a-1 b-1 c-1"},
	} {
		calmly(t, 10, func(t *testing.T, p *process) {
			began, calls := make(chan struct{}, 10), 0
			s := p.add(Queue{Rules: Rules{BatchSize: 3, MaxRetryCount: 5}}, func(ctx context.Context, b *lowkiq.Batch) error {
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
			if r.Cancel("x", queue.Cancellation{Then: c.then}) {
				t.Error("an id that is not there was cancelled")
			}
			if !r.Cancel("b", queue.Cancellation{Then: c.then, By: "ann"}) {
				t.Error("it was not cancelled, and runs")
			}
			soon()
			var left []string
			s.mu.Lock()
			for id, r := range s.ids {
				held := ""
				if r.held {
					held = "held"
				}
				left = append(left, fmt.Sprint(id, r.retry, held))
			}
			s.mu.Unlock()
			slices.Sort(left)
			if got := strings.Join(left, " "); got != c.left {
				t.Errorf("then %s: %q is left, want %q", c.then, got, c.left)
			}
			if r.Cancel("b", queue.Cancellation{Then: c.then}) {
				t.Error("it was cancelled again, and no handler has it")
			}
			if _, now := r.ToRelease(); now {
				t.Error("what is held is looked through at once, before its hold can have come")
			}
			time.Sleep(holdComes)
			if _, now := r.ToRelease(); now != (c.then == queue.ThenHold) {
				t.Errorf("then %s: to look again for what nobody holds: %t", c.then, now)
			}
		})
	}
}
