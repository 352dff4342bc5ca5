package runner

import (
	"context"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// gates are what Redis keeps of a queue's limits for one process, by permit.lua, rate.lua and group.lua; beside others, which hold
// some of each. Every request may be lost, late, doubled or slow. They also judge: no call begins that was not let go.
type gates struct {
	p       *process
	changed time.Time      // when rules were, last
	since   limitsSince    // guarded by mu
	rate    oneRate        // guarded by its own mu
	groups  *groupsOfOne   // guarded by its own mu
	asks    map[string]int // requests that are on their way, by what they ask for; guarded by mu

	mu     sync.Mutex
	number int64 // of the last request for permits that came; guarded by mu
	held   int   // permits; guarded by mu

	letGo    int            // ids that an answer about the rate has let go; guarded by mu
	letGoAt  time.Time      // at this instant, and no later; guarded by mu
	granted  map[string]int // ids of groups that answers have let go and that have not begun; guarded by mu
	most     map[string]int // ids of a group that may be in calls by the last answer: one that ends gives its place to another; guarded by mu
	calls    int            // that run with a permit; guarded by mu
	busy     map[string]int // ids in calls that were granted, by group; guarded by mu
	requests int            // in all; guarded by mu
}

// limitsSince is since when there are limits. What was popped before may begin as if there were none.
type limitsSince struct{ permits, rate, groups time.Time }

func newGates(p *process) *gates {
	return &gates{p: p, groups: newGroupsOfOne(nil, nil), granted: map[string]int{}, most: map[string]int{}, busy: map[string]int{}, asks: map[string]int{}}
}

// change puts other rules in force.
func (g *gates) change(to Rules, concurrency int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, was := time.Now(), g.p.queue.rules()
	g.changed = now
	if was.Limit.Concurrency == 0 {
		g.since.permits = now
	}
	if was.Limit.Rate.N == 0 {
		g.since.rate = now
	}
	if was.Groups.By != to.Groups.By || was.Groups.Concurrency == 0 || was.Groups.Rate != to.Groups.Rate {
		g.since.groups = now
	}
	g.p.queue.Change(to, concurrency)
}

// ask carries a request to Redis, and its answer back, or not. Of what a queue asks for, one request is on its way at a time.
func (g *gates) ask(what string, request any, once func() error) error {
	g.mu.Lock()
	g.requests++
	if g.asks[what]++; g.asks[what] > 1 {
		g.p.h.Fault("two requests for %s are on their way", what)
	}
	g.mu.Unlock()
	way := g.p.h.fate()
	g.p.h.Trace("asks for %s: %+v, %s", what, request, way.name)
	time.Sleep(way.before)
	err := g.p.h.carry(way, once)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asks[what]--
	return err
}

// sharePermits asks for permits as a node does, until the process stops.
func (p *process) sharePermits() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.stopping:
			return
		case <-limitsOf(p.queue).PermitWanted():
		case <-timer.C:
		}
		timer.Reset(p.askPermits())
	}
}

// askPermits asks for permits once, and says when to ask again.
func (p *process) askPermits() time.Duration {
	g := p.gates
	has := limitsOf(p.queue).Permits()
	if has.Limit == 0 {
		return time.Hour
	}
	if has.Busy < has.Has && p.h.IntN(2) == 0 { // it gives back what it does not use
		limitsOf(p.queue).SetPermits(has.Busy, has.Limit)
		has = limitsOf(p.queue).Permits()
	}
	p.asked++
	number, wanted, may := p.asked, has.Busy+has.Waiting, 0
	err := g.ask("permits", has, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if number > g.number {
			may = min(wanted, max(0, has.Limit-int(p.h.others.Load())))
			g.number, g.held = number, max(has.Has, may)
		} else {
			may = g.held
		}
		return nil
	})
	if err != nil {
		return 40 * time.Millisecond
	}
	limitsOf(p.queue).SetPermits(may, has.Limit)
	switch {
	case may < wanted:
		return 5 * time.Millisecond
	case may == 0:
		return time.Hour
	}
	return 250 * time.Millisecond
}

