package audit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/queue"
)

// What must hold of one id: the decision, apart from its I/O.

// header is what the beginning of a record says. The zero value: there is none.
type header struct {
	form  byte  // a, e, j, p, s or x as in lua/lib/record.lua; '?' if it cannot be read
	retry int   // retry count
	at    int64 // due time, us
	since int64 // since when a job waits that was put off, us; 0: it was not
	n     int   // payloads
}

func (h header) there() bool { return h.form != 0 }
func (h header) job() bool   { return h.form != 0 && h.form != 'x' && h.form != '?' }

// headerOf reads a record or the first 120 bytes of it.
func headerOf(record string) header {
	switch {
	case record == "":
		return header{}
	case record == "x":
		return header{form: 'x'}
	case record[0] == 'a' && len(record) >= 10, record[0] == 'e' && len(record) >= 16:
		return header{form: record[0], retry: -1, at: packed.Micros(record[1:]), n: 1}
	}
	line, _, ok := strings.Cut(record[1:], "\n")
	n, err := packed.HeadWords(record[0], line)
	if !ok || err != nil || !strings.Contains("jps", record[:1]) {
		return header{form: '?'}
	}
	return header{form: record[0], retry: int(n[0]), at: n[1], n: int(n[2]), since: n[6]}
}

// place is a time in a sorted set, if the id is in it.
type place struct {
	in bool
	at int64
}

