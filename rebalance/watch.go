package rebalance

import (
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// A plan that followed every flicker of the view would move shards to and fro. The watches in
// this file decide which changes to believe. Each is a function of the views so far and of the
// time, without I/O.
//
//	stableSet      whether the set of nodes is stable enough to plan from
//	joinWindow     which new nodes to plan for, so that nodes that start together are planned together
//	laggards       which processes have stopped applying assignments
//	crashWatch     which processes may be about to die, because others died soon after their start
//	readiness      which handlers have not been ready for a while
//	followerWatch  whether the majority of processes follows this leader
//
// stableSet, crashWatch and readiness run on every process, so that a new leader has the
// knowledge of its predecessor. The others belong to a leader's term.

// stableSet decides whether the set of nodes can be believed. At first, and after a reset,
// it must stay the same and readable for a while. A failed read resets it, and so does the
// loss of more than half of the nodes at once.
type stableSet struct {
	hold   time.Duration // how long a set must stay the same before it is believed
	names  []string      // the last set seen, ascending
	held   time.Duration // how long it has been the same, not counting failed reads
	last   time.Time     // when it was last read, zero after a failure
	stable bool          // the set is believed
}

// reset stops believing the set.
func (s *stableSet) reset() { s.stable, s.held = false, 0 }

// noteFailure records a failed read. The time that an unstable set was held before still counts, so that a link
// to Redis that fails repeatedly within the hold does not keep the set unstable for ever.
func (s *stableSet) noteFailure() {
	if s.stable {
		s.reset()
	}
	s.last = time.Time{}
}

// remaining returns how long an unstable set must still stay the same.
func (s *stableSet) remaining() time.Duration { return s.hold - s.held }

// observe records the current set and reports whether it is believed.
func (s *stableSet) observe(now time.Time, names []string) bool {
	vanished := 0
	for _, name := range s.names {
		if _, ok := slices.BinarySearch(names, name); !ok {
			vanished++
		}
	}
	if s.stable && vanished*2 > len(s.names) {
		s.reset()
	}
	switch {
	case !slices.Equal(s.names, names):
		s.held = 0
	case !s.last.IsZero():
		s.held += now.Sub(s.last)
	}
	s.names, s.last = names, now
	s.stable = s.stable || s.held >= s.hold
	return s.stable
}

// joinWindow holds new nodes back until no other node has joined for the stabilise time, so
// that nodes that start together are planned together. A wait ends after maxWindows stabilise
// times at the latest. Nodes that do not follow the group's log yet wait longer, because a
// shard that moved to such a node would stand still.
type joinWindow struct {
	joined    map[string]bool // nodes that are planned for
	waiting   map[string]bool // nodes that wait; true if the node follows the log
	first     time.Time       // when the first waiting node came
	following time.Time       // when the first waiting node that follows the log came, or began to follow
	last      time.Time       // when the last waiting node came, or began to follow
}

const (
	// stabilise is the time without another join before waiting nodes are planned for.
	stabilise  = time.Second
	maxWindows = 5
)

// eligible returns the names that may own shards. It leaves out processes that may be about
// to crash, which are barred processes and deferred processes that are not planned for yet.
func (w *joinWindow) eligible(view View, owners []string) []string {
	names := view.ownerNames()
	for _, p := range view.Peers {
		known := w.joined[p.Name] || slices.Contains(owners, p.Name)
		if p.mayOwn() && (p.Barred || p.Deferred && !known) {
			names = slices.DeleteFunc(names, func(name string) bool { return name == p.Name })
		}
	}
	return names
}

// admit returns the nodes of names that are planned for. Nodes that own shards do not wait.
func (w *joinWindow) admit(now time.Time, names, owners []string, follows map[string]bool) []string {
	joined, waiting := map[string]bool{}, map[string]bool{}
	anyFollows := slices.Contains(slices.Collect(maps.Values(w.waiting)), true)
	for _, name := range names {
		if w.joined[name] || slices.Contains(owners, name) {
			joined[name] = true
			continue
		}
		followed, known := w.waiting[name]
		waiting[name] = follows[name]
		if len(w.waiting)+len(waiting) == 1 && !known {
			w.first = now
		}
		if waiting[name] && !anyFollows {
			w.following, anyFollows = now, true
		}
		if !known || waiting[name] && !followed {
			w.last = now
		}
	}
	w.joined, w.waiting = joined, waiting
	if !now.Before(w.endTime()) {
		for name, follows := range w.waiting {
			if follows {
				w.joined[name] = true
				delete(w.waiting, name)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !w.joined[name] })
}

// endTime returns when the waiting nodes that follow the log are planned for.
func (w *joinWindow) endTime() time.Time {
	stable, limit := w.last.Add(stabilise), w.following.Add(maxWindows*stabilise)
	if limit.Before(stable) {
		return limit
	}
	return stable
}

// admitAll ends the wait of all nodes.
func (w *joinWindow) admitAll(names []string) []string {
	for name := range w.waiting {
		w.joined[name] = true
	}
	clear(w.waiting)
	return names
}

// nextDue returns when waiting nodes are planned for, zero if none of them follows the log.
func (w *joinWindow) nextDue() time.Time {
	for _, follows := range w.waiting {
		if follows {
			return w.endTime()
		}
	}
	return time.Time{}
}

// isOpen reports whether other nodes are about to join. A first plan waits for them, so that
// the first of many nodes does not get all shards.
func (w *joinWindow) isOpen(now time.Time) bool {
	return len(w.waiting) > 0 && now.Before(w.first.Add(maxWindows*stabilise))
}

// laggards finds processes that have stopped applying assignments.
type laggards struct {
	patience time.Duration
	behind   map[string]lag // by boot
}

// lag is the state of a process that is behind.
type lag struct {
	since   time.Time // when it was first behind, or last made progress
	applied plan.Generation
}

// observe returns the boots that have been behind current without progress for the patience.
func (l *laggards) observe(now time.Time, peers []Peer, current plan.Generation) map[string]bool {
	behind, found := map[string]lag{}, map[string]bool{}
	for _, p := range peers {
		applied := p.RaftInfo.Applied
		if applied.Compare(current) >= 0 {
			continue
		}
		was, ok := l.behind[p.Boot]
		if !ok || applied.Compare(was.applied) > 0 {
			was = lag{now, applied}
		}
		behind[p.Boot] = was
		found[p.Boot] = now.Sub(was.since) >= l.patience
	}
	l.behind = behind
	return found
}

// crashWatch records how long processes have existed and which of them crashed at their start.
//
// A process that dies soon after each start must neither keep the shards of its name nor get
// others. Each of its lives is too short to serve them and long enough to hold them. A process
// that dies before it has lived for 2 ttl has crashed at its start. After such a crash a new
// process must live for 2 ttl before it is planned for. This holds for the same name as long as
// the crash is remembered, and for another name, such as the name of a fresh container, for a
// shorter time. See ADR 9.
type crashWatch struct {
	ttl     time.Duration
	seen    map[string]presence // by boot; nil before the first view
	crashes map[string]crash    // by boot
}

// presence is a process in the view.
type presence struct {
	name   string
	first  time.Time // when it was first seen; zero if it was in the first view
	leaves bool      // it is draining, so its end is no crash
}

// crash is the end of a process soon after its start.
type crash struct {
	name string
	at   time.Time // when it was noticed
}

const (
	provenTTLs     = 2   // life, in ttls, that makes a process trusted despite a crash
	sameNameTTLs   = 100 // how long, in ttls, a crash counts for processes of its name
	othersNameTTLs = 10  // how long, in ttls, it counts for processes of any name
)

// observe records the current processes and fills in their Recent, Barred and Deferred.
func (c *crashWatch) observe(now time.Time, peers []Peer) {
	atFirst := c.seen == nil
	seen := make(map[string]presence, len(peers))
	for _, p := range peers {
		was, known := c.seen[p.Boot]
		if !known && !p.Leased {
			continue // only gossip shows it
		}
		if !known && !atFirst {
			was.first = now
		}
		was.name, was.leaves = p.Name, p.Draining
		seen[p.Boot] = was
		switch {
		case p.Superseded: // another process has its name
			c.noteEnd(now, p.Boot, was)
		case p.Leased:
			delete(c.crashes, p.Boot) // its lease was missing for a while, and is back
		}
	}
	for boot, was := range c.seen {
		if _, there := seen[boot]; !there {
			c.noteEnd(now, boot, was)
		}
	}
	c.seen = seen
	maps.DeleteFunc(c.crashes, func(_ string, old crash) bool { return now.Sub(old.at) > sameNameTTLs*c.ttl })
	for i := range peers {
		c.markPeer(now, &peers[i])
	}
}

// noteEnd records the end of a process if it was a crash at its start. A lease outlives its
// process by up to a ttl.
func (c *crashWatch) noteEnd(now time.Time, boot string, was presence) {
	if _, noted := c.crashes[boot]; noted || was.leaves || now.Sub(was.first) >= (provenTTLs+1)*c.ttl {
		return
	}
	if c.crashes == nil {
		c.crashes = map[string]crash{}
	}
	c.crashes[boot] = crash{was.name, now}
}

// markPeer fills in the peer's Recent, Barred and Deferred.
func (c *crashWatch) markPeer(now time.Time, p *Peer) {
	was, known := c.seen[p.Boot]
	if !known {
		return
	}
	if p.Recent = now.Sub(was.first) < provenTTLs*c.ttl; !p.Recent {
		return
	}
	for boot, old := range c.crashes {
		if boot == p.Boot {
			continue
		}
		p.Barred = p.Barred || old.name == p.Name
		p.Deferred = p.Deferred || old.name == p.Name || now.Sub(old.at) < othersNameTTLs*c.ttl
	}
}

// readiness decides which handlers count as not ready.
//
// Shards must not move each time a handler fails and recovers. An endpoint that all nodes share
// also fails, and recovers, for all of them within moments. So the set of processes that are not
// ready for a queue is believed once it has been the same for calmTTLs, and latestTTLs after its
// first change at the latest.
type readiness struct {
	ttl    time.Duration
	queues map[string]*unready // nil before the first view
}

// unready holds the processes, by boot, with a handler of a queue that is not ready.
type unready struct {
	believed map[string]bool
	seen     map[string]bool // in the last view
	first    time.Time       // when seen began to differ from believed; zero if they are equal
	last     time.Time       // when seen last changed
}

const (
	calmTTLs   = 1
	latestTTLs = 2
)

// observe records the current processes and replaces their Unready by the queues that count as not ready.
func (r *readiness) observe(now time.Time, peers []Peer) {
	atFirst := r.queues == nil
	if atFirst {
		r.queues = map[string]*unready{}
	}
	seen := map[string]map[string]bool{}
	for _, p := range peers {
		for _, q := range p.Unready {
			if seen[q] == nil {
				seen[q] = map[string]bool{}
			}
			if r.queues[q] == nil {
				r.queues[q] = &unready{}
			}
			seen[q][p.Boot] = true
		}
	}
	for q, u := range r.queues {
		u.observe(now, seen[q], atFirst, r.ttl)
		if len(u.believed)+len(u.seen) == 0 {
			delete(r.queues, q)
		}
	}
	for i := range peers {
		p := &peers[i]
		p.Unready = nil
		for _, q := range p.Queues {
			if u := r.queues[q]; u != nil && u.believed[p.Boot] {
				p.Unready = append(p.Unready, q)
			}
		}
	}
}

func (u *unready) observe(now time.Time, seen map[string]bool, atFirst bool, ttl time.Duration) {
	if !maps.Equal(seen, u.seen) {
		u.seen, u.last = seen, now
	}
	switch {
	case maps.Equal(seen, u.believed):
		u.first = time.Time{}
		return
	case u.first.IsZero():
		u.first = now
	}
	if atFirst || now.Sub(u.last) >= calmTTLs*ttl || now.Sub(u.first) >= latestTTLs*ttl {
		u.believed, u.first = seen, time.Time{}
	}
}

// followerWatch tells a leader whether other processes follow it. A bad certificate or a firewall may
// keep the leader's messages from most live processes. They would then have no leader for good,
// because the record and the mark belong to this leader and keep them from founding another group.
type followerWatch struct {
	patience     time.Duration // how long a minority may follow before the leader gives up
	maxFollowing int           // highest number of processes that followed at once, itself included
	since        time.Time     // when that number was reached, or a majority last followed
}

// hasLostMajority reports whether most live processes have not followed the leader for the patience, and none has begun
// to follow it. Of two processes neither gives up, because neither knows which of them is at fault.
func (f *followerWatch) hasLostMajority(now time.Time, peers []Peer, leader string) bool {
	following, others := 1, 0
	for _, p := range peers {
		switch {
		case !p.Leased || p.Boot == bootOf(leader):
		case p.Superseded || p.Deferred: // it may be dead with a lease that has not expired
		case p.RaftInfo.Leader == leader:
			following++
		default:
			others++
		}
	}
	if others <= following || following > f.maxFollowing {
		f.maxFollowing, f.since = following, now
	}
	return now.Sub(f.since) >= f.patience
}
