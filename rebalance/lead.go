package rebalance

import (
	"context"
	"fmt"
	"math"
	"time"
)

// term is the working state of a leader. It begins when the leader has applied
// everything its predecessors committed, and is dropped with the leadership.
type term struct {
	number   uint64
	lobby    lobby
	lag      lag
	audience audience
	// planned: this leader has planned before.
	planned bool
	left    time.Time // when it last planned for shards whose owner had left
	known   []string  // the nodes it last planned for
}

// lead is a leader's turn: prepare, see that it is heard, show the mark, change the configuration by one
// step, plan. It runs in the agent's goroutine, never in a callback of Raft. It
// returns after how long it wants the next turn at the latest.
func (a *Agent) lead(ctx context.Context, view View) (time.Duration, error) {
	if !view.Leased || a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return a.cfg.TTL, nil // plans nothing, and lets its mark run out
	}
	if err := a.gain(ctx); err != nil {
		return a.cfg.TTL, err
	}
	if now := time.Now(); a.term.audience.lost(now, view.Peers, a.server.id) {
		return a.cfg.TTL, a.abdicate(now, "most nodes do not hear this leader: it gives up; look at addresses, firewalls and certificates")
	}
	renewed, err := a.cfg.Mark.Renew(ctx, a.raw, []byte(a.server.id))
	if err != nil {
		return a.cfg.TTL, fmt.Errorf("renew mark: %w", err)
	}
	if !renewed {
		return a.cfg.TTL, nil // the record has changed; the next look tells how
	}
	if err := a.asked.answered(ctx); err != nil {
		return a.cfg.TTL, fmt.Errorf("raft's answer: %w", err)
	}
	changed, err := a.reconfigure(ctx, view)
	if err != nil {
		return a.cfg.TTL, err
	}
	again, err := a.rebalance(ctx, view)
	if changed {
		again = 0 // there may be more to change
	}
	return again, err
}

// gain makes a new leader ready: it waits for what was committed before, writes the
// record id into a new log, and seeds a new record's map from what is.
func (a *Agent) gain(ctx context.Context) error {
	number := a.server.raft.CurrentTerm()
	if a.term != nil && a.term.number == number {
		return nil
	}
	a.term = nil
	if err := a.barrier(ctx); err != nil {
		return err
	}
	if err := a.server.machine.unread(); err != nil {
		return err // its predecessors have written what it cannot read
	}
	if err := a.server.calm(); err != nil {
		return err
	}
	if a.server.machine.state.Load().record == 0 {
		if err := a.begin(ctx); err != nil {
			return err
		}
	}
	ttl := a.cfg.TTL
	a.term = &term{
		number:   number,
		lobby:    lobby{settle: a.cfg.Settle},
		lag:      lag{patience: 2 * ttl},
		audience: audience{patience: 4 * ttl},
	}
	a.log.Info("leading", "server", a.server.id, "generation", a.server.machine.state.Load().assignment.Generation)
	return nil
}

// begin writes the first entry of a new record: its id, and the assignment to start
// from: the last one this process applied, else what the claims say.
func (a *Agent) begin(ctx context.Context) error {
	seed := a.latest.Load()
	if len(seed.Queues) == 0 {
		claims, err := a.cfg.Source.Claims(ctx)
		if err != nil {
			return fmt.Errorf("read claims: %w", err)
		}
		seed = claims
	}
	return a.apply(ctx, recordEntry(recordOf(a.server.id), seed))
}

// apply commits an entry, if it is one that the state machine takes.
func (a *Agent) apply(ctx context.Context, data []byte) error {
	if _, err := a.server.machine.next(data, math.MaxUint64); err != nil {
		return fmt.Errorf("entry that nobody could read: %w", err)
	}
	f := a.server.raft.Apply(data, entryTimeout(ctx))
	if err := a.asked.await(ctx, f); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err, ok := f.Response().(error); ok {
		return err
	}
	// The others learn that an entry is committed with the next message, up to two
	// commitTimeouts later: too long for a shard that was released for one of them. One
	// more entry is that message. Nobody waits for it.
	a.server.raft.Barrier(entryTimeout(ctx))
	return nil
}

