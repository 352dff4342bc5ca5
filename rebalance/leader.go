package rebalance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// term is the working state of a leader. It begins when the leader has applied
// everything its predecessors committed, and is dropped with the leadership.
type term struct {
	number    uint64 // Raft's
	joins     joinWindow
	laggards  laggards
	followers followerWatch
	planned   bool      // this leader has planned before
	lost      time.Time // when it last planned for shards that had lost their owner
	names     []string  // the nodes it last planned for
}

// leads reports whether this process's Raft server leads, and notes since when.
func (a *Agent) leads() bool {
	if a.server == nil || a.server.raft.State() != raft.Leader {
		a.term, a.lastTurn, a.pending = nil, time.Time{}, pending{}
		return false
	}
	if a.lastTurn.IsZero() {
		a.lastTurn = time.Now()
	}
	return true
}

// lead is a leader's turn: prepare, see that the leader is followed, renew the mark, change
// the voters by one step, plan. It runs in the agent's goroutine, never in a callback of
// Raft. It returns after how long the next turn is due at the latest.
func (a *Agent) lead(ctx context.Context, view View) (time.Duration, error) {
	if !view.Leased || a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return a.cfg.TTL, nil // plans nothing, and lets its mark run out
	}
	if err := a.prepare(ctx); err != nil {
		return a.cfg.TTL, err
	}
	if now := time.Now(); a.term.followers.lost(now, view.Peers, a.server.id) {
		return a.cfg.TTL, a.resign(now, "most nodes do not follow this leader: it gives up; look at addresses, firewalls and certificates")
	}
	renewed, err := a.cfg.Mark.Renew(ctx, a.raw, []byte(a.server.id))
	if err != nil {
		return a.cfg.TTL, fmt.Errorf("renew mark: %w", err)
	}
	if !renewed {
		return a.cfg.TTL, nil // the record has changed; the next look tells how
	}
	if err := a.pending.answered(ctx); err != nil {
		return a.cfg.TTL, fmt.Errorf("raft's answer: %w", err)
	}
	changed, err := a.changeVoters(ctx, view)
	if err != nil {
		return a.cfg.TTL, err
	}
	again, err := a.rebalance(ctx, view)
	if changed {
		again = 0 // there may be more to change
	}
	return again, err
}

// prepare makes a new leader ready: it waits until everything that was committed before is
// applied, and writes the first entry of a new record: its id, and the assignment to start
// from, which is the last one this process applied, else what the claims say.
func (a *Agent) prepare(ctx context.Context) error {
	number, machine := a.server.raft.CurrentTerm(), a.server.machine
	if a.term != nil && a.term.number == number {
		return nil
	}
	a.term = nil
	if err := a.pending.answered(ctx); err != nil {
		return fmt.Errorf("raft's answer: %w", err)
	}
	if err := a.pending.await(ctx, a.server.raft.Barrier(entryTimeout(ctx))); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if err := machine.unread(); err != nil {
		return err // its predecessors have written what it cannot read
	}
	if err := a.server.usualTimeouts(); err != nil {
		return err
	}
	if machine.state.Load().record == 0 {
		seed := a.latest.Load()
		if len(seed.Queues) == 0 {
			var err error
			if seed, err = a.cfg.Source.Claims(ctx); err != nil {
				return fmt.Errorf("read claims: %w", err)
			}
		}
		if err := a.commit(ctx, recordEntry(recordOf(a.server.id), seed)); err != nil {
			return err
		}
	}
	ttl := a.cfg.TTL
	a.term = &term{
		number:    number,
		laggards:  laggards{patience: 2 * ttl},
		followers: followerWatch{patience: 4 * ttl},
	}
	a.log.Info("leading", "server", a.server.id, "generation", machine.state.Load().assignment.Generation)
	return nil
}

// commit commits an entry, if it is one that the state machine takes.
func (a *Agent) commit(ctx context.Context, data []byte) error {
	if _, err := a.server.machine.next(data, math.MaxUint64); err != nil {
		return fmt.Errorf("entry that no node could read: %w", err)
	}
	f := a.server.raft.Apply(data, entryTimeout(ctx))
	if err := a.pending.await(ctx, f); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err, ok := f.Response().(error); ok {
		return err
	}
	// The others learn that an entry is committed with the next message, up to two
	// commitTimeouts later: too long for a shard that was released for one of them. One
	// more entry is that message. The turn does not wait for it.
	a.server.raft.Barrier(entryTimeout(ctx))
	return nil
}

