// Package lease keeps an instance's lease and enforces its end (I1).
//
// All times count from the moment at which the last good renewal was sent, on a clock that goes on
// while the machine is suspended. Redis executed that renewal at that moment or later, so the lease
// lives there for a ttl from that moment at least. With the default ttl of 6 s:
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
//	              with its status 75, and nothing of it is
//	              released
//	after 6 s     acks and releases what it still has under   seizes, if the process is proven gone,
//	              its old name; the fence refuses that once   has left, or is dead by gossip
//	              the shard has another owner
//	after 12 s    the same                                    seizes: it has seen the lease missing
//	                                                          for a ttl
//
// The safe end is final: no later answer of Redis revives the instance. So is an answer that the
// lease is missing, whenever it comes. The process goes on as its next instance.
//
// A process that is frozen past its safe end finds it passed at its first look at the clock, which
// is before each handler call: it begins none. Calls that were frozen are cancelled then, and have
// ttl/20 to return even if the exit is due. What such a call does between the thaw and its cancel
// is a limit of I1; see docs/design.md. A machine restored from a snapshot, whose clock stood
// still, is another.
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

// Lease is what a keeper renews.
type Lease interface {
	Renew(ctx context.Context, value []byte, ttl time.Duration) error
}

// Keeper renews an instance's lease and says when the instance must stop working.
type Keeper struct {
	ttl   time.Duration
	now   func() time.Duration
	value func() []byte // what the lease says
	log   *slog.Logger
	// outOfReach logs an error that says that Redis is out of reach, and reports whether it does.
	outOfReach func(error) bool

	sent  atomic.Int64 // now() when the last good renewal was sent, ns
	ended atomic.Bool
	once  sync.Once
	poked chan struct{} // one slot: renew now
	lost  chan struct{} // closed when the instance must stop
	why   error         // written before lost is closed
}

// NewKeeper builds the keeper of one instance. now is SinceBoot, but in tests. outOfReach logs an
// error that says that Redis is out of reach, and reports whether it does; the keeper logs all
// others.
func NewKeeper(ttl time.Duration, now func() time.Duration, value func() []byte, outOfReach func(error) bool, log *slog.Logger) *Keeper {
	return &Keeper{
		ttl: ttl, now: now, value: value, log: log, outOfReach: outOfReach,
		lost: make(chan struct{}), poked: make(chan struct{}, 1),
	}
}

// SafeEnd is when the instance must have stopped to work.
func (k *Keeper) SafeEnd() time.Duration { return time.Duration(k.sent.Load()) + k.ttl*7/10 }

// exit is when a handler call that still runs ends the process.
func (k *Keeper) exit() time.Duration { return k.SafeEnd() + k.grace() }

// grace is how long handlers have to return after their cancel.
func (k *Keeper) grace() time.Duration { return k.ttl / 5 }

// Remaining is how long the instance may still work, 0 or less once it must not.
func (k *Keeper) Remaining() time.Duration {
	if k.ended.Load() {
		return 0
	}
	return k.SafeEnd() - k.now()
}

// Holds reports whether the instance may work right now.
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

// Lost is closed when the instance must stop; Why says why, from then on.
func (k *Keeper) Lost() <-chan struct{} { return k.lost }

// Why is why the lease was lost; to be asked once Lost is closed.
func (k *Keeper) Why() error { return k.why }

// Ended reports whether Lost is closed, or about to be.
func (k *Keeper) Ended() bool { return k.ended.Load() }

// End makes the loss final. Only the first call counts.
func (k *Keeper) End(why error) {
	k.once.Do(func() {
		k.why = why
		k.ended.Store(true)
		close(k.lost)
	})
}

// Missing ends the instance because its lease is not in Redis.
func (k *Keeper) Missing() { k.End(fmt.Errorf("%w: %w", lowkiq.ErrLeaseLost, lease.ErrGone)) }

// Take gets the lease; the safe end counts from before the request.
func (k *Keeper) Take(ctx context.Context, take func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	k.sent.Store(int64(k.now()))
	return take(ctx)
}

// Run renews the lease every ttl/6, and when poked, until ctx ends or the lease is lost. It calls
// after once each good renewal is done.
func (k *Keeper) Run(ctx context.Context, held Lease, after func(context.Context)) {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch.Go(func() { k.watch(ctx) })
	ticker := time.NewTicker(k.ttl / 6)
	defer ticker.Stop()
	for k.renew(ctx, held, after) {
		select {
		case <-ctx.Done():
			return
		case <-k.lost:
			return
		case <-ticker.C:
		case <-k.poked:
		}
	}
}

// Poke asks for a renewal now: what the lease says has changed.
func (k *Keeper) Poke() {
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

// renew reports whether to go on.
func (k *Keeper) renew(ctx context.Context, held Lease, after func(context.Context)) bool {
	round, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	sent := k.now()
	err := held.Renew(round, k.value(), k.ttl)
	switch {
	case err == nil:
		if !k.Holds() {
			return false // it came too late and revives nothing
		}
		k.sent.Store(int64(sent))
		after(round)
	case ctx.Err() != nil:
		return false
	case errors.Is(err, lease.ErrGone):
		k.Missing()
		return false
	case !k.outOfReach(err):
		k.log.Warn("lease not renewed", "left", k.Remaining(), "err", err)
	}
	return true
}

// watch compares the clock with the safe end, also while a renewal hangs.
func (k *Keeper) watch(ctx context.Context) {
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
