package node

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The limit of a queue's calls holds for the whole cluster. Each instance asks Redis for permits when its lanes need them. It
// gives back permits that it does not use, or that other instances lack. For queues without such a limit there are no requests.

const (
	// minAskPause and maxAskPause bound the pause between requests of an instance that lacks permits. The pause doubles
	// with each request that brings none. See permitsAgain for the pauses of many instances.
	minAskPause, maxAskPause = 5 * time.Millisecond, 40 * time.Millisecond
	// satisfiedPause is the pause of an instance that has the permits that it needs. It asks whether other instances lack
	// permits, and gives back permits that it does not use. While others lack permits it asks earlier; see permitsAgain.
	satisfiedPause = 250 * time.Millisecond
	// minAskSpacing is the time between requests of all instances together for permits of a queue. Instances that soon get
	// a permit are not counted. maxAgainPause bounds the pause that follows from it for an instance.
	minAskSpacing, maxAgainPause = 400 * time.Microsecond, time.Second
	// peakWindow is how long an instance keeps permits that it has stopped using.
	peakWindow = time.Second
	// idlePause is the pause without a limit, or without need of a permit. A lane that needs a permit, or a change of the
	// limit, ends it.
	idlePause = time.Hour
)

// permits asks Redis for the permits of this instance for a queue.
type permits struct {
	queue    *limits.Queue
	ask      func(context.Context, protocol.PermitRequest) (protocol.PermitGrant, error)
	failed   func(error)
	instance string

	maxCalls func() int // maximum number of calls of the node at once

	number     int64         // of the last request
	lastPause  time.Duration // pause before the last request; 0 if the instance has the permits that it needs
	peaks      [2]int        // maximum need since peaksSince, and in the peakWindow before that
	peaksSince time.Time
}

// recentPeak returns the maximum need of the last one to two seconds. Permits are kept for it, so that lanes that come and
// go find permits.
func (p *permits) recentPeak(now int) int {
	if since := time.Since(p.peaksSince); since >= peakWindow {
		p.peaks, p.peaksSince = [2]int{0, p.peaks[0]}, time.Now()
	}
	p.peaks[0] = max(p.peaks[0], now)
	return max(p.peaks[0], p.peaks[1])
}

// run asks for permits until ctx ends.
func (p *permits) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wanting := p.queue.PermitWanted()
		if p.lastPause > 0 {
			wanting = nil // the last request was for these lanes, and the next request follows after the pause
		}
		select {
		case <-ctx.Done():
			return
		case <-wanting:
		case <-p.queue.CallsEnded():
		case <-timer.C:
		}
		timer.Reset(p.askOnce(ctx))
	}
}

// askOnce asks for the permits that are needed now. It returns the pause before the next request.
func (p *permits) askOnce(ctx context.Context) (again time.Duration) {
	has := p.queue.Permits()
	if has.Limit == 0 {
		p.lastPause = 0
		return idlePause
	}
	wanted := min(has.Busy+has.Waiting, p.maxCalls())
	kept := p.recentPeak(wanted)
	if keep := max(has.Busy, kept); keep < has.Has { // give back unused permits
		p.queue.SetPermits(keep, has.Limit)
		has = p.queue.Permits()
	}
	p.number++
	grant, err := p.ask(ctx, protocol.PermitRequest{
		Instance: p.instance, Number: p.number, Limit: has.Limit, Has: has.Has, Wanted: max(wanted, has.Busy), Kept: kept})
	if err != nil {
		if ctx.Err() == nil {
			p.failed(err)
		}
		p.lastPause = maxAskPause
		return maxAskPause
	}
	p.queue.SetPermits(grant.May, has.Limit)
	switch {
	case grant.May < has.Has: // other instances lack permits; the next request gives some back, once calls have ended
		p.lastPause = maxAskPause
		if p.queue.Permits().Has <= grant.May {
			return 0
		}
	case kept == 0:
		p.lastPause = 0
		return idlePause
	case grant.May >= wanted:
		p.lastPause = 0
		if grant.Lack {
			return permitsAgain(grant, has.Limit)
		}
		return max(satisfiedPause, permitsAgain(grant, has.Limit))
	case grant.May > has.Has || grant.May == 0 && grant.Before == 0: // the instance is the next to get permits
		p.lastPause = minAskPause
	default:
		p.lastPause = min(max(minAskPause, 2*p.lastPause), permitsAgain(grant, has.Limit))
	}
	return p.lastPause
}

// permitsAgain returns the maximum pause of an instance that lacks permits, or whose permits others lack. It grows with the
// number of waiting instances, so that few ask at the same time. An instance without a permit asks about twice before its
// turn, if each instance before it keeps its permit for a whole turn.
func permitsAgain(grant protocol.PermitGrant, limit int) time.Duration {
	late := time.Duration(grant.Askers) * minAskSpacing
	if grant.May == 0 && grant.Before > 0 {
		late = time.Duration(grant.Before) * protocol.PermitTurn(limit) / time.Duration(2*limit)
	}
	return min(max(maxAskPause, late), maxAgainPause)
}

// sharePermits asks for permits of this instance's queues until ctx ends.
func (in *instance) sharePermits(ctx context.Context) {
	var group sync.WaitGroup
	for name, q := range in.limits {
		of, on := in.node.client.Permits(name), in.node.queues.handled[name]
		p := &permits{
			queue: q, instance: in.name,
			ask: func(ctx context.Context, r protocol.PermitRequest) (protocol.PermitGrant, error) {
				grant, err := of.Ask(ctx, r)
				in.checkLease(err)
				return grant, err
			},
			maxCalls: func() int { return cmp.Or(on.maxCalls(on.rulesNow()), in.node.cfg.Concurrency) },
			failed:   func(err error) { in.ops.logWarning("ask for permits", nil, err) },
		}
		group.Go(func() { p.run(ctx) })
	}
	group.Wait()
}

// askGroups returns a function that asks Redis which ids the limits of groups allow.
func (in *instance) askGroups(name string) limits.AskGroups {
	return func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
		r.Instance = in.name
		grants, err := in.node.client.AskGroups(in.io, name, r)
		in.checkLease(err)
		return grants, err
	}
}

// checkLease ends the instance if err says that its lease is gone. Other instances may have its permits then.
func (in *instance) checkLease(err error) {
	if errors.Is(err, lease.ErrGone) {
		in.keeper.LeaseMissing()
	}
}

// tendGroups makes queues repeat failed reports about their groups, until ctx ends. Each queue has a goroutine, because a
// queue whose lanes ask all the time keeps its goroutine busy.
func (in *instance) tendGroups(ctx context.Context) {
	var group sync.WaitGroup
	for _, q := range in.limits {
		group.Go(func() { every(ctx, time.Second, q.ReportGroups) })
	}
	group.Wait()
}

// askRate returns a function that asks Redis which batches the rate of a queue allows.
func (n *Node) askRate(on *handled) limits.AskRate {
	return func(ctx context.Context, batches []int) (protocol.RateGrant, error) {
		limit := on.rulesNow().Limit
		if limit.Rate.N == 0 { // the rate was removed meanwhile
			return protocol.RateGrant{Batches: len(batches), Left: protocol.RatesAtOnce}, nil
		}
		return n.client.TakeRate(ctx, on.rules.Name, limit, batches)
	}
}
