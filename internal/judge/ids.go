package judge

import (
	"cmp"
	"fmt"
)

// judgeIDs goes through the calls of each id in the order of their starts: I1, I3,
// and the part of I2 that nothing is handled that was not pushed.
func (t *table) judgeIDs(v *Verdict, l *ledger) {
	order := t.sorted(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.start, b.start))
	})
	var s *idState
	for n, i := range order {
		c := &t.calls[i]
		if n == 0 || t.calls[order[n-1]].key != c.key {
			queue, _ := splitKey(t.keys.list[c.key])
			s = &idState{t: t, v: v, l: l, latest: l.latest[queue], low: l.begin[c.key], longest: -1, last: -1, top: -1}
		}
		s.overlap(i)
		s.present(i)
		s.twice(i)
		s.sorted(i)
		s.overtaken(i)
		s.wentBack(i)
		if c.outcome == succeeded {
			s.handled(i)
		}
	}
}

// idState is one id at the start of a call.
type idState struct {
	t *table
	v *Verdict
	l *ledger

	latest  bool    // later pushes take the place of those that wait
	longest int32   // the call so far that ended last
	last    int32   // the latest call that succeeded
	top     int32   // its entry with the highest score
	low     int32   // entries of the id below low are settled
	found   []int32 // entries of the call at hand, in its order
}

func (s *idState) overlap(i int32) {
	c := &s.t.calls[i]
	if o := s.longest; o >= 0 && c.start < s.t.calls[o].end {
		s.v.fault(Overlap, func() (string, []string) {
			return "two calls of one id at once", []string{s.t.describe(o), s.t.describe(i)}
		})
	}
	if s.longest < 0 || s.t.calls[s.longest].end < c.end {
		s.longest = i
	}
}

// present looks up what the call has.
func (s *idState) present(i int32) {
	c := &s.t.calls[i]
	s.found = s.found[:0]
	for _, p := range s.t.payloadsOf(c) {
		e := s.l.find(c.key, p)
		if e < 0 {
			s.v.fault(Unknown, func() (string, []string) {
				return fmt.Sprintf("a payload with score %v and digest %x was never pushed", p.score, p.digest), []string{s.t.describe(i)}
			})
			continue
		}
		s.l.entries[e].stamp = i
		s.found = append(s.found, e)
	}
}

// twice: payloads of an id that wait together are a set, whatever their scores were.
func (s *idState) twice(i int32) {
	payloads := s.t.payloadsOf(&s.t.calls[i])
	if len(payloads) < 2 {
		return
	}
	seen := make(map[uint64]bool, len(payloads))
	for _, p := range payloads {
		if seen[p.digest] {
			s.v.fault(Repeated, func() (string, []string) {
				return fmt.Sprintf("a payload twice in one call, with digest %x", p.digest), []string{s.t.describe(i)}
			})
			return
		}
		seen[p.digest] = true
	}
}

// sorted: scores ascend, and equal ones are in the order of their pushes, which is that
// of their entries. It is not known which push gave a payload its place if there were
// several, or if it came back from the morgue.
func (s *idState) sorted(i int32) {
	placed := int32(-1) // the latest payload whose place is known
	for n, f := range s.found {
		e := &s.l.entries[f]
		if n > 0 && e.score < s.l.entries[s.found[n-1]].score {
			s.reportUnsorted(i, s.found[n-1], f)
			return
		}
		if e.again || e.optional {
			continue
		}
		if f < placed {
			s.reportUnsorted(i, placed, f)
			return
		}
		placed = f
	}
}

func (s *idState) reportUnsorted(i, before, after int32) {
	b, a := s.l.entries[before], s.l.entries[after]
	s.v.fault(Unsorted, func() (string, []string) {
		return fmt.Sprintf("score %v of push %d after score %v of push %d in one call", a.score, a.order+1, b.score, b.order+1),
			[]string{s.t.describe(i)}
	})
}

// overtaken looks for a payload that was pushed before one of the call, has a lower or
// equal score, and is neither handled nor in the call. low makes it linear in all calls.
func (s *idState) overtaken(i int32) {
	if s.latest {
		return // what is missing may have been replaced; judgeLost knows whether it may be
	}
	highest := int32(-1)
	for _, f := range s.found {
		highest = max(highest, f)
	}
	missing := int32(-1) // of those passed, the one pushed first
	for n := s.low; n <= highest; n++ {
		e := &s.l.entries[n]
		switch {
		case e.stamp == i:
			if missing >= 0 && s.l.entries[missing].order < e.order {
				s.reportOvertaken(i, missing, n)
				return
			}
		case s.settled(n):
			if n == s.low {
				s.low++
			}
		case !s.with(n, i) && (missing < 0 || e.order < s.l.entries[missing].order):
			missing = n
		}
	}
}

