package claims

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	// resyncPause delays the release of a shard that is out of sync with Redis again after a short time. Otherwise it could be
	// claimed and released without end. The first release is not delayed, because usually Redis has lost data only once.
	resyncPause = 5 * time.Second
	// releasePatience is the time that the releases of a draining instance have. Each shard adds a millisecond.
	releasePatience = 3 * time.Second
)

// handover gives shards back while the instance goes on. Only the supervisor's goroutine uses it.
type handover[R Runner] struct {
	c        *Claims[R]
	resynced map[lowkiq.Shard]time.Duration // Now() when a shard was last found to be out of sync
}

func newHandover[R Runner](c *Claims[R]) *handover[R] {
	return &handover[R]{c, map[lowkiq.Shard]time.Duration{}}
}

// startLeaving stops the runners of shards that are not desired any more, or that must be claimed
// anew. Each shard finishes its batches in flight, acknowledges them, and is released. The calls of shards that
// their queues do not have any more are cancelled.
func (h *handover[R]) startLeaving() {
	c := h.c
	for _, o := range c.All() {
		desired := c.IsDesired(o.Shard())
		if !c.isPresent(o.Claim.Shard) {
			o.Runner.Revoke()
		}
		fenced, _ := o.Runner.Fenced()
		outOfSync := o.Runner.OutOfSync()
		if desired && !fenced && !outOfSync || !c.changeState(o, leaving) {
			continue
		}
		begun, pause := c.p.Now(), time.Duration(0)
		if outOfSync {
			pause = h.resyncDelay(o.Shard())
		}
		idle := o.Runner.Stop()
		c.departures.Go(func() {
			<-idle
			c.delayRelease(pause)
			c.finishLeaving(o)
			if !desired {
				c.p.Observer.HandedBack(c.p.Now() - begun)
			}
			c.Kick()
		})
	}
}

// resyncDelay returns how long to wait before a shard that is out of sync is released.
func (h *handover[R]) resyncDelay(s lowkiq.Shard) (pause time.Duration) {
	now := h.c.p.Now()
	if last, before := h.resynced[s]; before && now-last < 2*resyncPause {
		pause = resyncPause
	}
	h.resynced[s] = now
	return pause
}

// delayRelease returns after d, or when the instance must end.
func (c *Claims[R]) delayRelease(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.p.Stop.Done():
	case <-c.p.Lost:
	case <-timer.C:
	}
}

// finishLeaving releases a shard whose handlers have returned. If Redis has refused the shard by its
// fence, there is nothing to release.
func (c *Claims[R]) finishLeaving(o *Owned[R]) {
	if fenced, taken := o.Runner.Fenced(); fenced {
		if c.isPresent(o.Claim.Shard) {
			c.p.Log.Warn("shard lost", "shard", o.Shard(), "fence", o.Claim.Fence, "claimed by another instance", taken)
		}
		if taken {
			c.absent.ClearLastOwner(o.Shard())
		}
		c.removeRunner(o)
		return
	}
	ctx, cancel := c.releaseContext(1)
	defer cancel()
	c.releaseShard(ctx, o)
}

// releaseShard gives a shard back. It does so even after the lease is lost, because Redis refuses a
// release by a fence that is not the shard's any more.
func (c *Claims[R]) releaseShard(ctx context.Context, o *Owned[R]) {
	defer c.removeRunner(o)
	err := o.Runner.Release(ctx)
	var refusal *protocol.FencedError
	switch {
	case err == nil:
		c.absent.ClearLastOwner(o.Shard()) // any instance may claim it now
	case errors.As(err, &refusal):
		c.p.Observer.Fenced("release")
		if refusal.Owner.Fence != 0 { // with fence 0 Redis has lost the claim, and this process was the last owner
			c.absent.ClearLastOwner(o.Shard())
		}
	default:
		c.p.OpFailed("release", o.Shard(), err)
	}
}

// removeRunner closes the runner of a shard whose handlers have returned.
func (c *Claims[R]) removeRunner(o *Owned[R]) {
	o.Runner.Close()
	c.changeState(o, none)
	c.p.Observer.Removed(o.Shard())
	trySend(c.removed)
}

// HandBack gives all shards back when the instance ends. It stops all runners and calls returned, which must block until no
// handler call runs. Only then does it release the shards (I1). Supervise must have returned.
func (c *Claims[R]) HandBack(returned func()) {
	begun := c.p.Now()
	var stopped []*Owned[R]
	for _, o := range c.All() {
		o.Runner.Stop()
		if c.changeState(o, leaving) {
			stopped = append(stopped, o) // startLeaving takes care of the others
		}
	}
	returned()
	c.departures.Wait()
	ctx, cancel := c.releaseContext(len(stopped))
	defer cancel()
	var group errgroup.Group
	group.SetLimit(maxConcurrentClaims)
	for _, o := range stopped {
		group.Go(func() error {
			c.releaseShard(ctx, o)
			c.p.Observer.HandedBack(c.p.Now() - begun)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
}

// releaseContext returns a context for the last acks and the releases of n shards, which are repeated
// while Redis is out of reach.
//
// A process that goes on needs Redis for its next lease anyway, so it waits for Redis. In this way
// it can acknowledge the jobs that it finished during the outage, and nobody handles them again. A
// process that is told to stop must end soon, so all its shards together have one deadline.
func (c *Claims[R]) releaseContext(n int) (context.Context, context.CancelFunc) {
	short := releasePatience + time.Duration(n)*time.Millisecond
	if c.p.Stop.Err() != nil {
		return context.WithTimeout(c.p.IO, short)
	}
	ctx, cancel := context.WithCancel(c.p.IO)
	hurry := context.AfterFunc(c.p.Stop, func() { time.AfterFunc(short, cancel) })
	return ctx, func() { hurry(); cancel() }
}

func isFenced(err error) bool { return errors.Is(err, lowkiq.ErrFenced) }
