// Package lease keeps an instance's lease and stops its work in time when the lease ends (I1).
//
// All times count from the moment when the last good renewal was sent. Redis executed that renewal at that moment or later.
// So the lease lives in Redis until a ttl after that moment, or longer. The clock goes on while the machine is suspended, as
// Redis's clock does. With the default ttl of 6 s:
//
//	0      1 s       4.2 s           5.4 s          6 s               12 s
//	|-------|---------|---------------|--------------|-----------------|------->
//	sent    renewal   safe end        exit           may expire        seizure
//	        1/6 ttl   0.7 ttl         0.9 ttl        in Redis: 1 ttl   without a proof: 2 ttl
//
//	from … to     this instance                               another instance
//	0 … 4.2 s     claims, pops, starts handler calls          waits
//	4.2 … 5.4 s   starts nothing; its calls are cancelled;    waits
//	              as they return, it acks and releases
//	5.4 s         a call that still runs ends the process     waits
//	              with status 75, and none of its shards
//	              is released
//	after 6 s     acks and releases its remaining shards      seizes, if the process is proven gone,
//	              under its old name; the fence refuses       has left, or is dead by gossip
//	              that once the shard has another owner
//	after 12 s    the same                                    seizes: it has seen the lease missing
//	                                                          for a ttl
//
// Between the exit and the first possible seizure lies 0.1 ttl. It absorbs the time that a signal, a
// timer or the end of a process may take.
//
// The safe end is final, and no later answer of Redis revives the instance. An answer that the lease
// is missing is final, too, whenever it comes. The process goes on as its next instance.
//
// The process checks the clock before each handler call. So a process that was frozen past its safe end begins no call when it
// thaws. Calls that were frozen with it are cancelled then. They have ttl/20 to return even if the exit is due already. Between
// the thaw and its cancel such a call may run a few instructions, which is a limit of I1; see docs/design.md. A machine that is
// restored from a snapshot, and whose clock stood still, is another limit.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Lease is the lease that a keeper renews.
type Lease interface {
	Renew(ctx context.Context, value []byte, ttl time.Duration) error
}

// Keeper renews an instance's lease and says when the instance must stop working.
type Keeper struct {
	ttl   time.Duration
	now   func() time.Duration
	value func() []byte // returns the text of the lease
	log   *slog.Logger
	// outOfReach reports whether an error means that Redis is out of reach, and logs it then.
	outOfReach func(error) bool

	lastSent   atomic.Int64 // now() when the last good renewal was sent, in ns
	slowInRow  int          // renewals in a row that took longer than maxRoundTrip
	ended      atomic.Bool
	once       sync.Once
	renewals   chan struct{} // asks for a renewal now; holds one value
	lost       chan struct{} // closed when the instance must stop
	lostReason error         // written before lost is closed
}

// NewKeeper builds the keeper of an instance. now is clock.SinceBoot, except in tests. outOfReach reports
// whether an error means that Redis is out of reach, and logs it then. The keeper logs other errors.
func NewKeeper(ttl time.Duration, now func() time.Duration, value func() []byte, outOfReach func(error) bool, log *slog.Logger) *Keeper {
	return &Keeper{
		ttl: ttl, now: now, value: value, log: log, outOfReach: outOfReach,
		lost: make(chan struct{}), renewals: make(chan struct{}, 1),
	}
}

// SafeEnd returns the time when the instance must stop. After it no work begins, and calls are cancelled.
func (k *Keeper) SafeEnd() time.Duration { return time.Duration(k.lastSent.Load()) + k.ttl*7/10 }

// exitTime returns the time when a handler call that still runs ends the process.
func (k *Keeper) exitTime() time.Duration { return k.SafeEnd() + k.grace() }

// grace returns how long handlers have to return after they are cancelled.
func (k *Keeper) grace() time.Duration { return k.ttl / 5 }

// Remaining returns how long the instance may still work, 0 or less once it must not.
func (k *Keeper) Remaining() time.Duration {
	if k.ended.Load() {
		return 0
	}
	return k.SafeEnd() - k.now()
}

