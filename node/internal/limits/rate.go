package limits

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// AskRate asks Redis how many of some batches the rate lets go; see protocol.Client.TakeRate.
type AskRate func(ctx context.Context, batches []int) (protocol.RateGrant, error)

// rate lets lanes of a queue with a rate prepare a call, in order of arrival. A lane whose batch was refused goes to the
// front again, so that a batch is not overtaken without end because it is larger than other batches.
type rate struct {
	mu     sync.Mutex
	room   int         // number of lanes that may prepare a call at once, at least 1; guarded by mu
	ready  int         // number of lanes that prepare a call, or are ready for it; guarded by mu
	after  time.Time   // no lane may begin to prepare a call before this time; guarded by mu
	lanes  []*rateLane // waiting lanes; guarded by mu
	timer  *time.Timer // calls serveLanes at the time after; nil before the first wait; guarded by mu
	asks   []*rateAsk  // questions of ready lanes; guarded by mu
	asking bool        // a goroutine sends requests; guarded by mu
}

type rateLane struct{ turn chan struct{} }

// rateAsk is the question of a lane.
type rateAsk struct {
	ids  int
	done chan struct{}
	may  bool          // whether the ids may begin
	wait time.Duration // before the next request
}

// retryPause is the pause before the next request after a request without an answer.
const retryPause = 100 * time.Millisecond

// AwaitRate waits until a lane is to get ready for a call. refused means that the rate has refused its batch before. Each
// successful call is followed by LeaveRate.
func (q *Queue) AwaitRate(ctx context.Context, refused bool) error {
	p := &q.rate
	lane := &rateLane{turn: make(chan struct{})}
	p.mu.Lock()
	if refused {
		p.lanes = slices.Insert(p.lanes, 0, lane)
	} else {
		p.lanes = append(p.lanes, lane)
	}
	p.serveLanes()
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
		p.ready-- // its turn came meanwhile
		p.serveLanes()
	}
	return context.Cause(ctx)
}

// LeaveRate lets the next lane get ready. The lane that was ready has its answer, or needs none.
func (q *Queue) LeaveRate() {
	p := &q.rate
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready--
	p.serveLanes()
}

// serveLanes lets waiting lanes get ready when it is time. The caller holds mu.
func (p *rate) serveLanes() {
	wait := time.Until(p.after)
	for wait <= 0 && len(p.lanes) > 0 && p.ready < max(1, p.room) {
		close(p.lanes[0].turn)
		p.lanes = slices.Delete(p.lanes, 0, 1)
		p.ready++
	}
	if wait <= 0 || len(p.lanes) == 0 {
		return
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.serveLanes()
		})
		return
	}
	p.timer.Reset(wait)
}

// anyWaiting reports whether lanes wait for the rate.
func (p *rate) anyWaiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes) > 0
}

// forgetGrant forgets the answer about an old rate.
func (p *rate) forgetGrant() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room, p.after = 0, time.Time{}
	p.serveLanes()
}

// TakeRate asks whether a batch of so many ids may begin now. If not, again is how long it must wait.
func (q *Queue) TakeRate(ctx context.Context, ids int) (may bool, again time.Duration) {
	a := &rateAsk{ids: ids, done: make(chan struct{})}
	if q.rate.addAsk(a) {
		q.cfg.Go(func() { q.sendRate(ctx) })
	}
	<-a.done
	return a.may, a.wait
}

// addAsk adds the question of a lane. It reports whether the caller must send requests.
func (p *rate) addAsk(a *rateAsk) (send bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks = append(p.asks, a)
	send = !p.asking
	p.asking = true
	return send
}

// applyGrant gives the lanes their answers, and sets how many lanes are to get ready, and when. The caller holds mu.
func (p *rate) applyGrant(asks []*rateAsk, grant protocol.RateGrant, err error) {
	if err != nil {
		grant = protocol.RateGrant{Wait: retryPause}
	}
	ids := 0
	for i, a := range asks {
		ids += a.ids
		a.may, a.wait = i < grant.Batches, grant.Wait
		close(a.done)
	}
	p.room, p.after = grant.Left*len(asks)/max(1, ids), time.Now().Add(min(grant.Wait, protocol.RateAgain))
	p.serveLanes()
}

// sendRate sends requests until no lane asks.
func (q *Queue) sendRate(ctx context.Context) {
	p := &q.rate
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.asks) > 0 {
		asks := p.asks[:min(len(p.asks), protocol.RatesAtOnce)]
		p.asks = p.asks[len(asks):]
		batches := make([]int, len(asks))
		for i, a := range asks {
			batches[i] = a.ids
		}
		p.mu.Unlock()
		grant, err := q.cfg.AskRate(ctx, batches)
		p.mu.Lock()
		p.applyGrant(asks, grant, err)
	}
	p.asking = false
}