// reconfigure makes one step towards the configuration the view asks for. The
// record names the union of old and new voters before the step and the result after
// it, so that it never misses a voter that could elect a leader; and meanwhile that a
// step is under way, so that nobody takes the voters of one side for a group.
func (a *Agent) reconfigure(ctx context.Context, view View) (changed bool, err error) {
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
	if err := a.change(ctx, c); err != nil {
		return false, fmt.Errorf("change configuration for %s: %w", c.server, err)
	}
	a.log.Info("raft configuration changed", "server", c.server, "voters", len(after))
	return true, a.setVoters(ctx, after, after)
}

// rebalance plans from the view and commits the plan if it changes anything.
func (a *Agent) rebalance(ctx context.Context, view View) (time.Duration, error) {
	now := time.Now()
	names := view.names()
	current := a.server.machine.state.Load()
	if !a.steady.sure {
		return max(a.steady.left(), time.Millisecond), nil
	}
	was := a.planned
	a.planned = now // it could: whatever it waits for from here on, no other leader would be quicker
	if now.Before(a.hold) && !containsAll(names, current.assignment.Nodes) {
		return a.hold.Sub(now), nil
	}
	admitted := a.term.lobby.admit(now, a.term.lobby.worthy(view, current.assignment.Nodes), current.assignment.Nodes, view.hears(current.record))
	if !a.term.planned && !current.planned() && a.term.lobby.gathering(now) {
		return a.cfg.Settle / 4, nil
	}
	a.term.planned = true
	if !view.anyTakes(admitted) {
		admitted = a.term.lobby.open(names) // all that were in are leaving: better unsettled than unowned
	}
	nodes, applied := a.nodes(now, view, admitted, current.assignment.Generation)
	planned := Plan(current.acknowledged(applied), nodes, view.Queues)
	if wait := a.term.calm(now, planned, admitted, maxSettles*a.cfg.Settle); wait > 0 {
		return wait, nil
	}
	if !planned.Next.SamePlaces(current.assignment) {
		if err := a.apply(ctx, planEntry(current.assignment, planned.Next)); err != nil {
			a.planned = was // but Raft does not take it
			return a.cfg.TTL, fmt.Errorf("commit assignment: %w", err)
		}
		next := a.server.machine.state.Load().assignment
		a.log.Info("assignment changed", "generation", next.Generation, "moves", len(current.assignment.Diff(next)))
	}
	if due := a.term.lobby.due(); !due.IsZero() {
		return max(due.Sub(now), time.Millisecond), nil
	}
	return a.cfg.TTL, nil
}

// calm returns how long a plan has to wait that only makes totals more even: who has left
// may be back soon, and what moved meanwhile would move back. A node that joins ends the wait.
func (t *term) calm(now time.Time, planned Planned, admitted []string, patience time.Duration) time.Duration {
	if planned.Left {
		t.left = now
	} else if !containsAll(t.known, admitted) {
		t.left = time.Time{}
	}
	t.known = admitted
	if !planned.evens() {
		return 0
	}
	return t.left.Add(patience).Sub(now)
}

// nodes returns what Plan may place shards on, and what the deaf among them have
// applied.
func (a *Agent) nodes(now time.Time, view View, admitted []string, current Generation) ([]Node, map[string]Generation) {
	deaf := a.term.lag.deaf(now, view.Peers, current)
	in := make(map[string]bool, len(admitted))
	for _, name := range admitted {
		in[name] = true
	}
	var nodes []Node
	var applied map[string]Generation
	for _, p := range view.Peers {
		if !p.mayOwn() || !in[p.Name] {
			continue
		}
		delete(in, p.Name) // names are unique among those that may own
		n := p.Node
		if n.Deaf = deaf[p.Boot]; n.Deaf {
			if applied == nil {
				applied = map[string]Generation{}
			}
			applied[p.Name] = p.Seat.Applied
		}
		nodes = append(nodes, n)
	}
	return nodes, applied
}

func containsAll(names, wanted []string) bool {
	has := make(map[string]bool, len(names))
	for _, name := range names {
		has[name] = true
	}
	for _, name := range wanted {
		if !has[name] {
			return false
		}
	}
	return true
}