// Holds reports whether the instance may work right now. It ends the instance if the safe end has
// passed, so that no later renewal can revive it.
func (k *Keeper) Holds() bool {
	if k.ended.Load() {
		return false
	}
	if k.now() <= k.SafeEnd() {
		return true
	}
	k.End(fmt.Errorf("%w: not renewed for %s", lowkiq.ErrLeaseLost, k.ttl*7/10))
	return false
}

// Lost returns a channel that is closed when the instance must stop. LostReason has the reason.
func (k *Keeper) Lost() <-chan struct{} { return k.lost }

// LostReason returns why the lease was lost. It may be called only after Lost is closed.
func (k *Keeper) LostReason() error { return k.lostReason }

// Ended reports whether Lost is closed, or about to be.
func (k *Keeper) Ended() bool { return k.ended.Load() }

// End ends the instance for good. Only the first call has an effect.
func (k *Keeper) End(why error) {
	k.once.Do(func() {
		k.lostReason = why
		k.ended.Store(true)
		close(k.lost)
	})
}

// LeaseMissing ends the instance because its lease is not in Redis.
func (k *Keeper) LeaseMissing() { k.End(fmt.Errorf("%w: %w", lowkiq.ErrLeaseLost, lease.ErrGone)) }

// Take takes the lease with take. The safe end counts from before the request.
func (k *Keeper) Take(ctx context.Context, take func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	k.lastSent.Store(int64(k.now()))
	return take(ctx)
}

// KeepRenewing renews the lease every ttl/6, and when RenewNow asks, until ctx ends or the lease is
// lost. It calls after when a renewal was good.
func (k *Keeper) KeepRenewing(ctx context.Context, held Lease, after func(context.Context)) {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch.Go(func() { k.watchClock(ctx) })
	ticker := time.NewTicker(k.ttl / 6)
	defer ticker.Stop()
	for k.renewOnce(ctx, held, after) {
		select {
		case <-ctx.Done():
			return
		case <-k.lost:
			return
		case <-ticker.C:
		case <-k.renewals:
		}
	}
}

// RenewNow asks for a renewal at once, because the text of the lease has changed.
func (k *Keeper) RenewNow() {
	select {
	case k.renewals <- struct{}{}:
	default:
	}
}

// renewOnce sends a renewal and reports whether to go on.
func (k *Keeper) renewOnce(ctx context.Context, held Lease, after func(context.Context)) bool {
	round, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	sent := k.now()
	err := held.Renew(round, k.value(), k.ttl)
	switch {
	case err == nil:
		if !k.Holds() {
			return false // the answer came after the safe end and revives nothing
		}
		k.lastSent.Store(int64(sent))
		k.warnIfSlow(k.now() - sent)
		after(round)
	case ctx.Err() != nil:
		return false
	case errors.Is(err, lease.ErrGone):
		k.LeaseMissing()
		return false
	case !k.outOfReach(err):
		k.log.Warn("lease not renewed", "left", k.Remaining(), "err", err)
	}
	return true
}

// maxRoundTrip is the longest round trip that leaves room for renewals, retries and takeovers in the ttl.
func (k *Keeper) maxRoundTrip() time.Duration { return k.ttl / 60 }

// warnIfSlow warns once if all renewals of a ttl were slow. A single pause is no slow network.
func (k *Keeper) warnIfSlow(took time.Duration) {
	if took <= k.maxRoundTrip() {
		k.slowInRow = 0
		return
	}
	if k.slowInRow++; k.slowInRow == 6 {
		k.log.Warn("redis is far away for this ttl", "took", took, "ttl", k.ttl, "detail", "the ttl must be at least 60 round trips to Redis; raise node.ttl, or run the node nearer to Redis")
	}
}

// watchClock compares the clock with the safe end. It does so even while a renewal hangs.
func (k *Keeper) watchClock(ctx context.Context) {
	ticker := time.NewTicker(k.ttl / 60)
	defer ticker.Stop()
	for k.Holds() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
