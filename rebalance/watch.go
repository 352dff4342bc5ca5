package rebalance

import (
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What a view shows is not all believed at once: a plan that follows each flicker moves
// shards to and fro. The watches in this file say what holds. Each is a function of the
// views so far and of the time; none does I/O.
//
//	stableSet      is the set of nodes read well enough to plan from it
//	joinWindow     which new nodes are planned for: those that start together, together
//	laggards       which processes have stopped applying assignments
//	crashWatch     which processes may be about to die, as others did soon after their start
//	readiness      which handlers are not ready, once that has been so for a while
//	followerWatch  whether most processes follow this leader
//
// stableSet, crashWatch and readiness run on every process, so that a new leader knows what
// its predecessor did; the others belong to a leader's term.

// stableSet says whether the set of nodes can be believed. At first, and after a reset,
// it must stay the same for a while in which it can be read; a failed read resets it, and
// so does the loss of more than half of the nodes at once.
type stableSet struct {
	hold   time.Duration // how long a set must stay the same before it is believed
	names  []string      // the last set seen, ascending
	held   time.Duration // how long it has been the same, without the time in which reads failed
	last   time.Time     // when it was last read, zero after a failure
	stable bool          // the set is believed
}

// reset makes the next set one that is not believed yet.
func (s *stableSet) reset() { s.stable, s.held = false, 0 }

// fail notes a failed read. How long an unstable set was held before counts on, so that a link
// to Redis that fails again and again within the hold does not keep it unstable for ever.
func (s *stableSet) fail() {
	if s.stable {
		s.reset()
	}
	s.last = time.Time{}
}

// remaining is how long an unstable set must still stay the same.
func (s *stableSet) remaining() time.Duration { return s.hold - s.held }

// observe takes the set as it is now, and reports whether it is believed.
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

// joinWindow holds new nodes back until no other has joined for the stabilise time, so
// that nodes that start together are one plan. A wait ends after maxWindows stabilise
// times in any case, but for nodes that do not follow the group's log yet: a shard that
// moved to one of these would stand still.
type joinWindow struct {
	joined    map[string]bool // nodes that are planned for
	waiting   map[string]bool // nodes that are not yet; true for those that follow the log
	first     time.Time       // when the first of those waiting came
	following time.Time       // when the first of them that follow came, or began to follow
	last      time.Time       // when the last of them came, or began to follow
}

const (
	// stabilise is for how long no other node must have joined before those that did are planned for.
	stabilise  = time.Second
	maxWindows = 5
)

// eligible returns the names that may own shards, without those whose process may be about
// to crash: those barred, and those deferred that are not planned for yet.
func (w *joinWindow) eligible(view View, owners []string) []string {
	names := view.owners()
	for _, p := range view.Peers {
		known := w.joined[p.Name] || slices.Contains(owners, p.Name)
		if p.mayOwn() && (p.Barred || p.Deferred && !known) {
			names = slices.DeleteFunc(names, func(name string) bool { return name == p.Name })
		}
	}
	return names
}

// admit returns those of names that are planned for. Nodes that own shards are so at once.
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
	if !now.Before(w.ends()) {
		for name, follows := range w.waiting {
			if follows {
				w.joined[name] = true
				delete(w.waiting, name)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !w.joined[name] })
}

// ends is when those waiting that follow the log are planned for.
func (w *joinWindow) ends() time.Time {
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

// due returns when those waiting are planned for, zero if none of them follows the log.
func (w *joinWindow) due() time.Time {
	for _, follows := range w.waiting {
		if follows {
			return w.ends()
		}
	}
	return time.Time{}
}

// open reports whether others are about to join, so that a first plan should wait for
// them: the first of many to start is not given all.
func (w *joinWindow) open(now time.Time) bool {
	return len(w.waiting) > 0 && now.Before(w.first.Add(maxWindows*stabilise))
}

// laggards notices the processes that have stopped applying assignments.
type laggards struct {
	patience time.Duration
	behind   map[string]lag // by boot
}

// lag is how far a process is behind.
type lag struct {
	since   time.Time // when it was found behind, or last went on
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

// crashWatch knows how long processes have been there, and which of them crashed at their
// start.
//
// A process that dies soon after each start must not keep the shards of its name, nor be
// given others: each of its lives would be too short to serve them and long enough to hold
// them. One restart says nothing. A process that died before it had lived for 2 ttl has
// crashed at its start; then a process that starts has to live for 2 ttl before it is planned
// for: one of the same name for as long as the crash is remembered, one of another name, as a
// fresh container has, for a shorter while. See ADR 9.
type crashWatch struct {
	ttl     time.Duration
	seen    map[string]presence // by boot; nil before the first view
	crashes map[string]crash    // by boot
}

// presence is a process that is there.
type presence struct {
	name   string
	first  time.Time // when it was first seen; zero for one that was there at the first view
	leaves bool      // it is draining: its end is no crash
}

// crash is the end of a process soon after its start.
type crash struct {
	name string
	at   time.Time // when it was noticed
}

const (
	provenTTLs     = 2   // how long a process must have lived, in ttls, to be trusted after a crash
	sameNameTTLs   = 100 // how long a crash counts for processes of its name
	othersNameTTLs = 10  // how long it counts for processes of any name
)

// observe takes the processes as they are now, and fills in of each what it knows.
func (c *crashWatch) observe(now time.Time, peers []Peer) {
	atFirst := c.seen == nil
	seen := make(map[string]presence, len(peers))
	for _, p := range peers {
		was, known := c.seen[p.Boot]
		if !known && !p.Leased {
			continue // gossip alone knows of it
		}
		if !known && !atFirst {
			was.first = now
		}
		was.name, was.leaves = p.Name, p.Draining
		seen[p.Boot] = was
		switch {
		case p.Superseded: // the process under its name is another one now
			c.ended(now, p.Boot, was)
		case p.Leased:
			delete(c.crashes, p.Boot) // its lease was missing for a while, and is back
		}
	}
	for boot, was := range c.seen {
		if _, there := seen[boot]; !there {
			c.ended(now, boot, was)
		}
	}
	c.seen = seen
	maps.DeleteFunc(c.crashes, func(_ string, old crash) bool { return now.Sub(old.at) > sameNameTTLs*c.ttl })
	for i := range peers {
		c.judge(now, &peers[i])
	}
}

// ended notes the end of a process, if it was a crash at its start. A lease is there for up
// to a ttl longer than its process.
func (c *crashWatch) ended(now time.Time, boot string, was presence) {
	if _, noted := c.crashes[boot]; noted || was.leaves || now.Sub(was.first) >= (provenTTLs+1)*c.ttl {
		return
	}
	if c.crashes == nil {
		c.crashes = map[string]crash{}
	}
	c.crashes[boot] = crash{was.name, now}
}

func (c *crashWatch) judge(now time.Time, p *Peer) {
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

// readiness knows which handlers are believed to be not ready.
//
// A handler that fails and recovers again and again must not have its shards moved each time,
// and an endpoint that all nodes share fails, and recovers, for all of them within moments. So
// the set of processes that are not ready for a queue is believed once it has been the same
// for calmTTLs, and latestTTLs after its first change at the latest.
type readiness struct {
	ttl    time.Duration
	queues map[string]*unready // nil before the first view
}

// unready are the processes whose handler of a queue is not ready, by boot.
type unready struct {
	believed map[string]bool
	seen     map[string]bool // in the last view
	first    time.Time       // when seen began to differ from believed; zero: it does not
	last     time.Time       // when seen last changed
}

const (
	calmTTLs   = 1
	latestTTLs = 2
)

// observe takes the processes as they are now, and leaves in Unready what is believed.
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

// followerWatch tells a leader whether it is followed. A leader whose messages most live
// processes do not get, because its certificate is no good or a firewall stands between
// them, would keep them all without a leader: record and mark are its own, so no other
// process founds another group.
type followerWatch struct {
	patience time.Duration // how long most may follow nothing without one more that follows
	most     int           // how many have followed at once, itself included
	since    time.Time     // when they became that many, or were no minority
}

// lost reports whether most of the live processes do not follow the leader, and no more
// of them than before, for the patience. Two processes never lose each other: neither
// knows which of them is wrong.
func (f *followerWatch) lost(now time.Time, peers []Peer, leader string) bool {
	following, others := 1, 0
	for _, p := range peers {
		switch {
		case !p.Leased || p.Boot == bootOf(leader):
		case p.Superseded || p.Deferred: // it may be dead already, under a lease that has not run out
		case p.RaftInfo.Leader == leader:
			following++
		default:
			others++
		}
	}
	if others <= following || following > f.most {
		f.most, f.since = following, now
	}
	return now.Sub(f.since) >= f.patience
}
