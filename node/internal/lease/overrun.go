package lease

import (
	"log/slog"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// ShutdownGrace is the time that handlers have after a shutdown has cancelled them.
const ShutdownGrace = 2 * time.Second

// Calls ends an instance's handler calls when they must not go on. That is so if the lease is lost,
// if a shard's claim is lost, or if the node shuts down. Each time the calls are cancelled first.
// If they run on after their time to return, overrun ends the process (I1).
type Calls struct {
	keeper  *Keeper
	running func() int64 // returns how many calls run
	cancel  func(error)  // cancels all calls
	overrun func()       // ends the process
	mu      sync.Mutex   // held during an overrun
}

// NewCalls makes the guard of an instance's handler calls.
func NewCalls(keeper *Keeper, running func() int64, cancel func(error), overrun func()) *Calls {
	return &Calls{keeper: keeper, running: running, cancel: cancel, overrun: overrun}
}

// WatchLease cancels the calls when the lease is lost, and calls overrun at 0.9 ttl if some still run. It waits for no answer
// of Redis, so it is in time even if Redis is frozen. It returns once done is closed, or after the overrun.
func (c *Calls) WatchLease(done <-chan struct{}) {
	select {
	case <-c.keeper.Lost():
	case <-done:
		return
	}
	c.cancel(c.keeper.LostReason())
	// A process that was frozen past 0.9 ttl gives its handlers a moment, too.
	if !waitUntil(done, nil, max(c.keeper.exitTime()-c.keeper.now(), c.keeper.ttl/20)) {
		c.exitIfRunning(c.running)
	}
}

// EndLostClaim ends the calls of a shard that another instance may own by now. The caller has
// cancelled them. They have as long to return as the calls of a lost lease.
func (c *Calls) EndLostClaim(running func() int64) {
	time.AfterFunc(c.keeper.grace(), func() { c.exitIfRunning(running) })
}

// AwaitShutdown waits for the calls during patience and then cancels them. If some still run ShutdownGrace later, it ends the
// process. If the lease is lost in the meantime, it leaves the calls to WatchLease. It returns once done is closed.
func (c *Calls) AwaitShutdown(done <-chan struct{}, patience time.Duration, log *slog.Logger) {
	defer func() { <-done }()
	if waitUntil(done, c.keeper.lost, patience) || c.keeper.Ended() {
		return
	}
	log.Warn("handlers still run, and are cancelled", "calls", c.running())
	c.cancel(lowkiq.ErrShutdown)
	if waitUntil(done, c.keeper.lost, ShutdownGrace) || c.keeper.Ended() {
		return
	}
	c.exitIfRunning(c.running)
}

// exitIfRunning calls overrun if calls still run. Several lost claims may lead here at the same time.
// The overrun of the first may have ended the calls of the others, so each counts anew.
func (c *Calls) exitIfRunning(running func() int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running() > 0 {
		c.overrun()
	}
}

// waitUntil waits for done for d, or until lost is closed. It reports whether done was closed.
func waitUntil(done, lost <-chan struct{}, d time.Duration) bool {
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
