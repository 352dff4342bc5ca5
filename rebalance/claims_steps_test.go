package rebalance

import "github.com/lowkiq/lowkiq/internal/testing/explore"

// What may happen in a state of the claims model.

// branches collects what may happen in one state.
type branches []explore.Event[claims]

func (b *branches) add(what string, i int, s claims) {
	*b = append(*b, explore.Event[claims]{By: 'A' + rune(i), What: what, Next: s})
}

func (b *branches) fault(what string, i int, s claims) {
	if s.faults++; s.faults > maxFaults {
		return
	}
	*b = append(*b, explore.Event[claims]{By: 'A' + rune(i), What: what, Next: s, Fault: true})
}

// network: what was sent arrives, whatever has become of its sender; once, twice,
// or never.
func (b *branches) network(s claims, i int, without rule) {
	p := s.p[i]
	if p.request > 0 {
		b.arrive(s, i, without)
	}
	if p.ack > 0 {
		next := s
		next.p[i].ack = 0
		if s.owner == uint8(i+1) && s.fence == p.ack || without == fencedAck {
			next.overrun = s.fence != p.ack && s.flight
			next.done, next.flight = true, false
		} else if p.holds == p.ack {
			next.p[i].holds = 0
		}
		b.add("'s ack arrives", i, next)
	}
}

// arrive: a claim reaches Redis. If its fence has moved on the answer is STALE, and
// says who holds the claim: it may have been an earlier copy of this one.
func (b *branches) arrive(s claims, i int, without rule) {
	p, next := s.p[i], s
	if s.fence == p.request-1 || without == staleClaim {
		next.fence = min(s.fence+1, maxFence)
		next.owner, next.by, next.flight, next.wiped = uint8(i+1), p.by, false, false
	}
	b.fault("'s claim arrives, and will again; reply lost", i, next)
	next.p[i].request = 0
	if p.life != up || !p.claiming || p.by != p.instance {
		b.add("'s late claim arrives", i, next)
		return
	}
	b.fault("'s claim arrives; reply lost", i, next)
	b.add("'s claim is answered", i, next.learn(i))
	lost := s
	lost.p[i].request = 0
	b.fault("'s claim is lost", i, lost)
}

// learn: the process is told who holds the claim.
func (s claims) learn(i int) claims {
	p := &s.p[i]
	p.claiming = false
	if s.owner == uint8(i+1) && s.by == p.instance {
		p.holds = s.fence
	}
	return s
}

// process: what a process that is up does by itself.
func (b *branches) process(s claims, i int, without rule) {
	p := s.p[i]
	if p.life != up {
		return
	}
	if !p.knows {
		next := s
		next.p[i].knows = true
		b.add("learns the new plan", i, next)
	}
	b.claim(s, i, without)
	if p.claiming {
		b.add("looks what became of its claim", i, s.learn(i))
	}
	if s.owner == uint8(i+1) && s.by == p.instance && p.holds == 0 && !p.claiming && p.running == 0 && without != wanted {
		next := s
		next.owner, next.by, next.flight = 0, 0, false
		b.add("is asked for a claim it does not know of", i, next)
	}
	if p.holds > 0 && p.fit && p.running == 0 && p.ack == 0 && !s.done {
		next := s
		if s.owner == uint8(i+1) && s.fence == p.holds {
			next.flight, next.p[i].running = true, p.holds
			b.add("pops and handles", i, next)
		} else {
			next.p[i].holds = 0
			b.add("pops and is fenced", i, next)
		}
	}
	if p.running > 0 && p.ack == 0 {
		next := s
		next.p[i].running, next.p[i].ack = 0, p.running
		b.add("finishes and sends the ack", i, next)
	}
	if p.old {
		next := s
		next.p[i].old = false
		b.add("'s old call returns", i, next)
	}
	if p.holds > 0 && p.knows && i == 0 && p.ack == 0 && (p.running == 0 || without == quietRelease) {
		next := s
		next.p[i].holds = 0
		if s.owner == uint8(i+1) && s.fence == p.holds {
			next.owner, next.by, next.flight = 0, 0, false
		}
		b.add("releases", i, next)
	}
	b.succeed(s, i, without)
}

