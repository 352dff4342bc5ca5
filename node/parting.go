package node

import (
	"errors"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// How a runner comes to part with its shard.

// lose ends the work on a shard whose claim is gone. Another node may own it already, so its
// handlers have as long to return as those of a lost lease.
func (r *runner) lose(op string, err error) {
	var refusal *queue.FencedError
	r.mu.Lock()
	before := r.fenced
	r.fenced = true
	r.taken = errors.As(err, &refusal) && refusal.Owner.Fence != 0
	r.mu.Unlock()
	if before {
		return
	}
	r.in.node.metrics.Fenced(op)
	r.cancel(lowkiq.ErrLeaseLost)
	r.in.calls.EndWithClaim(r.calls.Load)
	r.in.kick()
}

// stray gives a shard back to claim it anew: Redis forgot some of what it did (a
// failover), and only a release puts flights that nobody knows back into the queue (I2).
func (r *runner) stray(why string, err error) {
	r.mu.Lock()
	before := r.astray
	r.astray = true
	r.mu.Unlock()
	if before {
		return
	}
	r.in.log.Warn("redis and node disagree about a shard: claiming it anew", "shard", r.claim.Shard, "why", why, "err", err)
	r.stop()
	r.in.kick()
}

// over reports whether the claim is of no more use: it is gone, or is to be given back.
func (r *runner) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fenced || r.astray
}

// strays reports whether Redis and this runner disagree.
func (r *runner) strays() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.astray
}

// stop ends the pops; the returned channel closes when no handler of the shard runs.
func (r *runner) stop() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopping {
		r.stopping = true
		r.interrupt()
		r.timer.Stop()
		if r.lanes == 0 {
			close(r.idle)
		}
	}
	return r.idle
}
