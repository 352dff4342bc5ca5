package rebalance

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/extra"
)

// adopt reads the record and the mark and does what decide says.
func (a *Agent) adopt(ctx context.Context, view View) error {
	raw, err := a.cfg.Record.Load(ctx)
	if err != nil {
		return fmt.Errorf("load record: %w", err)
	}
	rec, err := decodeRecord(raw)
	if err != nil && !bytes.Equal(raw, a.raw) {
		a.log.Error("the cluster record cannot be read, somebody has written to it: it is taken for lost, and replaced", "err", err)
	}
	mark, err := a.cfg.Mark.Load(ctx)
	if err != nil {
		return fmt.Errorf("load leader's mark: %w", err)
	}
	now := time.Now()
	a.note(now, raw, rec, mark != nil)
	switch decide(a.outlook(now, view, mark != nil)) {
	case join:
		a.k++
		return a.start(serverID(a.cfg.Boot, rec.ID, a.k), nil)
	case resume:
		return a.bootstrap(rec)
	case found, rebear:
		return a.create(ctx)
	case restore:
		return a.writeBack(ctx, now)
	}
	return nil
}

// outsideFor is after how many lease ttls a process that could not read what its group
// wrote tries again: whoever wrote it may be gone, or the entry.
const outsideFor = 10

// leaveUnread drops a server whose log or snapshot this process cannot read. Until it
// can, it has no vote and leads nobody; it keeps the assignment it has, which costs time
// and never safety. As a server under another id it begins without a vote, and gets one
// only after it has read everything.
func (a *Agent) leaveUnread(now time.Time) {
	if a.server == nil || a.server.machine.unread() == nil {
		return
	}
	a.unread = a.server.machine.unread()
	a.log.Error("the raft group has written what this release cannot read: this node leaves it for now and keeps the shards it has; run the release of the other nodes",
		"server", a.server.id, "err", a.unread)
	a.outside = now.Add(outsideFor * a.cfg.TTL)
	a.drop()
}

// note keeps what was read, and since when things have been missing.
func (a *Agent) note(now time.Time, raw []byte, rec *record, marked bool) {
	if rec != nil {
		a.seen = max(a.seen, rec.ID)
	}
	if rec == nil && a.recordGone.IsZero() {
		a.recordGone = now
	} else if rec != nil {
		a.recordGone = time.Time{}
	}
	other := rec == nil || a.rec == nil || rec.ID != a.rec.ID
	switch {
	case marked:
		a.markGone, a.patience = time.Time{}, a.startPatience()
	case a.markGone.IsZero() || other:
		a.markGone = now
	}
	a.raw, a.rec = raw, rec
}

func (a *Agent) outlook(now time.Time, view View, marked bool) outlook {
	o := outlook{outside: now.Before(a.outside), ttl: a.cfg.TTL, record: a.rec, minted: a.minted, leased: view.Leased, marked: marked, patience: a.patience}
	if a.server != nil {
		_, leader := a.server.raft.LeaderWithID()
		o.server, o.leader, o.leading = a.server.id, leader != "", string(leader) == a.server.id
	}
	o.young = a.youngest(view.Peers)
	for _, p := range view.Peers {
		o.shy = o.shy || a.other(p) && p.Leased && now.Before(a.shy)
		o.peerLeader = o.peerLeader || p.Boot != a.cfg.Boot && p.Seat.Leader != ""
	}
	if a.rec != nil {
		o.livingVoters, o.livingFewer = living(a.rec.Voters, view.Peers), living(a.rec.Fewer, view.Peers)
	} else {
		o.recordGone = now.Sub(a.recordGone)
	}
	if !marked {
		o.markGone = now.Sub(a.markGone)
	}
	return o
}

// youngest reports whether this process began lately, and another one did not: that one is
// to found a group, as this one may be gone soon.
func (a *Agent) youngest(peers []Peer) bool {
	young := slices.ContainsFunc(peers, func(p Peer) bool { return !a.other(p) && p.Young })
	return young && slices.ContainsFunc(peers, func(p Peer) bool { return a.stays(p) && !p.Superseded && !p.Young })
}

