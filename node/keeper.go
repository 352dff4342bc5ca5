package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// keeper keeps an instance's lease and says when the instance must stop working.
//
// The deadline is the send time of the last good renewal + 0.7 ttl: whenever Redis
// executed that renewal, the lease lives longer than that. Overrunning it is final for
// the instance, as is a missing lease; no later reply revives it (I1).
type keeper struct {
	ttl   time.Duration
	now   func() time.Duration // a clock that counts suspend
	value func() []byte        // what the lease says
	log   *slog.Logger
	// outOfReach logs an error that says that Redis is out of reach, and reports whether it does; nil for tests.
	outOfReach func(error) bool

	good  atomic.Int64 // now() when the last good renewal was sent, ns
	ended atomic.Bool
	once  sync.Once
	poked chan struct{} // one slot: renew now
	lost  chan struct{} // closed when the instance must stop
	why   error         // written before lost is closed
}

// lease is what a keeper renews.
type lease interface {
	Renew(ctx context.Context, value []byte, ttl time.Duration) error
}

func newKeeper(ttl time.Duration, value func() []byte, log *slog.Logger) *keeper {
	return &keeper{ttl: ttl, now: sinceBoot, value: value, log: log, lost: make(chan struct{}), poked: make(chan struct{}, 1)}
}

func (k *keeper) deadline() time.Duration {
	return time.Duration(k.good.Load()) + k.ttl*7/10
}

// remaining is how long the instance may still work, 0 once it must not.
func (k *keeper) remaining() time.Duration {
	if k.ended.Load() {
		return 0
	}
	return k.deadline() - k.now()
}

// grace is how long handlers have to return after their cancel.
func (k *keeper) grace() time.Duration { return k.ttl / 5 }

// overrun is when a handler that still runs must be gone with its process.
func (k *keeper) overrun() time.Duration { return k.deadline() + k.grace() }

// holds reports whether the instance may work right now.
func (k *keeper) holds() bool {
	if k.ended.Load() {
		return false
	}
	if k.now() <= k.deadline() {
		return true
	}
	k.end(fmt.Errorf("%w: not renewed for %s", lowkiq.ErrLeaseLost, k.ttl*7/10))
	return false
}

// end makes the loss final.
func (k *keeper) end(why error) {
	k.once.Do(func() {
		k.why = why
		k.ended.Store(true)
		close(k.lost)
	})
}

// vanished ends the instance because its lease is not in Redis.
func (k *keeper) vanished() {
	k.end(fmt.Errorf("%w: %w", lowkiq.ErrLeaseLost, queue.ErrLeaseGone))
}

// take gets the lease; the deadline counts from before the request.
func (k *keeper) take(ctx context.Context, take func(context.Context) (*queue.Lease, error)) (*queue.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	k.good.Store(int64(k.now()))
	return take(ctx)
}

// run renews the lease every ttl/6 until ctx ends or the lease is lost. after is called
// after each good renewal.
func (k *keeper) run(ctx context.Context, lease lease, after func(context.Context)) {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch.Go(func() { k.watch(ctx) })
	ticker := time.NewTicker(k.ttl / 6)
	defer ticker.Stop()
	for k.renew(ctx, lease, after) {
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

// poke asks for a renewal now: what the lease says has changed.
func (k *keeper) poke() {
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

// renew says whether to go on.
func (k *keeper) renew(ctx context.Context, lease lease, after func(context.Context)) bool {
	round, cancel := context.WithTimeout(ctx, k.ttl/6)
	defer cancel()
	sent := k.now()
	err := lease.Renew(round, k.value(), k.ttl)
	switch {
	case err == nil:
		if !k.holds() {
			return false // it came too late and revives nothing
		}
		k.good.Store(int64(sent))
		after(round)
	case ctx.Err() != nil:
		return false
	case errors.Is(err, queue.ErrLeaseGone):
		k.vanished()
		return false
	case k.outOfReach == nil || !k.outOfReach(err):
		k.log.Warn("lease not renewed", "left", k.deadline()-k.now(), "err", err)
	}
	return true
}

// watch compares the clock with the deadline, also while a renewal hangs.
func (k *keeper) watch(ctx context.Context) {
	ticker := time.NewTicker(k.ttl / 60)
	defer ticker.Stop()
	for k.holds() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