// changeVoters makes one step towards the configuration the view asks for. The
// record names the union of old and new voters before the step and the result after
// it, so that it never misses a voter that could elect a leader; and meanwhile that a
// step is under way, so that no process takes the voters of one side for a group.
func (a *Agent) changeVoters(ctx context.Context, view View) (changed bool, err error) {
	servers, err := a.server.servers()
	if err != nil {
		return false, err
	}
	voters := voterIDs(servers)
	current := a.server.machine.state.Load().assignment.Generation
	c := nextChange(servers, view, a.server.id, current)
	after := c.after(voters)
	if err := a.setVoters(ctx, voters, after); err != nil {
		return false, err
	}
	if c.kind == noChange {
		return false, nil
	}
	if err := a.pending.await(ctx, a.server.change(c, entryTimeout(ctx))); err != nil {
		return false, fmt.Errorf("change configuration for %s: %w", c.server, err)
	}
	a.log.Info("raft configuration changed", "server", c.server, "voters", len(after))
	return true, a.setVoters(ctx, after, after)
}

// rebalance plans from the view and commits the plan if it changes anything.
func (a *Agent) rebalance(ctx context.Context, view View) (time.Duration, error) {
	if !a.stable.stable {
		return max(a.stable.remaining(), time.Millisecond), nil
	}
	now, names, state := time.Now(), view.owners(), a.server.machine.state.Load()
	current := state.assignment
	before := a.lastTurn
	a.lastTurn = now // it could plan: whatever it waits for from here on, no other leader would be quicker
	if now.Before(a.holdUntil) && !containsAll(names, current.Nodes) {
		return a.holdUntil.Sub(now), nil
	}
	t := a.term
	admitted := t.joins.admit(now, t.joins.eligible(view, current.Nodes), current.Nodes, view.followers(state.record))
	if !t.planned && !current.Moved() && t.joins.open(now) {
		return stabilise / 4, nil
	}
	t.planned = true
	if !view.anyTakes(admitted) {
		admitted = t.joins.admitAll(names) // all that were planned for are leaving: their shards would have no owner
	}
	next := plan.Compute(current, t.nodes(now, view, admitted, current.Generation), view.Queues)
	if wait := t.postpones(now, next, admitted, maxWindows*stabilise); wait > 0 {
		return wait, nil
	}
	if !next.Next.SamePlaces(current) {
		if err := a.commit(ctx, planEntry(current, next.Next)); err != nil {
			a.lastTurn = before // it could plan, but Raft does not take the plan
			return a.cfg.TTL, fmt.Errorf("commit assignment: %w", err)
		}
		agreed := a.server.machine.state.Load().assignment
		a.log.Info("assignment changed", "generation", agreed.Generation, "moves", len(current.Diff(agreed)))
	}
	if due := t.joins.due(); !due.IsZero() {
		return max(due.Sub(now), time.Millisecond), nil
	}
	return a.cfg.TTL, nil
}

// postpones returns how long a plan has to wait that only makes totals more even: a node that
// has left may be back soon, and what moved meanwhile would move back. A node that joins ends
// the wait.
func (t *term) postpones(now time.Time, next plan.Result, admitted []string, patience time.Duration) time.Duration {
	if next.OwnerLost {
		t.lost = now
	} else if !containsAll(t.names, admitted) {
		t.lost = time.Time{}
	}
	t.names = admitted
	if !next.OnlyEvens() {
		return 0
	}
	return t.lost.Add(patience).Sub(now)
}