// claim sends a claim if the process may.
func (b *branches) claim(s claims, i int, without rule) {
	p, other := s.p[i], s.p[1-i]
	if p.knows != (i == 1) || !p.fit || p.holds > 0 || p.claiming || p.request > 0 || p.running > 0 || s.fence >= maxFence {
		return
	}
	cause := ""
	switch {
	case s.owner == 0 && s.wiped:
		if p.lease && (ttlPassed(other, s.ended) || without == absentIsHeld) {
			cause = "claims what Redis forgot"
		}
	case s.owner == 0:
		cause = "claims"
	case s.owner == uint8(i+1):
		cause = "claims what it held before"
	default:
		gone := other.instance > s.by || !other.lease
		stale := p.missing == s.by // looked at before, and taken to be still so
		proof := other.instance > s.by || other.life != up || stale || without == lockDelay
		if (gone || stale || without == leaseCheck) && (proof || without == leaseCheck) {
			cause = "seizes"
		}
	}
	if cause == "" {
		return
	}
	next := s
	next.p[i].claiming, next.p[i].request, next.p[i].by = true, s.fence+1, p.instance
	next.p[i].missing = 0
	b.add(cause, i, next)
}

// ttlPassed reports whether a ttl may have passed for the process: it cannot look,
// or has looked and stopped, or has looked and found its lease.
func ttlPassed(p proc, leaseEndedEarly bool) bool {
	return p.life != up || !p.fit && p.running == 0 || p.fit && p.lease && leaseEndedEarly
}

// succeed: a process that lost its lease stops, and goes on as the next instance.
func (b *branches) succeed(s claims, i int, without rule) {
	p := s.p[i]
	if p.fit && !p.lease {
		next := s
		if without == noRevival {
			next.p[i].lease = true
			b.add("renews a lease that is not there", i, next)
		} else {
			next.p[i].fit = false
			b.add("finds its lease missing", i, next)
		}
	}
	if !p.fit && !p.lease && p.ack == 0 && p.instance < maxInstance && (p.running == 0 || without == quietSuccession) {
		next := s
		n := &next.p[i]
		n.instance++
		n.lease, n.fit, n.claiming, n.holds = true, true, false, 0
		n.old, n.running = p.running > 0, 0
		b.add("goes on as the next instance", i, next)
	}
}

// observe: a process looks at the other's lease.
func (b *branches) observe(s claims, i int) {
	p, other := s.p[i], s.p[1-i]
	if p.life != up || s.owner != uint8(2-i) {
		return
	}
	missing := !other.lease || other.instance > s.by
	if missing && p.missing != s.by && ttlPassed(other, s.ended) {
		next := s
		next.p[i].missing = s.by
		b.add("sees the other's lease missing for a ttl", i, next)
	}
}

func (b *branches) faults(s claims, i int, without rule) {
	p := s.p[i]
	b.stops(s, i, without)
	if p.life == up && p.fit {
		next := s
		next.p[i].fit = false
		b.fault("is cut off and overruns its deadline", i, next)
	}
	stopped := p.life != up || !p.fit && p.running == 0
	if p.lease && (stopped || without == deadline) {
		next := s
		next.p[i].lease = false
		b.add("'s lease runs out", i, next)
	}
	if p.lease && !s.ended {
		next := s
		next.ended, next.p[i].lease = true, false
		b.fault("'s lease ends early", i, next)
	}
	if i == 0 && !s.ended && s.owner > 0 {
		next := s
		next.ended, next.wiped = true, true
		next.owner, next.by, next.flight = 0, 0, false
		next.p[0].lease, next.p[1].lease = false, false
		b.fault("and B lose Redis's memory", i, next)
	}
}

// stops: crash, freeze and thaw.
func (b *branches) stops(s claims, i int, without rule) {
	p, next := s.p[i], s
	switch p.life {
	case up:
		next.p[i].life = frozen
		b.fault("freezes", i, next)
		if i == 1 {
			return // A is the one that is overtaken
		}
		next = s
		next.p[i] = proc{life: crashed, instance: p.instance, lease: p.lease, request: p.request, by: p.by, ack: p.ack}
		b.fault("crashes", i, next)
	case frozen:
		next.p[i].life = up
		if without != deadline && !p.lease {
			next.p[i].fit, next.p[i].running, next.p[i].old = false, 0, false
		}
		b.add("thaws", i, next)
	}
}
