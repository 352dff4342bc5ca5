package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// A queue's limits hold for the whole cluster, so nodes share them out by Redis (queue.Permits, queue.Client.TakeRate).
//
// Of calls at once each node has permits. They are the queue's slots on the node, so a lane waits for one as it does for the
// node's own bound, and the next lane has it without Redis being asked. The node asks for more, or gives some back, while calls go on:
// until Redis answers it keeps to those that it has.
//
// The rate is asked right before a call, when its lane has all else that it needs: what was taken is used at once, or never.
// Only as many lanes get ready for that as there is likely to be room for; the others wait, and hold nothing meanwhile that
// others could use. One request of a queue and node is on its way at a time; what lanes ask meanwhile goes with the next one.

// Permits are a queue's calls on this node, and what its limit lets it have.
type Permits struct {
	Has     int // calls that there may be until Permitted says otherwise, or that there are if these are more
	Busy    int // calls that there are
	Waiting int // lanes that wait for one
	Limit   int // of the cluster; 0: the queue has none
}

// Permits reads them.
func (q *Queue) Permits() (p Permits) {
	q.live.mu.Lock()
	defer q.live.mu.Unlock()
	if p.Limit = q.live.rules.Load().Limit.Concurrency; p.Limit > 0 {
		p.Busy, p.Waiting = q.live.bound.taken()
		p.Has = max(q.live.permits, p.Busy)
	}
	return p
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

// Ended gets a value when there are no more calls than there may be, after there were.
func (q *Queue) Ended() <-chan struct{} { return q.live.bound.ended }

// Rate asks Redis; see queue.Client.TakeRate.
type Rate func(ctx context.Context, batches []int) (queue.RateGrant, error)

// pacer lets lanes of a queue with a rate get ready for a call, in the order in which they came. One that was refused comes
// before the others again: no batch is overtaken forever because it is larger than those of other lanes.
type pacer struct {
	mu     sync.Mutex
	room   int          // so many lanes may get ready at once, at least one; guarded by mu
	in     int          // so many do; guarded by mu
	after  time.Time    // none begins to before that; guarded by mu
	lanes  []*pacedLane // that wait; guarded by mu
	timer  *time.Timer  // calls serve at after; nil: no lane has had to wait; guarded by mu
	asks   []*rateAsk   // of lanes that are ready; guarded by mu
	asking bool         // a request is on its way; guarded by mu
}

type pacedLane struct{ turn chan struct{} }

// rateAsk is what a lane asks for.
type rateAsk struct {
	ids  int
	done chan struct{}
	may  bool
	wait time.Duration // before the next request
}

// paceAgain is after how long Redis is asked again that has not answered.
const paceAgain = 100 * time.Millisecond

// begin waits until a lane is to get ready.
func (p *pacer) begin(ctx context.Context, refused bool) error {
	lane := &pacedLane{turn: make(chan struct{})}
	p.mu.Lock()
	if refused {
		p.lanes = slices.Insert(p.lanes, 0, lane)
	} else {
		p.lanes = append(p.lanes, lane)
	}
	p.serve()
	p.mu.Unlock()
	select {
	case <-lane.turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.lanes, lane); i >= 0 {
		p.lanes = slices.Delete(p.lanes, i, i+1)
	} else {
		p.in-- // its turn came meanwhile
		p.serve()
	}
	return context.Cause(ctx)
}

// end notes that a lane does not get ready any more: it has its answer, or needs none.
func (p *pacer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in--
	p.serve()
}

// serve has lanes get ready that wait, if it is time. mu is held.
func (p *pacer) serve() {
	wait := time.Until(p.after)
	for wait <= 0 && len(p.lanes) > 0 && p.in < max(1, p.room) {
		close(p.lanes[0].turn)
		p.lanes = slices.Delete(p.lanes, 0, 1)
		p.in++
	}
	if wait <= 0 || len(p.lanes) == 0 {
		return
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.serve()
		})
		return
	}
	p.timer.Reset(wait)
}

// restart forgets what an answer said of another rate.
func (p *pacer) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room, p.after = 0, time.Time{}
	p.serve()
}

// ask adds what a lane asks for. It reports whether the caller is to send requests.
func (p *pacer) ask(a *rateAsk) (send bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks = append(p.asks, a)
	send = !p.asking
	p.asking = true
	return send
}

// take hands an answer to the lanes that have asked, and says when how many are to get ready. mu is held.
func (p *pacer) take(asks []*rateAsk, grant queue.RateGrant, err error) {
	if err != nil {
		grant = queue.RateGrant{Wait: paceAgain}
	}
	ids := 0
	for i, a := range asks {
		ids += a.ids
		a.may, a.wait = i < grant.Batches, grant.Wait
		close(a.done)
	}
	p.room, p.after = grant.Left*len(asks)/max(1, ids), time.Now().Add(min(grant.Wait, queue.RateAgain))
	p.serve()
}

// askRate sends requests until there is nothing left to ask.
func (q *Queue) askRate(ctx context.Context) {
	p := &q.live.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.asks) > 0 {
		asks := p.asks[:min(len(p.asks), queue.RatesAtOnce)]
		p.asks = p.asks[len(asks):]
		batches := make([]int, len(asks))
		for i, a := range asks {
			batches[i] = a.ids
		}
		p.mu.Unlock()
		grant, err := q.Rate(ctx, batches)
		p.mu.Lock()
		p.take(asks, grant, err)
	}
	p.asking = false
}

// pace asks whether the batch may begin by the queue's rate, for which the turn was paced. If not, the turn holds nothing more, and
// the lane prepares anew.
func (r *Runner) pace(batch *lowkiq.Batch, t *turn) bool {
	a := &rateAsk{ids: len(batch.Jobs), done: make(chan struct{})}
	if r.queue.live.pacer.ask(a) {
		r.process.Lanes.Go(func() { r.queue.askRate(r.process.Work) })
	}
	<-a.done
	t.refused = !a.may
	t.unpace()
	if t.refused {
		t.give()
		if r.process.Now()-t.admitted+a.wait > keepGroups {
			r.leaveGroups(t)
		}
	}
	return a.may
}

// unpace lets the next lane of the queue get ready.
func (t *turn) unpace() {
	if t.paced {
		t.paced = false
		t.queue.live.pacer.end()
	}
}
