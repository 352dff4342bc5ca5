package judge

import (
	"cmp"
	"fmt"
)

// judgeIDs checks the calls of each id in the order of their starts. It checks I1 and I3, and the part of I2 that only
// pushed payloads are handled.
func (t *table) judgeIDs(v *Verdict, l *ledger) {
	order := t.sortCalls(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.start, b.start))
	})
	var s *idState
	for n, i := range order {
		c := &t.calls[i]
		if n == 0 || t.calls[order[n-1]].key != c.key {
			queue, _ := splitKey(t.keys.list[c.key])
			s = &idState{t: t, v: v, l: l, latest: l.latest[queue], low: l.begin[c.key], longest: -1, last: -1, top: -1}
		}
		s.checkOverlap(i)
		s.findEntries(i)
		s.checkTwice(i)
		s.checkOrder(i)
		s.checkOvertaken(i)
		s.wentBack(i)
		if c.outcome == succeeded {
			s.markHandled(i)
		}
	}
}

// idState is the state of an id at the start of a call.
type idState struct {
	t *table
	v *Verdict
	l *ledger

	latest  bool    // later pushes replace waiting pushes
	longest int32   // the earlier call with the latest end
	last    int32   // the latest call that succeeded
	top     int32   // the entry of that call with the highest score
	low     int32   // entries of the id below low are settled
	found   []int32 // entries of the current call, in its order
}

// checkOverlap reports a call that begins before the end of an earlier call of its id. Calls come by their starts, so a
// comparison with the latest end is enough.
func (s *idState) checkOverlap(i int32) {
	c := &s.t.calls[i]
	if o := s.longest; o >= 0 && c.start < s.t.calls[o].end {
		s.v.addFault(Overlap, func() (string, []string) {
			return "two calls of one id at once", []string{s.t.describe(o), s.t.describe(i)}
		})
	}
	if s.longest < 0 || s.t.calls[s.longest].end < c.end {
		s.longest = i
	}
}

// findEntries finds the entries of the call's payloads.
func (s *idState) findEntries(i int32) {
	c := &s.t.calls[i]
	s.found = s.found[:0]
	for _, p := range s.t.payloadsOf(c) {
		e := s.l.findEntry(c.key, p)
		if e < 0 {
			s.v.addFault(Unknown, func() (string, []string) {
				return fmt.Sprintf("a payload with score %v and digest %x was never pushed", p.score, p.digest), []string{s.t.describe(i)}
			})
			continue
		}
		s.l.entries[e].stamp = i
		s.found = append(s.found, e)
	}
}

// checkTwice reports a payload that occurs twice in a call. Payloads of an id that wait together are a set, whatever their
// scores are.
func (s *idState) checkTwice(i int32) {
	payloads := s.t.payloadsOf(&s.t.calls[i])
	if len(payloads) < 2 {
		return
	}
	seen := make(map[uint64]bool, len(payloads))
	for _, p := range payloads {
		if seen[p.digest] {
			s.v.addFault(Repeated, func() (string, []string) {
				return fmt.Sprintf("a payload twice in one call, with digest %x", p.digest), []string{s.t.describe(i)}
			})
			return
		}
		seen[p.digest] = true
	}
}

// checkOrder checks that scores ascend and that equal scores are in the order of their pushes, which is the order of their
// entries. The push that gave a payload its place is not known if it was pushed several times or came back from the morgue.
func (s *idState) checkOrder(i int32) {
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
	s.v.addFault(Unsorted, func() (string, []string) {
		return fmt.Sprintf("score %v of push %d after score %v of push %d in one call", a.score, a.order+1, b.score, b.order+1),
			[]string{s.t.describe(i)}
	})
}

// checkOvertaken looks for a payload that was pushed before a payload of the call with at most its score, and that is
// neither handled nor in the call. low makes the work linear in all calls.
func (s *idState) checkOvertaken(i int32) {
	if s.latest {
		return // a missing payload may have been replaced, which judgeLost checks
	}
	highest := int32(-1)
	for _, f := range s.found {
		highest = max(highest, f)
	}
	missing := int32(-1) // the first pushed of the passed entries that are missing
	for n := s.low; n <= highest; n++ {
		e := &s.l.entries[n]
		switch {
		case e.stamp == i:
			if missing >= 0 && s.l.entries[missing].order < e.order {
				s.reportOvertaken(i, missing, n)
				return
			}
		case s.isSettled(n):
			if n == s.low {
				s.low++
			}
		case !s.hasEntry(n, i) && (missing < 0 || e.order < s.l.entries[missing].order):
			missing = n
		}
	}
}

