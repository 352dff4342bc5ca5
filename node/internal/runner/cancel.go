package runner

import (
	"context"
	"slices"
	"sync"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A person may cancel the run of an id. The context of its handler call ends then. Jobs that the handler still
// reports as done are done. Otherwise the payloads of the cancelled id become what the person has asked for.
// The other ids of the batch go back without a retry, because they only happened to be in the same batch.
//
// Nothing is decided about any of these ids before the call has returned, so that no id runs twice at once (I1).

// canceller cancels the handler call of a lane, and records the reasons.
type canceller struct {
	mu   sync.Mutex
	call context.CancelCauseFunc          // nil if no call runs; guarded by mu
	by   map[string]protocol.Cancellation // reasons by id; guarded by mu
}

// beginCall records that a call begins, which cancel ends.
func (c *canceller) beginCall(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call, c.by = cancel, nil
}

// endCall records that the call has ended. The reasons stay until the next call.
func (c *canceller) endCall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call = nil
}

// cancel cancels the call because of an id. It returns false if no call runs.
func (c *canceller) cancel(id string, why protocol.Cancellation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.call == nil {
		return false
	}
	if c.by == nil {
		c.by = map[string]protocol.Cancellation{}
	}
	c.by[id] = why
	c.call(lowkiq.ErrCancelled)
	return true
}

// hasEnded reports whether no call runs.
func (c *canceller) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.call == nil
}

// reasons returns why the last call was cancelled, by id, or nil.
func (c *canceller) reasons() map[string]protocol.Cancellation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}

// CancelAll cancels all handler calls of the shard. It may be called again for calls that have begun meanwhile.
func (r *Runner) CancelAll(why protocol.Cancellation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.state.lanes {
		for _, id := range l.ids {
			l.canceller.cancel(id, why)
		}
	}
}

// Cancel cancels the handler call that has an id. It returns false if no call has the id. It also returns false while all calls
// are being cancelled anyway, because the shard is lost or the time of the shutdown is over. All jobs in flight go back then.
func (r *Runner) Cancel(id string, why protocol.Cancellation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.state.lanes {
		// Lanes keep their ids after a call, while they call hooks. Another lane may have the id again by then.
		if r.work.Err() == nil && slices.Contains(l.ids, id) && l.canceller.cancel(id, why) {
			return true
		}
	}
	return false
}
