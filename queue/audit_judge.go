package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/packed"
)

// What must hold of one id: the decision, apart from its I/O.

// headline is what the beginning of a record says. The zero value: there is none.
type headline struct {
	form  byte  // a, e, j, p, s or x as in lua/lib/record.lua; '?' if it cannot be read
	retry int   // retry count
	at    int64 // due time, us
	n     int   // payloads
}

func (h headline) there() bool { return h.form != 0 }
func (h headline) job() bool   { return h.form != 0 && h.form != 'x' && h.form != '?' }

// headlineOf reads a record or the first 120 bytes of it.
func headlineOf(record string) headline {
	switch {
	case record == "":
		return headline{}
	case record == "x":
		return headline{form: 'x'}
	case record[0] == 'a' && len(record) >= 10, record[0] == 'e' && len(record) >= 16:
		return headline{form: record[0], retry: -1, at: packed.Micros(record[1:]), n: 1}
	}
	line, _, ok := strings.Cut(record[1:], "\n")
	n, err := packed.HeadWords(record[0], line)
	if !ok || err != nil || !strings.Contains("jps", record[:1]) {
		return headline{form: '?'}
	}
	return headline{form: record[0], retry: int(n[0]), at: n[1], n: int(n[2])}
}

// place is a time in a sorted set, if the id is in it.
type place struct {
	in bool
	at int64
}

// trace is all that the keys of a shard say of one id.
type trace struct {
	id                             string
	record, parked, dead           headline
	due, retry, blocked, deadPlace place
	ready, suspects, flight        int // entries; ready is -1 if it was not looked at
	crashes                        bool
	stale                          bool // one of its entries in ready is to be passed over
	late                           bool // counted as failed and due
	spilled, spilledDead           int  // payloads in the spill; not known to a sweep
	broken                         []broken
}

// broken is a record that cannot be decoded.
type broken struct{ within, record string }

// finding is a fault of an id.
type finding struct {
	kind FaultKind
	what string
}

// places names where the id waits or flies.
func (t *trace) places() (names []string) {
	ready := t.ready
	if t.stale && t.due.in && ready > 0 {
		ready--
	}
	for _, list := range []struct {
		name string
		n    int
	}{{"ready", ready}, {"suspects", t.suspects}, {"flight", t.flight}} {
		for range list.n {
			names = append(names, list.name)
		}
	}
	for _, set := range []struct {
		name string
		in   bool
	}{{"due", t.due.in}, {"retry", t.retry.in}, {"blocked", t.blocked.in}} {
		if set.in {
			names = append(names, set.name)
		}
	}
	return names
}

// judge says what is wrong with an id: one record, one place (I2).
func (t *trace) judge() (found []finding) {
	add := func(kind FaultKind, format string, args ...any) {
		found = append(found, finding{kind, fmt.Sprintf(format, args...)})
	}
	places := t.places()
	in := strings.Join(places, " and ")
	switch {
	case !t.record.there() && len(places) > 0:
		add(NoRecord, "it is in %s and has no record", in)
	case t.record.form == 'x' && len(places) == 0:
		add(LoneTomb, "it was deleted, and its mark is in no list")
	case t.record.form == 'x' && in != "ready":
		add(TwoPlaces, "it was deleted and is in %s, want its mark in ready once", in)
	case t.record.job() && len(places) == 0:
		add(NoEntry, "it has a record and is in no list, so it never runs")
	case t.record.form != 'x' && len(places) > 1:
		add(TwoPlaces, "it is in %s, want one of them", in)
	}
	if t.stale && (!t.due.in || t.ready == 0) {
		add(StaleMark, "an entry of it in ready is to be passed over, because it is scheduled; it has %d entries there, scheduled: %t", max(0, t.ready), t.due.in)
	}
	if len(found) == 0 {
		t.judgeLate(places, add)
	}
	t.judgeTimes(add)
	t.judgeSides(add)
	t.judgeSpill(add)
	return found
}

// judgeLate looks at an id that is in one place, or nowhere. What a damaged record would say nobody knows.
func (t *trace) judgeLate(places []string, add func(FaultKind, string, ...any)) {
	turn := slices.Contains(places, "ready") || slices.Contains(places, "suspects")
	want := turn && t.record.job() && t.record.retry >= 0
	if t.late != want && t.record.form != '?' {
		add(LateMark, "counted as failed and due: %t; its turn has come: %t, retry count %d", t.late, turn, t.record.retry)
	}
}

func (t *trace) judgeTimes(add func(FaultKind, string, ...any)) {
	if !t.record.job() {
		return
	}
	for _, set := range []struct {
		name  string
		place place
		retry bool
	}{{"due", t.due, false}, {"retry", t.retry, true}} {
		if set.place.in && (set.place.at != t.record.at || set.retry != (t.record.retry >= 0)) {
			add(WrongTime, "it is in %s for %d us, its record says %d us and retry count %d", set.name, set.place.at, t.record.at, t.record.retry)
		}
	}
}

// judgeSides looks at what stands beside a job: what was parked, probation, the morgue.
func (t *trace) judgeSides(add func(FaultKind, string, ...any)) {
	if t.parked.there() && t.flight == 0 {
		add(ParkedAlone, "payloads were pushed during a flight that is over, and wait for nothing")
	}
	if t.suspects > 0 && !t.crashes {
		add(SuspectUncounted, "it is on probation, and its crashes are not counted")
	}
	if t.crashes && t.suspects == 0 && t.flight == 0 {
		add(CrashLeft, "its crashes are counted, and it is neither on probation nor in flight: the shard may wait for it for ever")
	}
	if t.dead.there() && !t.deadPlace.in {
		add(DeadUnlisted, "it is in the morgue and not in the morgue's list")
	}
	if t.deadPlace.in && !t.dead.there() {
		add(DeadUnrecorded, "it is in the morgue's list and not in the morgue")
	}
}

// judgeSpill compares the payloads that crowded records count with those there are.
func (t *trace) judgeSpill(add func(FaultKind, string, ...any)) {
	waiting := 0
	for _, h := range []headline{t.record, t.parked} {
		if h.form == 's' {
			waiting += h.n
		}
	}
	if (t.record.form == 's' || t.parked.form == 's') && waiting != t.spilled {
		add(SpillCount, "its record counts %d payloads, the spill has %d", waiting, t.spilled)
	}
	if t.dead.form == 's' && t.dead.n != t.spilledDead {
		add(SpillCount, "its record in the morgue counts %d payloads, the spill has %d", t.dead.n, t.spilledDead)
	}
}

// kinds are the kinds of faults of an id.
func (t *trace) kinds() (kinds []FaultKind) {
	for _, v := range t.judge() {
		kinds = append(kinds, v.kind)
	}
	return kinds
}

// weigh judges an id whose ready entries were not looked at: the faults that it has in any
// case, and those that it may have.
func (t *trace) weigh() (sure, maybe []FaultKind) {
	for n := range 3 {
		guess := *t
		guess.ready = n
		kinds := guess.kinds()
		if n == 0 {
			sure = kinds
		}
		sure = slices.DeleteFunc(slices.Clone(sure), func(k FaultKind) bool { return !slices.Contains(kinds, k) })
		maybe = append(maybe, kinds...)
	}
	return sure, maybe
}
