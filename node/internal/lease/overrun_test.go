package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
)

// TestOverruns checks that handler calls that do not return after their cancel lead to the overrun when their time is
// over, and not before. Calls that return in time do not. Each way to end calls has its own times.
func TestOverruns(t *testing.T) {
	t.Parallel()
	const never = time.Duration(-1)
	hang := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	for _, c := range []struct {
		name    string
		end     func(c *Calls, k *kept, done chan struct{})
		renew   leaseFunc     // nil: all renewals are good
		returns time.Duration // when the call returns; never
		cancel  time.Duration // when it is to be cancelled, at most a tick later; never
		cause   error
		overrun time.Duration // when the overrun is to come, at most a tick later; never
	}{
		{"lease lost", withLease, hang, never, ttl * 7 / 10, lowkiq.ErrLeaseLost, ttl * 9 / 10},
		{"lease lost, returns in time", withLease, hang, ttl*9/10 - 1, ttl * 7 / 10, lowkiq.ErrLeaseLost, never},
		{"lease lost, returned before", withLease, hang, ttl / 2, never, nil, never},
		{"thawed past the exit", func(c *Calls, k *kept, done chan struct{}) {
			k.jump.Store(int64(ttl)) // the clock goes on while the process is frozen
			c.WatchLease(done)
		}, hang, never, 0, lowkiq.ErrLeaseLost, ttl / 20},
		{"claim lost", withClaim, nil, never, never, nil, ttl / 5},
		{"claim lost, returns in time", withClaim, nil, ttl/5 - 1, never, nil, never},
		{"claim lost twice", func(c *Calls, k *kept, done chan struct{}) {
			withClaim(c, k, done)
			withClaim(c, k, done)
		}, nil, never, never, nil, ttl / 5},
		{"shutdown", shutdown, nil, never, time.Minute, lowkiq.ErrShutdown, time.Minute + ShutdownGrace},
		{"shutdown, returns in time", shutdown, nil, time.Minute + ShutdownGrace - 1, time.Minute, lowkiq.ErrShutdown, never},
		{"shutdown, returns before", shutdown, nil, time.Minute - 1, never, nil, never},
		{"shutdown, lease lost meanwhile", func(c *Calls, k *kept, done chan struct{}) {
			go c.WatchLease(done)
			shutdown(c, k, done)
		}, hang, never, ttl * 7 / 10, lowkiq.ErrLeaseLost, ttl * 9 / 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.renew == nil {
					c.renew = func(context.Context) error { return nil }
				}
				begun := time.Now()
				cancelled, overrun := never, never
				var running atomic.Int64
				running.Store(1)
				var cause error
				k := keep(t, c.renew)
				done := make(chan struct{})
				returned := func() { running.Store(0); close(done) }
				calls := NewCalls(k.Keeper, running.Load, func(why error) {
					if cause == nil {
						cause, cancelled = why, time.Since(begun)
					}
				}, func() {
					overrun = time.Since(begun)
					returned() // as the end of the process ends it
				})
				if c.returns != never {
					time.AfterFunc(c.returns, returned)
				}
				ended := make(chan struct{})
				go func() { defer close(ended); c.end(calls, k, done) }()
				<-ended
				time.Sleep(5 * time.Minute) // the bubble's
				synctest.Wait()
				between := func(what string, got, want time.Duration) {
					if want == never && got != never || want != never && (got < want || got > want+ttl/60) {
						t.Errorf("%s after %s, want %s (-1ns is never)", what, got, want)
					}
				}
				between("cancelled", cancelled, c.cancel)
				between("overrun", overrun, c.overrun)
				if !errors.Is(cause, c.cause) {
					t.Errorf("the cause is %v, want %v", cause, c.cause)
				}
			})
		})
	}
}

func withLease(c *Calls, _ *kept, done chan struct{}) { c.WatchLease(done) }
func withClaim(c *Calls, _ *kept, _ chan struct{})    { c.EndLostClaim(c.running) }
func shutdown(c *Calls, _ *kept, done chan struct{}) {
	c.AwaitShutdown(done, time.Minute, slog.New(slog.DiscardHandler))
}
