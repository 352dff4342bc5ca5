package lease

import (
	"log/slog"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// ShutdownGrace is how long handlers may take after the cancel of a shutdown.
const ShutdownGrace = 2 * time.Second

// Calls are an instance's handler calls. There are three ways in which they may not go on: the
// lease is lost, a shard's claim is lost, or the node shuts down. Each cancels them first; calls
// that run on all the same lead to overrun, which ends the process (I1).
type Calls struct {
	keeper  *Keeper
	running func() int64 // how many run
	cancel  func(error)  // cancels all of them
	overrun func()       // ends the process
	mu      sync.Mutex   // one overrun at a time
}

// NewCalls makes the guard of an instance's handler calls.
func NewCalls(keeper *Keeper, running func() int64, cancel func(error), overrun func()) *Calls {
	return &Calls{keeper: keeper, running: running, cancel: cancel, overrun: overrun}
}

// EndWithLease ends the calls when the lease is lost: cancelled at once, overrun at 0.9 ttl. It
// waits for no answer of Redis, unlike all else that a lost lease leads to: with Redis frozen it
// must come in time, too. It returns once done is closed, or after the overrun.
func (c *Calls) EndWithLease(done <-chan struct{}) {
	select {
	case <-c.keeper.Lost():
	case <-done:
		return
	}
	c.cancel(c.keeper.Why())
	// A process that was frozen past 0.9 ttl gives its handlers a moment, too.
	if !within(done, nil, max(c.keeper.exit()-c.keeper.now(), c.keeper.ttl/20)) {
		c.end(c.running)
	}
}

// EndWithClaim ends the calls of a shard that another instance may own by now. The caller has
// cancelled them; they have as long to return as those of a lost lease.
func (c *Calls) EndWithClaim(running func() int64) {
	time.AfterFunc(c.keeper.grace(), func() { c.end(running) })
}

// AwaitShutdown gives the calls time to return, cancels those that then run, and ShutdownGrace
// later ends the process if some still do. If the lease is lost meanwhile, EndWithLease ends them.
// It returns once done is closed.
func (c *Calls) AwaitShutdown(done <-chan struct{}, patience time.Duration, log *slog.Logger) {
	defer func() { <-done }()
	if within(done, c.keeper.lost, patience) || c.keeper.Ended() {
		return
	}
	log.Warn("handlers still run: cancelling them", "calls", c.running())
	c.cancel(lowkiq.ErrShutdown)
	if within(done, c.keeper.lost, ShutdownGrace) || c.keeper.Ended() {
		return
	}
	c.end(c.running)
}

// end leads to the overrun if calls still run. Several lost claims may lead here at once: the
// overrun of one may have ended the calls of the others.
func (c *Calls) end(running func() int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running() > 0 {
		c.overrun()
	}
}

// within waits for done for d, or until lost is closed. It reports whether done was closed.
func within(done, lost <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-lost:
	case <-timer.C:
	}
	return false
}
