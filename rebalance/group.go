package rebalance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/unknownfields"
)

// record is the content of a Record.
type record struct {
	ID     uint64   `json:"id"`
	Voters []string `json:"voters"` // server ids, ascending
	// Fewer has the smaller set of voters while a step of the Raft configuration is open. Raft may or may not have
	// made that step. Voters then has the larger set.
	Fewer []string `json:"fewer,omitempty"`
}

func (r *record) encode() []byte {
	data, err := json.Marshal(r)
	if err != nil { // a number and strings always marshal
		panic(err)
	}
	return data
}

// decodeRecord returns nil for no data, and an error for data that are no record. A later release only adds
// fields to a record.
func decodeRecord(data []byte) (*record, error) {
	if data == nil {
		return nil, nil
	}
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("decode cluster record %.100q: %w", data, err)
	}
	if r.ID == 0 {
		return nil, fmt.Errorf("decode cluster record %.100q: no id", data)
	}
	return r, nil
}

// withVoters returns a record of the same id for the step from the voters before to the voters after. If both are the same,
// no step is open. One of the two sets must contain the other.
func (r *record) withVoters(before, after []string) *record {
	fewer, voters := sortUnique(before), sortUnique(after)
	if len(fewer) > len(voters) {
		fewer, voters = voters, fewer
	}
	if len(fewer) == len(voters) {
		fewer = nil
	}
	return &record{ID: r.ID, Voters: voters, Fewer: fewer}
}

