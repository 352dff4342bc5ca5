package node

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// A queue's limit of calls holds for the cluster: each instance asks Redis for permits as its lanes want them, and gives back
// what it does not use, or what others lack. Without such a limit nobody asks.

const (
	// askSoon and askLate bound how long an instance waits before it asks again while it has fewer permits than it wants: the
	// more often it asked in vain, the longer, unless it is the next one to get one. See permitsAgain for many instances.
	askSoon, askLate = 5 * time.Millisecond, 40 * time.Millisecond
	// askKept is how often one that has what it wants asks whether others lack some, and gives back what it does not use. While
	// others lack some it asks after askLate.
	askKept = 250 * time.Millisecond
	// askEach bounds how often all instances together ask for permits of a queue, but for those that are soon to get one; askMost how long
	// one waits for that.
	askEach, askMost = 400 * time.Microsecond, time.Second
	// ofLate is for how long it keeps permits that it does not use any more.
	ofLate = time.Second
	// idle is when there is no limit, or nothing wants a permit: the next lane that does, or a change of the limit, ends it.
	idle = time.Hour
)

// permits shares a queue's limit with other instances.
type permits struct {
	queue    *runner.Queue
	ask      func(context.Context, queue.PermitRequest) (queue.PermitGrant, error)
	failed   func(error)
	instance string

	most func() int // calls that the node could have at once

	number int64
	vain   time.Duration // how long it has waited before the last request
	peaks  [2]int        // the most that was wanted since at, and in the second before that
	at     time.Time
}

// kept is the most that was wanted of late: lanes that come and go find their permits there.
func (p *permits) kept(now int) int {
	if since := time.Since(p.at); since >= ofLate {
		p.peaks, p.at = [2]int{0, p.peaks[0]}, time.Now()
	}
	p.peaks[0] = max(p.peaks[0], now)
	return max(p.peaks[0], p.peaks[1])
}

// run asks until ctx ends.
func (p *permits) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wanting := p.queue.Wanting()
		if p.vain > 0 {
			wanting = nil // it was asked for these, in vain
		}
		select {
		case <-ctx.Done():
			return
		case <-wanting:
		case <-p.queue.Ended():
		case <-timer.C:
		}
		timer.Reset(p.once(ctx))
	}
}

// once asks for what is wanted now, and says when to ask again.
func (p *permits) once(ctx context.Context) (again time.Duration) {
	has := p.queue.Permits()
	if has.Limit == 0 {
		p.vain = 0
		return idle
	}
	wanted := min(has.Busy+has.Waiting, p.most())
	kept := p.kept(wanted)
	if keep := max(has.Busy, kept); keep < has.Has { // it gives back what it does not use
		p.queue.Permitted(keep, has.Limit)
		has = p.queue.Permits()
	}
	p.number++
	grant, err := p.ask(ctx, queue.PermitRequest{
		Instance: p.instance, Number: p.number, Limit: has.Limit, Has: has.Has, Wanted: max(wanted, has.Busy), Kept: kept})
	if err != nil {
		if ctx.Err() == nil {
			p.failed(err)
		}
		p.vain = askLate
		return askLate
	}
	p.queue.Permitted(grant.May, has.Limit)
	switch {
	case grant.May < has.Has: // others lack what it has: Redis is told once calls have ended
		p.vain = askLate
		if p.queue.Permits().Has <= grant.May {
			return 0
		}
	case kept == 0:
		p.vain = 0
		return idle
	case grant.May >= wanted:
		p.vain = 0
		if grant.Lack {
			return permitsAgain(grant, has.Limit)
		}
		return max(askKept, permitsAgain(grant, has.Limit))
	case grant.May > has.Has || grant.May == 0 && grant.Before == 0: // it gets more
		p.vain = askSoon
	default:
		p.vain = min(max(askSoon, 2*p.vain), permitsAgain(grant, has.Limit))
	}
	return p.vain
}

// permitsAgain is after how long an instance asks again at the latest that has not got all that it wants, or whose permits others
// want. One that has none asks twice before it is the next one, if those before it have whole turns; so however many wait, few ask.
func permitsAgain(grant queue.PermitGrant, limit int) time.Duration {
	late := time.Duration(grant.Askers) * askEach
	if grant.May == 0 && grant.Before > 0 {
		late = time.Duration(grant.Before) * queue.PermitTurn(limit) / time.Duration(2*limit)
	}
	return min(max(askLate, late), askMost)
}

// sharePermits shares the limits of this instance's queues with others, until ctx ends.
func (in *instance) sharePermits(ctx context.Context) {
	var group sync.WaitGroup
	for name, q := range in.queues {
		of, on := in.node.client.Permits(name), in.node.queues.handled[name]
		p := &permits{
			queue: q, instance: in.name,
			ask: func(ctx context.Context, r queue.PermitRequest) (queue.PermitGrant, error) {
				grant, err := of.Ask(ctx, r)
				in.leased(err)
				return grant, err
			},
			most:   func() int { return cmp.Or(on.concurrency(on.rulesNow()), in.node.cfg.Concurrency) },
			failed: func(err error) { in.ops.warn("ask for permits", nil, err) },
		}
		group.Go(func() { p.run(ctx) })
	}
	group.Wait()
}

// askGroups asks Redis what the limits of groups allow.
func (in *instance) askGroups(name string) runner.AskGroups {
	return func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
		r.Instance = in.name
		grants, err := in.node.client.AskGroups(in.io, name, r)
		in.leased(err)
		return grants, err
	}
}

// leased ends the instance if a limit was asked in vain because its lease is gone: others may have what it holds of the limits.
func (in *instance) leased(err error) {
	if errors.Is(err, lease.ErrGone) {
		in.keeper.Missing()
	}
}

// tendGroups has queues tell Redis of their groups what they could not tell before, until ctx ends.
func (in *instance) tendGroups(ctx context.Context) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			for _, q := range in.queues {
				q.TendGroups()
			}
		}
	}
}

// rate asks Redis for what the rate of a queue allows.
func (n *Node) rate(on *handled) runner.Rate {
	return func(ctx context.Context, batches []int) (queue.RateGrant, error) {
		limit := on.rulesNow().Limit
		if limit.Rate.N == 0 { // it was taken away meanwhile
			return queue.RateGrant{Batches: len(batches), Left: queue.RatesAtOnce}, nil
		}
		return n.client.TakeRate(ctx, on.rules.Name, limit, batches)
	}
}
