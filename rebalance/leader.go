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

// isLeading reports whether this process's Raft server leads. It drops the leader's state if it does not, and records when
// leadership began.
func (a *Agent) isLeading() bool {
	if a.server == nil || a.server.raft.State() != raft.Leader {
		a.term, a.lastTurn, a.pending = nil, time.Time{}, pending{}
		return false
	}
	if a.lastTurn.IsZero() {
		a.lastTurn = time.Now()
	}
	return true
}

// takeLeaderTurn prepares the term, checks that other processes follow this leader, renews the mark, changes the voters by a
// step, and plans. It runs in the agent's goroutine and never in a callback of Raft. It returns the time until the next turn
// must begin.
func (a *Agent) takeLeaderTurn(ctx context.Context, view View) (time.Duration, error) {
	if !view.Leased || a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return a.cfg.TTL, nil // it plans nothing and lets its mark expire
	}
	if err := a.prepareTerm(ctx); err != nil {
		return a.cfg.TTL, err
	}
	if now := time.Now(); a.term.followers.hasLostMajority(now, view.Peers, a.server.id) {
		return a.cfg.TTL, a.giveUpGroup(now, "most nodes do not follow this leader, so it gives up leadership; check addresses, firewalls and certificates")
	}
	renewed, err := a.cfg.Mark.Renew(ctx, a.raw, []byte(a.server.id))
	if err != nil {
		return a.cfg.TTL, fmt.Errorf("renew mark: %w", err)
	}
	if !renewed {
		return a.cfg.TTL, nil // the record has changed; the next turn reads it
	}
	if err := a.pending.awaitAnswer(ctx); err != nil {
		return a.cfg.TTL, fmt.Errorf("raft's answer: %w", err)
	}
	changed, err := a.changeVoters(ctx, view)
	if err != nil {
		return a.cfg.TTL, err
	}
	again, err := a.planAndCommit(ctx, view)
	if changed {
		again = 0 // another step may follow
	}
	return again, err
}