func sortUnique(ids []string) []string { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// serverID returns the id of a process's k-th Raft server under the record. A process that
// drops its server increments k, so no id ever comes back without its log. That makes it
// safe to keep the log in memory (ADR 6).
func serverID(boot string, record uint64, k int) string {
	return fmt.Sprintf("%s#%d.%d", boot, record, k)
}

// bootOf returns the boot in a server id.
func bootOf(server string) string {
	boot, _, _ := strings.Cut(server, "#")
	return boot
}

// recordOf returns the record id in a server id, 0 if there is none.
func recordOf(server string) uint64 {
	_, rest, _ := strings.Cut(server, "#")
	id, _, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// SameGroup reports whether two server ids belong to the group of the same record.
func SameGroup(a, b string) bool { return recordOf(a) != 0 && recordOf(a) == recordOf(b) }

// action is a process's reaction to the cluster record.
type action int

const (
	stay      action = iota // change nothing
	join                    // drop the Raft server, start a server under the record, wait to be added
	bootstrap               // no record exists: create a record and bootstrap
	refound                 // the record's group is lost: replace the record and bootstrap
	restore                 // no record exists and this process leads: write its record back
	resume                  // this process wrote the record itself: bootstrap its group
)

// outlook holds all inputs of decide.
type outlook struct {
	outside       bool // it cannot read its group's log, so it takes part in nothing
	ttl           time.Duration
	record        *record
	offered       string        // the server id this process offered to bootstrap and has not used
	server        string        // the id of its Raft server, "" if none
	leading       bool          // its Raft server leads
	leader        bool          // its Raft server knows a leader
	peerLeader    bool          // another process reports that it knows a leader
	standsBack    bool          // it gave up leadership, so it lets another process found a group
	recent        bool          // it began lately, and another process began earlier
	leased        bool          // it has a live lease; without a lease it changes nothing
	marked        bool          // the leader's mark exists
	recordMissing time.Duration // how long there has been no record
	markMissing   time.Duration // how long there has been no mark
	patience      time.Duration // how long a mark may be missing while enough voters live
	livingVoters  int           // voters of the record with a live process
	livingFewer   int           // likewise of the smaller side of an open step
}

// decide returns what a process does about the record, and so when a group is founded and by which
// process. If several processes decide to found a group at once, the record's compare-and-set lets only
// one of them succeed.
func decide(o outlook) action {
	switch {
	case o.outside:
		return stay
	case o.record == nil:
		return decideWithoutRecord(o)
	case recordOf(o.server) != o.record.ID && slices.Equal(o.record.Voters, []string{o.offered}):
		return resume // the answer to its own compare-and-set was lost
	case recordOf(o.server) != o.record.ID:
		return join
	case o.marked || o.leading || o.standsBack || o.recent || !o.leased:
		return stay
	case o.livingVoters < len(o.record.Voters)/2+1:
		return refound
	case len(o.record.Fewer) > 0 && o.livingFewer < len(o.record.Fewer)/2+1 && o.markMissing >= o.ttl/2:
		return refound // if Raft has made the step, its voters would have elected a leader by now
	case o.markMissing >= o.patience:
		return refound
	}
	return stay
}

func decideWithoutRecord(o outlook) action {
	wait := time.Duration(0)
	switch {
	case o.leading && o.leased:
		return restore
	case o.leading:
		return stay
	case o.leader:
		wait = 2 * o.ttl // the leader writes it back if it reaches Redis
	case o.peerLeader:
		wait = o.ttl
	}
	if !o.leased || o.standsBack || o.recordMissing < wait {
		return stay
	}
	return bootstrap
}

// countLiving counts the voters with a live process. Such a process has a live lease and has
// not dropped the voter's server.
func countLiving(voters []string, peers []Peer) int {
	n := 0
	for _, voter := range voters {
		if slices.ContainsFunc(peers, func(p Peer) bool {
			dropped := SameGroup(p.RaftInfo.Server, voter) && p.RaftInfo.Server != voter
			return p.Leased && p.Boot == bootOf(voter) && !dropped
		}) {
			n++
		}
	}
	return n
}

// followRecord reads the record and the mark and carries out decide's action.
func (a *Agent) followRecord(ctx context.Context, view View) error {
	raw, err := a.cfg.Record.Load(ctx)
	if err != nil {
		return fmt.Errorf("load record: %w", err)
	}
	rec, err := decodeRecord(raw)
	if err != nil && !bytes.Equal(raw, a.raw) {
		a.log.Error("the cluster record cannot be read because another program has written to it; it counts as lost and is replaced", "err", err)
	}
	mark, err := a.cfg.Mark.Load(ctx)
	if err != nil {
		return fmt.Errorf("load leader's mark: %w", err)
	}
	now := time.Now()
	a.noteRecord(now, raw, rec, mark != nil)
	switch decide(a.newOutlook(now, view, mark != nil)) {
	case join:
		return a.startServer(a.newServerID(rec.ID), nil)
	case resume:
		return a.startGroup(rec)
	case bootstrap, refound:
		return a.createRecord(ctx)
	case restore:
		return a.writeBack(ctx, now)
	}
	return nil
}

// noteRecord stores the record as read, and since when the record or the mark is missing.
func (a *Agent) noteRecord(now time.Time, raw []byte, rec *record, marked bool) {
	changed := rec == nil || a.rec == nil || rec.ID != a.rec.ID
	switch {
	case rec != nil:
		a.highest, a.recordMissing = max(a.highest, rec.ID), time.Time{}
	case a.recordMissing.IsZero():
		a.recordMissing = now
	}
	switch {
	case marked:
		a.markMissing, a.patience = time.Time{}, a.startPatience()
	case a.markMissing.IsZero() || changed:
		a.markMissing = now
	}
	a.raw, a.rec = raw, rec
}

func (a *Agent) newOutlook(now time.Time, view View, marked bool) outlook {
	o := outlook{outside: now.Before(a.outside), ttl: a.cfg.TTL, record: a.rec, offered: a.offered, leased: view.Leased, marked: marked, patience: a.patience}
	if a.server != nil {
		leader := a.server.leaderID()
		o.server, o.leader, o.leading = a.server.id, leader != "", leader == a.server.id
	}
	isRecent := slices.ContainsFunc(view.Peers, func(p Peer) bool { return !a.isOther(p) && p.Recent })
	o.recent = isRecent && slices.ContainsFunc(view.Peers, func(p Peer) bool { return a.isSuccessor(p) && !p.Superseded && !p.Recent })
	for _, p := range view.Peers {
		o.standsBack = o.standsBack || a.isOther(p) && p.Leased && now.Before(a.standBack)
		o.peerLeader = o.peerLeader || a.isOther(p) && p.RaftInfo.Leader != ""
	}
	if a.rec != nil {
		o.livingVoters, o.livingFewer = countLiving(a.rec.Voters, view.Peers), countLiving(a.rec.Fewer, view.Peers)
	} else {
		o.recordMissing = now.Sub(a.recordMissing)
	}
	if !marked {
		o.markMissing = now.Sub(a.markMissing)
	}
	return o
}

// newServerID returns an id that no server of this process has had before.
func (a *Agent) newServerID(record uint64) string {
	a.servers++
	return serverID(a.cfg.Boot, record, a.servers)
}

// createRecord offers a new record with this process as its only voter. If the answer is
// lost, the next read of the record shows the outcome.
func (a *Agent) createRecord(ctx context.Context) error {
	now, err := a.cfg.Record.Now(ctx)
	if err != nil {
		return fmt.Errorf("create record: %w", err)
	}
	id := max(a.highest+1, uint64(max(0, now.UnixMilli())))
	a.offered = a.newServerID(id)
	rec := &record{ID: id, Voters: []string{a.offered}}
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
	a.raw, a.rec, a.highest, a.markMissing, a.recordMissing = rec.encode(), rec, id, time.Now(), time.Time{}
	return a.startGroup(rec)
}

// startGroup starts the first server of a record that this process wrote. A failed start uses up
// the id too, because an id must never come back without its log.
func (a *Agent) startGroup(rec *record) error {
	id := a.offered
	a.offered = ""
	return a.startServer(id, rec.Voters)
}

// writeBack restores a record that was lost while this process leads.
func (a *Agent) writeBack(ctx context.Context, now time.Time) error {
	voters, err := a.server.voters()
	if err != nil {
		return err
	}
	rec := (&record{ID: recordOf(a.server.id)}).withVoters(voters, voters)
	swapped, err := a.cfg.Record.CompareAndSet(ctx, a.raw, rec.encode())
	if err != nil {
		return fmt.Errorf("write back record %d: %w", rec.ID, err)
	}
	if swapped {
		a.log.Warn("cluster record was lost, written back", "record", rec.ID)
		a.raw, a.rec, a.recordMissing = rec.encode(), rec, time.Time{}
		a.holdUntil = now.Add(a.cfg.TTL)
	}
	return nil
}

// setVoters writes the step from the voters before to the voters after to the record, unless the record has it already.
func (a *Agent) setVoters(ctx context.Context, before, after []string) error {
	if a.rec == nil || a.rec.ID != recordOf(a.server.id) {
		return fmt.Errorf("set voters: the record is not of server %s", a.server.id)
	}
	next := a.rec.withVoters(before, after)
	if slices.Equal(next.Voters, a.rec.Voters) && slices.Equal(next.Fewer, a.rec.Fewer) {
		return nil
	}
	raw, err := unknownfields.Keep(next, a.raw)
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

// outsideTTLs is the number of lease ttls before a process that could not read its group's log joins again. By then
// the writer or the entry may be gone.
const outsideTTLs = 10

// leaveUnread drops the server if this process cannot read the server's log or snapshot. Until the
// process can read them, it has no vote and does not lead. It keeps its last assignment, which costs
// time and never safety. Its next server begins without a vote, under another id, and gets a vote
// only after it has read everything.
func (a *Agent) leaveUnread(now time.Time) {
	if a.server == nil || a.server.machine.readError() == nil {
		return
	}
	a.unread = a.server.machine.readError()
	a.log.Error("this release cannot read an entry of the raft group, so this node leaves the group for now and keeps its shards; run the release of the other nodes",
		"server", a.server.id, "err", a.unread)
	a.outside = now.Add(outsideTTLs * a.cfg.TTL)
	a.dropServer()
}

// leaveTimeout bounds the time a leaving process waits for the others.
const leaveTimeout = 3 * time.Second

// leaveGroup transfers leadership, waits until the new leader has removed this process's vote, and deletes
// the record if no other process is left. If a step fails, the others recover without it.
func (a *Agent) leaveGroup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	view, err := a.cfg.Source.View(ctx)
	if a.server != nil {
		if err == nil && slices.ContainsFunc(view.Peers, a.isSuccessor) {
			a.server.giveUpVote(ctx)
			view, err = a.cfg.Source.View(ctx)
		}
		a.dropServer()
	}
	if err != nil || a.rec == nil || slices.ContainsFunc(view.Peers, a.isOther) {
		return
	}
	if _, err := a.cfg.Record.CompareAndSet(ctx, a.raw, nil); err != nil {
		a.log.Warn("cluster record not deleted", "err", err)
	}
}

func (a *Agent) isOther(p Peer) bool { return p.Boot != a.cfg.Boot }

// isSuccessor reports whether p is another process that may vote.
func (a *Agent) isSuccessor(p Peer) bool { return a.isOther(p) && p.mayVote() }
