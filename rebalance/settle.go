package rebalance

import (
	"maps"
	"slices"
	"time"
)

// steady says whether the set of nodes can be believed. At first, and after a doubt,
// it must stay the same for a while; a failed read, and more than half of the nodes
// vanishing at once, are doubts. Every process watches the set, whoever leads: a new
// leader that saw the set stay the same before it led need not wait again.
type steady struct {
	hold  time.Duration // how long a doubted set must stay the same
	names []string      // the last set seen, ascending
	since time.Time     // since when it has been the same
	sure  bool
}

// doubt makes the next set unsure.
func (s *steady) doubt(now time.Time) { s.sure, s.since = false, now }

// observe takes the set as it is now, and reports whether to believe it.
func (s *steady) observe(now time.Time, names []string) bool {
	vanished := 0
	for _, name := range s.names {
		if _, ok := slices.BinarySearch(names, name); !ok {
			vanished++
		}
	}
	if s.sure && vanished*2 > len(s.names) {
		s.doubt(now)
	}
	if !s.sure && !slices.Equal(s.names, names) {
		s.since = now
	}
	s.names = names
	if !s.sure && now.Sub(s.since) >= s.hold {
		s.sure = true
	}
	return s.sure
}

// lobby keeps new nodes waiting until no other has come for the settle time, so
// that nodes that start together are one rebalance. A wait ends after maxSettles
// settle times in any case, but for nodes that would not hear of it: a shard that moved
// to one of these would stand still.
type lobby struct {
	settle  time.Duration
	inside  map[string]bool
	waiting map[string]bool // true for those that hear
	first   time.Time       // when the first of those waiting came
	heard   time.Time       // when the first of those that hear came, or began to hear
	last    time.Time       // when the last of those waiting came, or began to hear
}

const maxSettles = 5

// admit returns those of names that are in. Nodes that own shards are in at once.
func (l *lobby) admit(now time.Time, names []string, owners []string, hears func(name string) bool) []string {
	inside, waiting := map[string]bool{}, map[string]bool{}
	hearing := slices.Contains(slices.Collect(maps.Values(l.waiting)), true)
	for _, name := range names {
		if l.inside[name] || slices.Contains(owners, name) {
			inside[name] = true
			continue
		}
		heard, known := l.waiting[name]
		waiting[name] = hears(name)
		if len(l.waiting)+len(waiting) == 1 && !known {
			l.first = now
		}
		if waiting[name] && !hearing {
			l.heard, hearing = now, true
		}
		if !known || waiting[name] && !heard {
			l.last = now
		}
	}
	l.inside, l.waiting = inside, waiting
	if now.Sub(l.last) >= l.settle || !now.Before(l.heard.Add(maxSettles*l.settle)) {
		l.letIn(func(name string) bool { return l.waiting[name] })
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !l.inside[name] })
}

func (l *lobby) letIn(which func(name string) bool) {
	for name := range l.waiting {
		if which(name) {
			l.inside[name] = true
			delete(l.waiting, name)
		}
	}
}

// open lets everybody in.
func (l *lobby) open(names []string) []string {
	l.letIn(func(string) bool { return true })
	return names
}

// due returns when those waiting may come in, zero if nobody waits who hears.
func (l *lobby) due() time.Time {
	for _, hears := range l.waiting {
		if !hears {
			continue
		}
		settled, limit := l.last.Add(l.settle), l.heard.Add(maxSettles*l.settle)
		if limit.Before(settled) {
			return limit
		}
		return settled
	}
	return time.Time{}
}

// gathering reports whether others are about to come in, so that a first plan should wait
// for them: the first of many to start is not given all.
func (l *lobby) gathering(now time.Time) bool {
	return len(l.waiting) > 0 && now.Before(l.first.Add(maxSettles*l.settle))
}

// lag notices the nodes that have stopped acknowledging assignments.
type lag struct {
	patience time.Duration
	behind   map[string]lagging // by boot
}

type lagging struct {
	since   time.Time
	applied Generation
}

// deaf returns the boots that have been behind current without progress for the
// patience.
func (l *lag) deaf(now time.Time, peers []Peer, current Generation) map[string]bool {
	behind, deaf := map[string]lagging{}, map[string]bool{}
	for _, p := range peers {
		applied := p.Seat.Applied
		if applied.Compare(current) >= 0 {
			continue
		}
		was, ok := l.behind[p.Boot]
		if !ok || applied.Compare(was.applied) > 0 {
			was = lagging{now, applied}
		}
		behind[p.Boot] = was
		deaf[p.Boot] = now.Sub(was.since) >= l.patience
	}
	l.behind = behind
	return deaf
}