// askRate is the queue's Rate.
func (p *process) askRate(_ context.Context, batches []int) (protocol.RateGrant, error) {
	g, limit := p.gates, p.queue.rules().Limit
	if limit.Rate.N == 0 { // it was taken away meanwhile
		return protocol.RateGrant{Batches: len(batches), Left: protocol.RatesAtOnce}, nil
	}
	var grant protocol.RateGrant // a request that comes late writes it after this one has returned
	err := g.ask("rate", batches, func() error {
		g.rate.mu.Lock()
		defer g.rate.mu.Unlock()
		g.rate.step, g.rate.burst = limit.Rate.Per/time.Duration(limit.Rate.N), limit.Burst
		grant = g.rate.take(batches)
		return nil
	})
	if err != nil {
		return protocol.RateGrant{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !now.Equal(g.letGoAt) {
		g.letGo, g.letGoAt = 0, now
	}
	for _, n := range batches[:grant.Batches] {
		g.letGo += n
	}
	return grant, nil
}

// askGroups is the queue's AskGroups.
func (p *process) askGroups(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
	g := p.gates
	others := int(p.h.others.Load())
	var grants []protocol.GroupGrant // a request that comes late writes it after this one has returned
	err := g.ask("groups", r, func() (err error) {
		g.groups.mu.Lock()
		defer g.groups.mu.Unlock()
		grants, err = g.groups.answer(r, others)
		return err
	})
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, grant := range grants {
		g.granted[r.Groups[i].Group] += grant.Back + grant.New
		g.most[r.Groups[i].Group] = r.Groups[i].Busy + grant.Back + grant.New
	}
	return grants, nil
}

// tend tends groups as a node does, until the process stops: lanes that work still may ask, then.
func (p *process) tend() {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-p.stopping:
			return
		case <-every.C:
			limitsOf(p.queue).ReportGroups()
		}
	}
}

// begins judges whether the limits let a call begin. ended is to be called at its end.
func (g *gates) begins(b *lowkiq.Batch) (ended func()) {
	came := g.p.h.shardOf(b.Shard).cameAt(b.Fence, b.Flight)
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.p.queue.rules()
	if came.IsZero() || g.changed.Equal(time.Now()) {
		return func() {}
	}
	permit, groups := in.Limit.Concurrency > 0 && came.After(g.since.permits), []string(nil)
	if permit {
		if g.calls++; g.calls > g.held {
			g.p.h.Fault("flight %d of %s: %d calls at once, and %d permits", b.Flight, b.Shard, g.calls, g.held)
		}
	}
	if in.Limit.Rate.N > 0 && came.After(g.since.rate) {
		if g.letGo -= len(b.Jobs); g.letGo < 0 || !g.letGoAt.Equal(time.Now()) {
			g.p.h.Fault("flight %d of %s: %d ids begin that the rate has not let go", b.Flight, b.Shard, len(b.Jobs))
		}
	}
	if came.After(g.since.groups) {
		groups = g.group(in.Groups, b)
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if permit {
			g.calls--
		}
		for _, group := range groups {
			g.busy[group]--
		}
	}
}

// group judges the same by groups. It returns those of the batch. mu is held.
func (g *gates) group(by rules.Groups, b *lowkiq.Batch) (groups []string) {
	g.groups.mu.Lock()
	defer g.groups.mu.Unlock()
	for i := range b.Jobs {
		group := by.Of(b.Jobs[i].ID)
		if group == "" {
			continue
		}
		groups = append(groups, group)
		g.busy[group]++
		if by.Concurrency > 0 && g.busy[group] > g.groups.held[group] {
			g.p.h.Fault("%s: %d ids of group %q in calls, and redis knows of %d", b.Shard, g.busy[group], group, g.groups.held[group])
		}
		switch {
		case g.granted[group] > 0:
			g.granted[group]--
		default:
			g.p.h.Fault("%s begins, and its group has not let it go", b.Jobs[i].ID)
		}
		if by.Concurrency > 0 && g.busy[group] > g.most[group] {
			g.p.h.Fault("%s begins with %d ids of its group in calls, of %d that may be", b.Jobs[i].ID, g.busy[group], g.most[group])
		}
	}
	return groups
}

// told looks whether Redis knows at the end that no call runs, and which groups handlers hold back.
func (g *gates) told() {
	g.groups.mu.Lock()
	defer g.groups.mu.Unlock()
	if len(g.groups.held) > 0 {
		g.p.h.Fault("redis takes ids of groups to be in calls at the end: %v", g.groups.held)
	}
	for group, until := range g.p.h.stops {
		if g.groups.stops[group].Before(until) {
			g.p.h.Fault("a handler holds %s back until %s, and redis was told %s", group, until, g.groups.stops[group])
		}
	}
}
