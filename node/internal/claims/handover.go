package claims

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

const (
	// resyncPause is how long a shard rests that is out of sync with Redis again and again. The
	// first time it does not rest: Redis has forgotten something, and that is all.
	resyncPause = 5 * time.Second
	// releasePatience is how long the releases of a draining instance may take, and a millisecond
	// more for each.
	releasePatience = 3 * time.Second
)

// handover gives shards back while the instance goes on. It belongs to the supervisor's goroutine.
type handover[R Runner] struct {
	c        *Claims[R]
	resynced map[lowkiq.Shard]time.Duration // Now() when a shard was last found to be out of sync
}

func newHandover[R Runner](c *Claims[R]) *handover[R] {
	return &handover[R]{c, map[lowkiq.Shard]time.Duration{}}
}

// begin has those shards leave that are not desired any more, and those that must be claimed anew.
// Each finishes its batches in flight, acknowledges and releases.
func (h *handover[R]) begin() {
	c := h.c
	for _, o := range c.All() {
		desired := c.Desires(o.Shard())
		fenced, _ := o.Runner.Fenced()
		outOfSync := o.Runner.OutOfSync()
		if desired && !fenced && !outOfSync || !c.move(o, leaving) {
			continue
		}
		begun, pause := c.p.Now(), time.Duration(0)
		if outOfSync {
			pause = h.pauseOf(o.Shard())
		}
		idle := o.Runner.Stop()
		c.leaves.Go(func() {
			<-idle
			c.rest(pause)
			c.leave(o)
			if !desired {
				c.p.Told.Left(c.p.Now() - begun)
			}
			c.Kick()
		})
	}
}

// pauseOf is how long a shard that is out of sync rests before it is released.
func (h *handover[R]) pauseOf(s lowkiq.Shard) (pause time.Duration) {
	now := h.c.p.Now()
	if last, before := h.resynced[s]; before && now-last < 2*resyncPause {
		pause = resyncPause
	}
	h.resynced[s] = now
	return pause
}

// rest waits for d, or until the instance is to end.
func (c *Claims[R]) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.p.Stop.Done():
	case <-c.p.Lost:
	case <-timer.C:
	}
}

// leave ends a shard whose handlers have returned: it is given back, or, if Redis has refused it by
// the fence, forgotten.
func (c *Claims[R]) leave(o *Owned[R]) {
	if fenced, taken := o.Runner.Fenced(); fenced {
		c.p.Log.Warn("shard lost", "shard", o.Shard(), "fence", o.Claim.Fence, "claimed by another instance", taken)
		if taken {
			c.absent.NotLastOwner(o.Shard())
		}
		c.forget(o)
		return
	}
	ctx, cancel := c.patience(1)
	defer cancel()
	c.release(ctx, o)
}

// release gives a shard back. A lost lease does not forbid it: Redis knows whether another instance
// has claimed the shard meanwhile.
func (c *Claims[R]) release(ctx context.Context, o *Owned[R]) {
	defer c.forget(o)
	err := o.Runner.Release(ctx)
	var refusal *queue.FencedError
	switch {
	case err == nil:
		c.absent.NotLastOwner(o.Shard()) // from now on any instance may claim it
	case errors.As(err, &refusal):
		c.p.Told.Fenced("release")
		if refusal.Owner.Fence != 0 { // else Redis has lost the claim: this process was its last owner
			c.absent.NotLastOwner(o.Shard())
		}
	default:
		c.p.OpFailed("release", o.Shard(), err)
	}
}

func (c *Claims[R]) forget(o *Owned[R]) {
	o.Runner.Close()
	c.move(o, none)
	c.p.Told.Gone(o.Shard())
	signal(c.gone)
}

// HandBack ends all runners when the instance ends: it has them stop, waits until their handlers
// have returned, which returned says, and gives the shards back. Supervise must have returned.
func (c *Claims[R]) HandBack(returned func()) {
	begun := c.p.Now()
	var stopped []*Owned[R]
	for _, o := range c.All() {
		o.Runner.Stop()
		if c.move(o, leaving) {
			stopped = append(stopped, o) // the others are on their way already
		}
	}
	returned()
	c.leaves.Wait()
	ctx, cancel := c.patience(len(stopped))
	defer cancel()
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for _, o := range stopped {
		group.Go(func() error {
			c.release(ctx, o)
			c.p.Told.Left(c.p.Now() - begun)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
}

// patience is for how long the last acks and the releases of n shards are repeated while Redis is
// out of reach. A process that goes on needs Redis for its next lease anyhow, so it waits: then
// what was finished during the outage is acknowledged and not handled again. One that is told to
// stop has a deadline for all shards together.
func (c *Claims[R]) patience(n int) (context.Context, context.CancelFunc) {
	short := releasePatience + time.Duration(n)*time.Millisecond
	if c.p.Stop.Err() != nil {
		return context.WithTimeout(c.p.IO, short)
	}
	ctx, cancel := context.WithCancel(c.p.IO)
	hurry := context.AfterFunc(c.p.Stop, func() { time.AfterFunc(short, cancel) })
	return ctx, func() { hurry(); cancel() }
}

func isFenced(err error) bool { return errors.Is(err, lowkiq.ErrFenced) }
