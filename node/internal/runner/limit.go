package runner

import (
	"context"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

// A queue's limits hold for the whole cluster, so nodes share them out by Redis (queue.Permits, queue.Client.TakeRate).
//
// Of calls at once each node has permits. They are the queue's slots on the node, so a lane waits for one as it does for the
// node's own bound, and the next lane has it without Redis being asked. The node asks for more, or gives some back.
//
// The rate is asked right before a call, when its lane has all else that it needs: what was taken is used at once, or never.
// A lane of the node at a time waits for it, and holds nothing meanwhile that others could use.

// Permits makes the calls of the queue no more than run now, until Permitted says otherwise. It returns how many that are, and how
// many wait for one, and the limit; 0: the queue has none.
func (q *Queue) Permits() (busy, waiting, limit int) {
	q.live.mu.Lock()
	defer q.live.mu.Unlock()
	if limit = q.live.rules.Load().Limit.Concurrency; limit > 0 {
		busy, waiting = q.live.bound.freeze()
		q.live.permits = busy
	}
	return busy, waiting, limit
}

// Permitted says how many calls of the queue there may be on this node, of a limit that holds still.
func (q *Queue) Permitted(n, limit int) {
	q.live.mu.Lock()
	defer q.live.mu.Unlock()
	if q.live.rules.Load().Limit.Concurrency == limit {
		q.live.permits = n
		q.live.apply()
	}
}

// Wanting gets a value when a lane waits for a call.
func (q *Queue) Wanting() <-chan struct{} { return q.live.bound.wanting }

// Rate takes n ids from what the cluster may hand out now. If wait is not 0 it took nothing: ask again then.
type Rate func(ctx context.Context, n int) (wait time.Duration, err error)

// pacer lets a lane of a queue's rate at a time go on.
type pacer struct {
	turn chan struct{} // has a value while a lane waits

	mu    sync.Mutex
	after time.Time // nothing may be handed out before that; guarded by mu
}

// paceAgain is after how long Redis is asked again that has not answered.
const paceAgain = 100 * time.Millisecond

// begin waits for the lane's turn, and for the time at which something may be handed out.
func (p *pacer) begin(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.mu.Lock()
	wait := time.Until(p.after)
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		p.end(0)
		return context.Cause(ctx)
	}
}

// end lets the next lane go on, after some time.
func (p *pacer) end(wait time.Duration) {
	p.mu.Lock()
	if at := time.Now().Add(wait); at.After(p.after) {
		p.after = at
	}
	p.mu.Unlock()
	<-p.turn
}

// pace asks whether the batch may begin by the queue's rate. If not, the turn holds nothing more, and the lane prepares anew.
func (r *Runner) pace(batch *lowkiq.Batch, t *turn) bool {
	if !t.paced {
		return true
	}
	wait, err := r.queue.Rate(r.work, len(batch.Jobs))
	if err != nil {
		wait = paceAgain
	}
	t.unpace(wait)
	if wait > 0 {
		t.give()
	}
	return wait == 0
}

// unpace lets the next lane of the queue ask for its rate, after some time.
func (t *turn) unpace(wait time.Duration) {
	if t.paced {
		t.paced = false
		t.queue.live.pacer.end(wait)
	}
}