// reportOvertaken reports a payload, by, that was handled before the missing payload. It excuses all entries below by, so a
// gap is reported once.
func (s *idState) reportOvertaken(i, missing, by int32) {
	m, e := s.l.entries[missing], s.l.entries[by]
	s.v.addFault(Overtaken, func() (string, []string) {
		return fmt.Sprintf("score %v was handled before %v, which was pushed first", e.score, m.score), []string{s.t.describe(i)}
	})
	for n := s.low; n < by; n++ {
		s.l.entries[n].excused = true
	}
}

// isSettled reports whether nothing can overtake an entry any more.
func (s *idState) isSettled(n int32) bool {
	e := &s.l.entries[n]
	return e.optional || e.excused || s.l.isDone(s.t, n)
}

// hasEntry reports whether a call has the entry, or the payload that the entry was merged with.
func (s *idState) hasEntry(n, call int32) bool {
	for e := range s.l.eachTwin(n) {
		if e.stamp == call {
			return true
		}
	}
	return false
}

// wentBack reports a repeat of an earlier call. A handled payload that was not pushed again may only come back with the last
// successful call of its id, whose ack was lost. That call's highest payload must come back with it. Otherwise the effects
// of older payloads would be the last.
func (s *idState) wentBack(i int32) {
	for _, f := range s.found {
		e := &s.l.entries[f]
		if e.spent < e.equals || s.isRepeat(e, i) {
			continue
		}
		s.v.addFault(WentBack, func() (string, []string) {
			return fmt.Sprintf("score %v came back after a later one was handled", e.score),
				[]string{s.t.describe(e.last), s.t.describe(s.last), s.t.describe(i)}
		})
		return
	}
}

// isRepeat reports whether a call may have an entry because it repeats the last successful call.
func (s *idState) isRepeat(e *entry, call int32) bool {
	return e.last >= 0 && e.last == s.last && s.hasEntry(s.top, call)
}

// markHandled counts the entries of a successful call as handled. A repeat of the last successful call uses up no push.
func (s *idState) markHandled(i int32) {
	c := &s.t.calls[i]
	for _, f := range s.found {
		e := &s.l.entries[f]
		s.v.Handled++
		if !s.isRepeat(e, i) {
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

// countRepeats counts payloads that were handled more often than they were pushed, and those among them without a death that
// explains it. It is not known which of several calls was the repeat.
func (v *Verdict) countRepeats(l *ledger) {
	for i := range l.entries {
		e := &l.entries[i]
		if more := int(e.handled - e.equals); more > 0 {
			v.Duplicates += more
			v.Uncaused += max(0, more-int(e.caused))
		}
	}
}

// isDone reports whether the payload of an entry was handled, by itself or merged with an equal payload of a smaller score,
// in a call that started after its push.
func (l *ledger) isDone(t *table, n int32) bool {
	at := l.entries[n].at
	for e := range l.eachTwin(n) {
		if e.last >= 0 && t.calls[e.last].start >= at {
			return true
		}
	}
	return false
}

// judgeLost checks I2: every pushed payload was handled.
func (v *Verdict) judgeLost(t *table, l *ledger) {
	replaced := l.findReplaced(t)
	for n := range l.entries {
		e := &l.entries[n]
		if e.optional || l.isDone(t, int32(n)) {
			continue
		}
		queue, id := splitKey(t.keys.list[e.key])
		if l.latest[queue] && replaced[n] {
			v.Replaced++
			continue
		}
		v.addFault(Lost, func() (string, []string) {
			return fmt.Sprintf("queue %s, id %q, score %v, push %d: never handled", queue, id, e.score, e.order+1), nil
		})
	}
}

// findReplaced returns for each entry whether a call that started after its push had a payload of its id with at least its
// score.
func (l *ledger) findReplaced(t *table) []bool {
	if len(l.latest) == 0 {
		return nil
	}
	all, latest := make([]bool, len(l.entries)), int64(0)
	for end := len(l.entries); end > 0; {
		e := &l.entries[end-1]
		begin := end // the first entry with this id and score
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
