package rebalance

import (
	"maps"
	"slices"
	"time"
)

// steady says whether the set of nodes can be believed. At first, and after a doubt,
// it must stay the same for a while in which it can be read; a failed read, and more than
// half of the nodes vanishing at once, are doubts. Every process watches the set, whoever
// leads: a new leader that saw the set stay the same before it led need not wait again.
type steady struct {
	hold  time.Duration // how long a doubted set must stay the same
	names []string      // the last set seen, ascending
	held  time.Duration // how long it has been the same, without the time in which reads failed
	last  time.Time     // when it was last read, zero after a failure
	sure  bool
}

// doubt makes the next set unsure.
func (s *steady) doubt() { s.sure, s.held = false, 0 }

// fail notes a failed read. What was held before counts on, so that a link to Redis that
// comes and goes for less than the hold does not keep the set in doubt for ever.
func (s *steady) fail() {
	if s.sure {
		s.doubt()
	}
	s.last = time.Time{}
}

// left is how long a doubted set must still stay the same.
func (s *steady) left() time.Duration { return s.hold - s.held }

// observe takes the set as it is now, and reports whether to believe it.
func (s *steady) observe(now time.Time, names []string) bool {
	vanished := 0
	for _, name := range s.names {
		if _, ok := slices.BinarySearch(names, name); !ok {
			vanished++
		}
	}
	if s.sure && vanished*2 > len(s.names) {
		s.doubt()
	}
	switch {
	case !slices.Equal(s.names, names):
		s.held = 0
	case !s.last.IsZero():
		s.held += now.Sub(s.last)
	}
	s.names, s.last = names, now
	s.sure = s.sure || s.held >= s.hold
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

// worthy returns the names that may own shards, without those whose process may be about to
// crash: on trial, or doubted and not in yet.
func (l *lobby) worthy(view View, owners []string) []string {
	names := view.names()
	for _, p := range view.Peers {
		in := l.inside[p.Name] || slices.Contains(owners, p.Name)
		if p.mayOwn() && (p.OnTrial || p.Doubted && !in) {
			names = slices.DeleteFunc(names, func(name string) bool { return name == p.Name })
		}
	}
	return names
}

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