// create offers a new record with this process as its only voter. If the answer is
// lost, the next look at the record tells.
func (a *Agent) create(ctx context.Context) error {
	now, err := a.cfg.Record.Now(ctx)
	if err != nil {
		return fmt.Errorf("create record: %w", err)
	}
	id := max(a.seen+1, uint64(max(0, now.UnixMilli())))
	a.k++
	a.minted = serverID(a.cfg.Boot, id, a.k)
	rec := &record{ID: id, Voters: []string{a.minted}}
	swapped, err := a.cfg.Record.CompareAndSet(ctx, a.raw, rec.encode())
	if err != nil {
		return fmt.Errorf("create record %d: %w", id, err)
	}
	if !swapped {
		a.Wake() // another process was first
		return nil
	}
	a.log.Info("cluster record created", "record", id)
	a.patience *= 2
	a.raw, a.rec, a.seen, a.markGone, a.recordGone = rec.encode(), rec, id, time.Now(), time.Time{}
	return a.bootstrap(rec)
}

// bootstrap starts the first server of a record this process wrote. The id is used
// up even if the start fails: it must never come back without its log.
func (a *Agent) bootstrap(rec *record) error {
	id := a.minted
	a.minted = ""
	return a.start(id, rec.Voters)
}

// writeBack restores a record that was lost while this process leads.
func (a *Agent) writeBack(ctx context.Context, now time.Time) error {
	voters, err := a.server.voters()
	if err != nil {
		return err
	}
	rec := (&record{ID: recordOf(a.server.id)}).with(voters, voters)
	swapped, err := a.cfg.Record.CompareAndSet(ctx, a.raw, rec.encode())
	if err != nil {
		return fmt.Errorf("write back record %d: %w", rec.ID, err)
	}
	if swapped {
		a.log.Warn("cluster record was lost, written back", "record", rec.ID)
		a.raw, a.rec, a.recordGone = rec.encode(), rec, time.Time{}
		a.hold = now.Add(a.cfg.TTL)
	}
	return nil
}

// setVoters writes to the record that the voters change, or are these if both are the same, unless it says so already.
func (a *Agent) setVoters(ctx context.Context, before, after []string) error {
	if a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return fmt.Errorf("set voters: the record is not of server %s", a.server.id)
	}
	next := a.rec.with(before, after)
	if slices.Equal(next.Voters, a.rec.Voters) && slices.Equal(next.Fewer, a.rec.Fewer) {
		return nil
	}
	raw, err := extra.Keep(next, a.raw)
	if err != nil {
		return fmt.Errorf("set voters of record %d: %w", next.ID, err)
	}
	swapped, err := a.cfg.Record.CompareAndSet(ctx, a.raw, raw)
	if err != nil {
		return fmt.Errorf("set voters of record %d: %w", next.ID, err)
	}
	if !swapped {
		return fmt.Errorf("set voters of record %d: the record changed meanwhile", next.ID)
	}
	a.raw, a.rec = raw, next
	return nil
}

// leaveTimeout bounds how long a leaving process waits for the others.
const leaveTimeout = 3 * time.Second

// leave hands over, waits to be let go by the new leader, and deletes the record if
// nobody is left. Whatever fails, the others recover by themselves.
func (a *Agent) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	view, err := a.cfg.Source.View(ctx)
	if a.server != nil {
		if err == nil && slices.ContainsFunc(view.Peers, a.stays) {
			a.server.handOver(ctx)
			view, err = a.cfg.Source.View(ctx)
		}
		a.drop()
	}
	if err != nil || a.rec == nil || slices.ContainsFunc(view.Peers, a.other) {
		return
	}
	if _, err := a.cfg.Record.CompareAndSet(ctx, a.raw, nil); err != nil {
		a.log.Warn("cluster record not deleted", "err", err)
	}
}

// other reports whether the process is another one.
func (a *Agent) other(p Peer) bool { return p.Boot != a.cfg.Boot }

// stays reports whether the process is another one that could take over.
func (a *Agent) stays(p Peer) bool { return a.other(p) && p.Leased && !p.Draining }