// prepareTerm prepares a new leader. It waits until this process has applied everything that earlier leaders committed. In the
// log of a new record it writes the first entry, which holds the record's id and the assignment to start from. That is the last
// assignment that this process applied, or else the assignment that the claims in Redis show.
func (a *Agent) prepareTerm(ctx context.Context) error {
	number, machine := a.server.raft.CurrentTerm(), a.server.machine
	if a.term != nil && a.term.number == number {
		return nil
	}
	a.term = nil
	if err := a.pending.awaitAnswer(ctx); err != nil {
		return fmt.Errorf("raft's answer: %w", err)
	}
	if err := a.pending.awaitRequest(ctx, a.server.raft.Barrier(entryTimeout(ctx))); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if err := machine.readError(); err != nil {
		return err // an earlier leader wrote an entry that this release cannot read
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
		if err := a.commitEntry(ctx, recordEntry(recordOf(a.server.id), seed)); err != nil {
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

// commitEntry commits an entry. It returns an error if the state machine could not apply it.
func (a *Agent) commitEntry(ctx context.Context, data []byte) error {
	if _, err := a.server.machine.nextState(data, math.MaxUint64); err != nil {
		return fmt.Errorf("no node could read this entry: %w", err)
	}
	f := a.server.raft.Apply(data, entryTimeout(ctx))
	if err := a.pending.awaitRequest(ctx, f); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err, ok := f.Response().(error); ok {
		return err
	}
	// Followers learn with the next message that the entry is committed. It may come two commitTimeouts later, and a released
	// shard would stand still until then. A second entry carries the news at once. The turn does not wait for that entry.
	a.server.raft.Barrier(entryTimeout(ctx))
	return nil
}

// changeVoters makes one step towards the voters that the view asks for. Before the step the record names the union of old and
// new voters, so that it includes every voter that could elect a leader. During the step it also names the smaller side, so
// that no process counts the voters of one side only. After the step it names the new voters.
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
	if err := a.pending.awaitRequest(ctx, a.server.changeConfiguration(c, entryTimeout(ctx))); err != nil {
		return false, fmt.Errorf("change configuration for %s: %w", c.server, err)
	}
	a.log.Info("raft configuration changed", "server", c.server, "voters", len(after))
	return true, a.setVoters(ctx, after, after)
}

// planAndCommit plans from the view and commits the plan if it differs from the current assignment. It returns the time until
// the next plan is due.
func (a *Agent) planAndCommit(ctx context.Context, view View) (time.Duration, error) {
	if !a.stable.stable {
		return max(a.stable.remaining(), time.Millisecond), nil
	}
	now, names, state := time.Now(), view.ownerNames(), a.server.machine.state.Load()
	current := state.assignment
	before := a.lastTurn
	a.lastTurn = now // this leader can plan; another leader would not be faster
	if now.Before(a.holdUntil) && !containsAll(names, current.Nodes) {
		return a.holdUntil.Sub(now), nil
	}
	t := a.term
	admitted := t.joins.admit(now, t.joins.eligible(view, current.Nodes), current.Nodes, view.followerNames(state.record))
	if !t.planned && !current.Moved() && t.joins.isOpen(now) {
		return stabilise / 4, nil
	}
	t.planned = true
	if !view.anyMayTake(admitted) {
		admitted = t.joins.admitAll(names) // all admitted nodes are leaving, and their shards would have no owner
	}
	next := plan.Compute(current, t.nodesToPlan(now, view, admitted, current.Generation), view.Queues)
	if wait := t.planDelay(now, next, admitted, maxWindows*stabilise); wait > 0 {
		return wait, nil
	}
	if !next.Next.SamePlaces(current) {
		if err := a.commitEntry(ctx, planEntry(current, next.Next)); err != nil {
			a.lastTurn = before // a plan without commit does not count as a turn
			return a.cfg.TTL, fmt.Errorf("commit assignment: %w", err)
		}
		agreed := a.server.machine.state.Load().assignment
		a.log.Info("assignment changed", "generation", agreed.Generation, "moves", len(current.Diff(agreed)))
	}
	if due := t.joins.nextDue(); !due.IsZero() {
		return max(due.Sub(now), time.Millisecond), nil
	}
	return a.cfg.TTL, nil
}

// planDelay returns how long a plan that only evens out the totals must wait. A node that has left may come back soon, and the
// shards that moved meanwhile would move back. A node that joins ends the wait.
func (t *term) planDelay(now time.Time, next plan.Result, admitted []string, patience time.Duration) time.Duration {
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

// nodesToPlan returns the nodes that a plan may place shards on.
func (t *term) nodesToPlan(now time.Time, view View, admitted []string, current plan.Generation) []plan.Node {
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

// A leader that loses Redis keeps Raft's leadership, and then no process plans. Nodes cannot join or drain, and dead nodes keep
// their shards. So a leader that could not plan for 3/4 ttl transfers leadership to a process that can. If no other process
// can plan either, it stays leader.

// untilYield returns how long a leader that cannot plan may remain leader.
func (a *Agent) untilYield() time.Duration { return time.Until(a.lastTurn.Add(a.cfg.TTL * 3 / 4)) }

// yieldLeadership transfers leadership if this leader could not plan for too long and another voter reports that it can plan.
// It returns the time until it should be called again.
func (a *Agent) yieldLeadership(ctx context.Context) time.Duration {
	if left := a.untilYield(); left > 0 {
		return left
	}
	servers, err := a.server.servers()
	if err != nil {
		return a.cfg.TTL
	}
	successors := findSuccessors(servers, a.cfg.Source.Gossiped(), a.server.id)
	rand.Shuffle(len(successors), func(i, j int) { successors[i], successors[j] = successors[j], successors[i] })
	for _, s := range successors {
		a.log.Warn("this leader cannot plan, so it transfers leadership", "to", string(s.ID), "since", time.Since(a.lastTurn).Round(time.Millisecond))
		ctx, cancel := context.WithTimeout(ctx, a.server.election)
		err := boundTransfer(ctx, func() raft.Future { return a.server.raft.LeadershipTransferToServer(s.ID, s.Address) })
		cancel()
		if err == nil {
			return a.cfg.TTL
		}
		a.log.Warn("leadership was not transferred", "to", string(s.ID), "err", err)
	}
	return a.cfg.TTL
}

// findSuccessors returns the voters other than self whose process reports that it can plan.
func findSuccessors(servers []raft.Server, peers []Peer, self string) (list []raft.Server) {
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

// giveUpGroup drops this process's server, and with it its vote. The others elect a leader, or found a new group once the mark
// has expired. This process stands back for 8 ttl to let them.
func (a *Agent) giveUpGroup(now time.Time, why string) error {
	a.log.Warn(why, "server", a.server.id)
	a.standBack = now.Add(8 * a.cfg.TTL)
	return a.startServer(a.newServerID(recordOf(a.server.id)), nil)
}

// Raft answers a leader's request when the entry is committed or the leadership ends. If heartbeats pass and entries do not,
// neither happens, and no plan is committed. So a turn waits for Raft only until its own deadline. The leader waits for the
// answer before it sends the next request, except a barrier behind an entry. After stuckTTLs without an answer it gives up the group.

// stuckTTLs is the number of lease ttls without a committed entry before a leader gives up the group.
const stuckTTLs = 2

var errNotCommitted = errors.New("raft has not committed the entry within the turn")

// pending is a leader's open request to Raft.
type pending struct {
	answer     chan error // of the open request; nil = no request is open
	began      time.Time  // when the open request was sent
	stuckSince time.Time  // when the first request since the last success was sent; zero = the last request succeeded
}

// awaitRequest waits for the answer to a request until the turn's deadline. After that the request stays open, because Raft may
// still commit it.
func (p *pending) awaitRequest(ctx context.Context, request raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- request.Error() }() // ends with the leadership at the latest
	p.answer, p.began = answer, time.Now()
	return p.awaitAnswer(ctx)
}

// awaitAnswer waits for the open request, if any, until the turn's deadline. The cancel of ctx does not end the
// wait, because a server that shuts down while it commits never answers.
func (p *pending) awaitAnswer(ctx context.Context) error {
	if p.answer == nil {
		return nil
	}
	deadline, _ := ctx.Deadline()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	err := errNotCommitted
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

// isStuckFor reports whether requests to Raft have failed or stayed open for the given time.
func (p *pending) isStuckFor(now time.Time, patience time.Duration) bool {
	return !p.stuckSince.IsZero() && now.Sub(p.stuckSince) >= patience
}

// entryTimeout returns how long Raft may take to accept an entry. It is the rest of the turn, at most applyTimeout.
func entryTimeout(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return min(applyTimeout, max(time.Until(deadline), time.Millisecond)) // 0 would mean no timeout
}