// nodes returns what a plan may place shards on.
func (t *term) nodes(now time.Time, view View, admitted []string, current plan.Generation) []plan.Node {
	laggards, left := t.laggards.observe(now, view.Peers, current), setOf(admitted)
	var nodes []plan.Node
	for _, p := range view.Peers {
		if p.mayOwn() && left[p.Name] {
			delete(left, p.Name) // names are unique among those that may own
			p.Laggard, p.Applied = laggards[p.Boot], p.RaftInfo.Applied
			nodes = append(nodes, p.Node)
		}
	}
	return nodes
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

func containsAll(names, wanted []string) bool {
	set := setOf(names)
	return !slices.ContainsFunc(wanted, func(name string) bool { return !set[name] })
}

// A leader without Redis keeps Raft's leadership, and no process plans: no join, no drain, and
// the dead keep their shards. So a leader that has not planned for 3/4 ttl hands over to a
// process that could. If no other one could either, nothing would be gained, and it stays.

// untilYield is how long a leader may still be without a plan.
func (a *Agent) untilYield() time.Duration { return time.Until(a.lastTurn.Add(a.cfg.TTL * 3 / 4)) }

// yield hands leadership over if this leader has been unable to plan for too long and
// another voter says that it can. It returns after how long to look again.
func (a *Agent) yield(ctx context.Context) time.Duration {
	if left := a.untilYield(); left > 0 {
		return left
	}
	servers, err := a.server.servers()
	if err != nil {
		return a.cfg.TTL
	}
	successors := successors(servers, a.cfg.Source.Gossiped(), a.server.id)
	rand.Shuffle(len(successors), func(i, j int) { successors[i], successors[j] = successors[j], successors[i] })
	for _, s := range successors {
		a.log.Warn("this leader cannot plan: it hands leadership over", "to", string(s.ID), "since", time.Since(a.lastTurn).Round(time.Millisecond))
		ctx, cancel := context.WithTimeout(ctx, a.server.election)
		err := transfer(ctx, func() raft.Future { return a.server.raft.LeadershipTransferToServer(s.ID, s.Address) })
		cancel()
		if err == nil {
			return a.cfg.TTL
		}
		a.log.Warn("leadership not handed over", "to", string(s.ID), "err", err)
	}
	return a.cfg.TTL
}

// successors are the voters other than self whose process says that it could plan.
func successors(servers []raft.Server, peers []Peer, self string) (list []raft.Server) {
	can := map[string]bool{}
	for _, p := range peers {
		can[p.RaftInfo.Server] = p.RaftInfo.CanPlan && !p.Draining
	}
	for _, s := range servers {
		if s.Suffrage == raft.Voter && string(s.ID) != self && can[string(s.ID)] {
			list = append(list, s)
		}
	}
	return list
}

// resign gives the group up: its voter is gone with its server, so others elect a leader, or
// found a new group as soon as the mark has run out. This process lets them.
func (a *Agent) resign(now time.Time, why string) error {
	a.log.Warn(why, "server", a.server.id)
	a.standBack = now.Add(8 * a.cfg.TTL)
	return a.start(a.newServerID(recordOf(a.server.id)), nil)
}

// Raft answers a leader when what it asked for is committed, or its leadership is over. While
// heartbeats pass and entries do not, that is never, and no plan is made. So a turn, which has
// a deadline, waits for Raft until then and no longer, asks for nothing else before there is an
// answer, and a leader that has waited for stuckTTLs gives the group up.

// stuckTTLs is for how many lease ttls a leader may get nothing committed.
const stuckTTLs = 2

var errOpen = errors.New("raft has not committed it within the turn")

// pending is what a leader has asked of Raft.
type pending struct {
	answer     chan error // of the request that has no answer yet; nil = none
	began      time.Time  // when that was asked for
	stuckSince time.Time  // since when nothing has been committed that was asked for; zero = all was
}

// await waits for a request, but no longer than the turn lasts. Then the request stays open: it may
// be committed later.
func (p *pending) await(ctx context.Context, request raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- request.Error() }() // ends with the leadership at the latest, if the server lives so long
	p.answer, p.began = answer, time.Now()
	return p.answered(ctx)
}

// answered waits for the request that is open, if there is one, until the turn's time is up. That
// this process is to end does not cut it short: a server that is shut down at the very moment in
// which it commits never answers.
func (p *pending) answered(ctx context.Context) error {
	if p.answer == nil {
		return nil
	}
	deadline, _ := ctx.Deadline()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	err := errOpen
	select {
	case err = <-p.answer:
		p.answer = nil
	case <-timer.C:
	}
	switch {
	case err == nil:
		p.stuckSince = time.Time{}
	case p.stuckSince.IsZero():
		p.stuckSince = p.began
	}
	return err
}

// stuckFor reports whether nothing was committed for the patience.
func (p *pending) stuckFor(now time.Time, patience time.Duration) bool {
	return !p.stuckSince.IsZero() && now.Sub(p.stuckSince) >= patience
}

// entryTimeout is how long Raft may take to let a request into its log: what is left of the turn.
func entryTimeout(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return min(applyTimeout, max(time.Until(deadline), time.Millisecond)) // none at all would be for ever
}
