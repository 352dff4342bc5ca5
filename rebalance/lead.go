package rebalance

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
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
}

// lead is a leader's turn: prepare, see that it is heard, show the mark, change the configuration by one
// step, plan. It runs in the agent's goroutine, never in a callback of Raft. It
// returns after how long it wants the next turn at the latest.
func (a *Agent) lead(ctx context.Context, view View, viewErr error) (time.Duration, error) {
	if viewErr != nil {
		return a.cfg.TTL, fmt.Errorf("view: %w", viewErr)
	}
	if !view.Leased || a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return a.cfg.TTL, nil // plans nothing, and lets its mark run out
	}
	if err := a.gain(ctx); err != nil {
		return a.cfg.TTL, err
	}
	if now := time.Now(); a.term.audience.lost(now, view.Peers, a.server.id) {
		return a.cfg.TTL, a.abdicate(now)
	}
	renewed, err := a.cfg.Mark.Renew(ctx, a.raw, []byte(a.server.id))
	if err != nil {
		return a.cfg.TTL, fmt.Errorf("renew mark: %w", err)
	}
	if !renewed {
		return a.cfg.TTL, nil // the record has changed; the next look tells how
	}
	changed, err := a.reconfigure(ctx, view)
	if err != nil {
		return a.cfg.TTL, err
	}
	again, err := a.rebalance(view)
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
	if err := a.server.raft.Barrier(applyTimeout).Error(); err != nil {
		return fmt.Errorf("barrier: %w", err)
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
	return a.apply(recordEntry(recordOf(a.server.id), seed))
}

func (a *Agent) apply(data []byte) error {
	f := a.server.raft.Apply(data, applyTimeout)
	if err := f.Error(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err, ok := f.Response().(error); ok {
		return err
	}
	// The others learn that an entry is committed with the next message, up to two
	// commitTimeouts later: too long for a shard that was released for one of them. One
	// more entry is that message. Nobody waits for it.
	a.server.raft.Barrier(applyTimeout)
	return nil
}

// reconfigure makes one step towards the configuration the view asks for. The
// record names the union of old and new voters before the step and the result after
// it, so that it never misses a voter that could elect a leader.
func (a *Agent) reconfigure(ctx context.Context, view View) (changed bool, err error) {
	servers, err := a.server.servers()
	if err != nil {
		return false, err
	}
	voters := voterIDs(servers)
	current := a.server.machine.state.Load().assignment.Generation
	c := nextChange(servers, view, a.server.id, current)
	after := c.after(voters)
	if err := a.setVoters(ctx, append(after, voters...)); err != nil {
		return false, err
	}
	if c.kind == noChange {
		return false, nil
	}
	if err := a.change(c); err != nil {
		return false, fmt.Errorf("change configuration for %s: %w", c.server, err)
	}
	a.log.Info("raft configuration changed", "server", c.server, "voters", len(after))
	return true, a.setVoters(ctx, after)
}

func (a *Agent) change(c change) error {
	id := raft.ServerID(c.server)
	switch c.kind {
	case addServer:
		return a.server.raft.AddNonvoter(id, Address(c.server, c.peer.Address), 0, applyTimeout).Error()
	case promote:
		return a.server.raft.AddVoter(id, Address(c.server, c.peer.Address), 0, applyTimeout).Error()
	case demote:
		return a.server.raft.DemoteVoter(id, 0, applyTimeout).Error()
	default:
		return a.server.raft.RemoveServer(id, 0, applyTimeout).Error()
	}
}

// rebalance plans from the view and commits the plan if it changes anything.
func (a *Agent) rebalance(view View) (time.Duration, error) {
	now := time.Now()
	names := view.names()
	current := a.server.machine.state.Load()
	if !a.steady.sure {
		return max(a.steady.since.Add(a.steady.hold).Sub(now), time.Millisecond), nil
	}
	if now.Before(a.hold) && !containsAll(names, current.assignment.Nodes) {
		return a.hold.Sub(now), nil
	}
	admitted := a.term.lobby.admit(now, names, current.assignment.Nodes, view.hears(current.record))
	if !a.term.planned && !current.planned() && a.term.lobby.gathering(now) {
		return a.cfg.Settle / 4, nil
	}
	a.term.planned = true
	if !view.anyTakes(admitted) {
		admitted = a.term.lobby.open(names) // all that were in are leaving: better unsettled than unowned
	}
	nodes, applied := a.nodes(now, view, admitted, current.assignment.Generation)
	planned := Plan(current.acknowledged(applied), nodes, view.Queues)
	if !planned.Next.SamePlaces(current.assignment) {
		if err := a.apply(assignEntry(planned.Next)); err != nil {
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