// idFacts is all that the keys of a shard say of one id.
type idFacts struct {
	id                             string
	record, parked, dead           header
	due, retry, blocked, deadPlace place
	ready, suspects, flight        int // entries; ready is -1 if it was not looked at
	crashes                        bool
	stale                          bool  // one of its entries in ready is to be passed over
	late                           bool  // counted as failed and due
	postponed                      place // noted as put off, and since when it waits
	spilled, spilledDead           int   // payloads in the spill; not known to a sweep
	state, dated, noted            bool  // it has a state, and when that was written is known; its handler has noted how far it is
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
func (t *idFacts) places() (names []string) {
	ready := t.ready
	if t.stale && (t.due.in || t.retry.in) && ready > 0 {
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
func (t *idFacts) judge() (found []finding) {
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
	if scheduled := t.due.in || t.retry.in; t.stale && (!scheduled || t.ready == 0) {
		add(StaleMark, "an entry of it in ready is to be passed over, because it is scheduled; it has %d entries there, scheduled: %t", max(0, t.ready), scheduled)
	}
	if len(found) == 0 {
		t.judgeLate(places, add)
		t.judgePostponed(places, add)
	}
	t.judgeTimes(add)
	t.judgeSides(add)
	t.judgeSpill(add)
	t.judgeKept(add)
	return found
}

// judgeLate looks at an id that is in one place, or nowhere. What a damaged record would say is
// unknown.
func (t *idFacts) judgeLate(places []string, add func(FaultKind, string, ...any)) {
	turn := slices.Contains(places, "ready") || slices.Contains(places, "suspects")
	want := turn && t.record.job() && t.record.retry >= 0
	if t.late != want && t.record.form != '?' {
		add(LateMark, "counted as failed and due: %t; its turn has come: %t, retry count %d", t.late, turn, t.record.retry)
	}
}

// judgePostponed looks at an id that is in one place, or nowhere.
func (t *idFacts) judgePostponed(places []string, add func(FaultKind, string, ...any)) {
	waits := len(places) > 0 && places[0] != "flight" && places[0] != "blocked"
	want := place{}
	if waits && t.record.job() && t.record.since > 0 && t.record.at < queue.HeldAt.UnixMicro() {
		want = place{true, t.record.since}
	}
	if t.postponed != want && t.record.form != '?' {
		add(PostponedMark, "noted as put off: %t, waiting since %d us; its record says %d us", t.postponed.in, t.postponed.at, t.record.since)
	}
}

func (t *idFacts) judgeTimes(add func(FaultKind, string, ...any)) {
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

// judgeSides looks at what stands beside a job: what was parked, quarantine, the morgue.
func (t *idFacts) judgeSides(add func(FaultKind, string, ...any)) {
	if t.parked.there() && t.flight == 0 {
		add(ParkedAlone, "payloads were pushed during a flight that is over, and wait for nothing")
	}
	if t.suspects > 0 && !t.crashes {
		add(SuspectUncounted, "it is in quarantine, and its crashes are not counted")
	}
	if t.crashes && t.suspects == 0 && t.flight == 0 {
		add(CrashLeft, "its crashes are counted, and it is neither in quarantine nor in flight: the shard may wait for it for ever")
	}
	if t.dead.there() && !t.deadPlace.in {
		add(DeadUnlisted, "it is in the morgue and not in the morgue's list")
	}
	if t.deadPlace.in && !t.dead.there() {
		add(DeadUnrecorded, "it is in the morgue's list and not in the morgue")
	}
}

// judgeKept looks at what handlers keep of an id.
func (t *idFacts) judgeKept(add func(FaultKind, string, ...any)) {
	if t.state && !t.dated {
		add(StateUndated, "it has a state, and nobody knows when that was written: it would be kept for ever")
	}
	if t.dated && !t.state {
		add(StateLeft, "it is listed as if it had a state, and has none")
	}
	if t.noted && t.flight == 0 {
		add(NoteLeft, "its handler has noted how far it is, and it is not in flight")
	}
}

// judgeSpill compares the payloads that crowded records count with those there are.
func (t *idFacts) judgeSpill(add func(FaultKind, string, ...any)) {
	waiting := 0
	for _, h := range []header{t.record, t.parked} {
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
func (t *idFacts) kinds() (kinds []FaultKind) {
	for _, v := range t.judge() {
		kinds = append(kinds, v.kind)
	}
	return kinds
}

// weigh judges an id whose ready entries were not looked at: the faults that it has in any
// case, and those that it may have.
func (t *idFacts) weigh() (sure, maybe []FaultKind) {
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

// soundFence reports whether the fields of a claim lead to a next one.
func soundFence(claim map[string]string) bool {
	text, ok := claim["fence"]
	if !ok && claim["instance"] == "" {
		return true // no instance ever had it
	}
	fence, err := strconv.ParseInt(text, 10, 64)
	// Beyond 2^53 the scripts could not add 1, and the fence would no longer grow.
	return err == nil && fence >= 1 && fence < 1<<53
}

// judgeClaim says what is wrong with a claim and its flights.
func judgeClaim(claim map[string]string, flying int) (found []finding) {
	add := func(kind FaultKind, format string, args ...any) {
		found = append(found, finding{kind, fmt.Sprintf(format, args...)})
	}
	if !soundFence(claim) {
		add(ClaimDamaged, "the fence is %q, want a number from 1 to 2^53: no node can claim the shard", claim["fence"])
	}
	last, _ := strconv.ParseInt(claim["pop"], 10, 64)
	open := 0
	for _, field := range slices.Sorted(maps.Keys(claim)) {
		text, ok := strings.CutPrefix(field, "#")
		if !ok {
			continue
		}
		number, err1 := strconv.ParseInt(text, 10, 64)
		n, err2 := strconv.Atoi(claim[field])
		if err1 != nil || err2 != nil || n < 1 || claim["instance"] != "" && number > last {
			add(ClaimDamaged, "flight %q has %q ids, and the last pop was %d", text, claim[field], last)
			continue
		}
		open += n
	}
	switch {
	case claim["instance"] == "" && (flying > 0 || open > 0):
		add(FlightUnowned, "%d ids are in flight, and nobody owns the shard", flying)
	case open != flying:
		add(FlightCount, "the claim counts %d ids in flight, there are %d; the next claim or release puts it right: drain the node", open, flying)
	}
	return found
}