func (s *idState) reportOvertaken(i, missing, by int32) {
	m, e := s.l.entries[missing], s.l.entries[by]
	s.v.fault(Overtaken, func() (string, []string) {
		return fmt.Sprintf("score %v was handled before %v, which was pushed first", e.score, m.score), []string{s.t.describe(i)}
	})
	for n := s.low; n < by; n++ {
		s.l.entries[n].excused = true
	}
}

// settled: an entry that nothing can overtake any more.
func (s *idState) settled(n int32) bool {
	e := &s.l.entries[n]
	return e.optional || e.excused || s.l.done(s.t, n)
}

// with tells whether a call has the entry, or what it was merged with.
func (s *idState) with(n, call int32) bool {
	for e := range s.l.twins(n) {
		if e.stamp == call {
			return true
		}
	}
	return false
}

// wentBack: a payload that was handled and not pushed again may only come back
// with the id's last successful call, whose ack was lost, and not without that
// call's highest payload, or older effects would be the last.
func (s *idState) wentBack(i int32) {
	for _, f := range s.found {
		e := &s.l.entries[f]
		if e.spent < e.equals || s.repeats(e, i) {
			continue
		}
		s.v.fault(WentBack, func() (string, []string) {
			return fmt.Sprintf("score %v came back after a later one was handled", e.score),
				[]string{s.t.describe(e.last), s.t.describe(s.last), s.t.describe(i)}
		})
		return
	}
}

// repeats tells whether a call may have an entry because it repeats the last one.
func (s *idState) repeats(e *entry, call int32) bool {
	return e.last >= 0 && e.last == s.last && s.with(s.top, call)
}

func (s *idState) handled(i int32) {
	c := &s.t.calls[i]
	for _, f := range s.found {
		e := &s.l.entries[f]
		s.v.Handled++
		if !s.repeats(e, i) {
			e.spent++
		}
		if e.last < 0 {
			s.v.Distinct++
		} else if before := &s.t.calls[e.last]; s.t.diedBetween(before.process, before.end, c.start) {
			e.caused++
		}
		e.handled++
	}
	for _, f := range s.found {
		s.l.entries[f].last, s.last, s.top = i, i, f
	}
}

// repeats counts what was handled more often than it was pushed, and how much of
// that no death explains. Which of several calls was the repeat is not known.
func (v *Verdict) repeats(l *ledger) {
	for i := range l.entries {
		e := &l.entries[i]
		if more := int(e.handled - e.equals); more > 0 {
			v.Duplicates += more
			v.Uncaused += max(0, more-int(e.caused))
		}
	}
}

// done: the payload of an entry was handled, by itself or merged with an equal one
// of a smaller score, in a call that started after it was pushed.
func (l *ledger) done(t *table, n int32) bool {
	at := l.entries[n].at
	for e := range l.twins(n) {
		if e.last >= 0 && t.calls[e.last].start >= at {
			return true
		}
	}
	return false
}

// judgeLost checks I2: every pushed payload was handled.
func (v *Verdict) judgeLost(t *table, l *ledger) {
	replaced := l.replaced(t)
	for n := range l.entries {
		e := &l.entries[n]
		if e.optional || l.done(t, int32(n)) {
			continue
		}
		queue, id := splitKey(t.keys.list[e.key])
		if l.latest[queue] && replaced[n] {
			v.Replaced++
			continue
		}
		v.fault(Lost, func() (string, []string) {
			return fmt.Sprintf("queue %s, id %q, score %v, push %d: never handled", queue, id, e.score, e.order+1), nil
		})
	}
}

// replaced tells of each entry whether a call that started after it was pushed had a payload of its id with no lower score.
func (l *ledger) replaced(t *table) []bool {
	if len(l.latest) == 0 {
		return nil
	}
	all, latest := make([]bool, len(l.entries)), int64(0)
	for end := len(l.entries); end > 0; {
		e := &l.entries[end-1]
		begin := end // of the entries with this id and score
		for ; begin > 0 && l.entries[begin-1].key == e.key && l.entries[begin-1].score == e.score; begin-- {
			if last := l.entries[begin-1].last; last >= 0 {
				latest = max(latest, t.calls[last].start)
			}
		}
		for n := begin; n < end; n++ {
			all[n] = latest > 0 && latest >= l.entries[n].at
		}
		if begin > 0 && l.entries[begin-1].key != e.key {
			latest = 0
		}
		end = begin
	}
	return all
}
