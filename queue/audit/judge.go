package audit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The rules that hold for an id, apart from I/O.

// header is the beginning of a record. The zero value means that there is no record.
type header struct {
	form  byte  // a, e, j, p, s or x as in lua/lib/record.lua; '?' if it cannot be read
	retry int   // retry count
	at    int64 // due time, us
	since int64 // since when a postponed job waits, us; 0 if it was not postponed
	n     int   // payloads
}

func (h header) exists() bool { return h.form != 0 }
func (h header) isJob() bool  { return h.form != 0 && h.form != 'x' && h.form != '?' }

// headerOf parses a record, or its first 120 bytes.
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

// place is the time of an id in a sorted set, if it is in the set.
type place struct {
	in bool
	at int64
}

// idFacts is everything that the keys of a shard say about an id.
type idFacts struct {
	id                             string
	record, parked, dead           header
	due, retry, blocked, deadPlace place
	ready, suspects, flight        int // numbers of entries; ready is -1 if it was not read
	crashes                        bool
	stale                          bool  // workers skip one of its entries in ready
	urgent                         place // marked as urgent, and since when it is due, or a negative number
	late                           bool  // counted as failed and due
	postponed                      place // marked as postponed, and since when it waits
	spilled, spilledDead           int   // payloads in the spill; a sweep does not count them
	state, dated, noted            bool  // it has a state; the time of the state is known; it has progress
	broken                         []broken
}

// broken is a record that cannot be decoded, and the hash where it is.
type broken struct{ within, record string }

// finding is a fault of an id.
type finding struct {
	kind FaultKind
	what string
}

// isElsewhere reports whether the id is in flight, or waits somewhere besides ready.
func (t *idFacts) isElsewhere() bool {
	return t.due.in || t.retry.in || t.blocked.in || t.suspects > 0 || t.flight > 0 || t.urgent.in && t.urgent.at >= 0
}

// listPlaces returns the names of the lists where the id waits or is in flight.
func (t *idFacts) listPlaces() (names []string) {
	ready := t.ready
	if t.stale && t.isElsewhere() && ready > 0 {
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
	}{{"urgent", t.urgent.in && t.urgent.at >= 0}, {"due", t.due.in}, {"retry", t.retry.in}, {"blocked", t.blocked.in}} {
		if set.in {
			names = append(names, set.name)
		}
	}
	return names
}

// findFaults returns the faults of an id. A sound id has one record and is in one place (I2).
func (t *idFacts) findFaults() (found []finding) {
	add := func(kind FaultKind, format string, args ...any) {
		found = append(found, finding{kind, fmt.Sprintf(format, args...)})
	}
	places := t.listPlaces()
	in := strings.Join(places, " and ")
	switch {
	case !t.record.exists() && len(places) > 0:
		add(NoRecord, "it is in %s and has no record", in)
	case t.record.form == 'x' && len(places) == 0:
		add(LoneTomb, "it was deleted and its mark is in no list")
	case t.record.form == 'x' && in != "ready":
		add(TwoPlaces, "it was deleted and is in %s, want its mark in ready once", in)
	case t.record.isJob() && len(places) == 0:
		add(NoEntry, "it has a record and is in no list, so it never runs")
	case t.record.form != 'x' && len(places) > 1:
		add(TwoPlaces, "it is in %s, want one of them", in)
	}
	if elsewhere := t.isElsewhere(); t.stale && (!elsewhere || t.ready == 0) {
		add(StaleMark, "workers skip an entry of it in ready as if it were elsewhere; it has %d entries there, elsewhere: %t", max(0, t.ready), elsewhere)
	}
	if t.urgent.in && t.urgent.at < 0 && (!t.record.exists() || t.record.form == 'x') {
		add(UrgentMark, "it is marked as urgent and has no job")
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

// judgeLate checks the mark of a failed job that is due. The id must be in at most one place.
// Nothing is known about a damaged record.
func (t *idFacts) judgeLate(places []string, add func(FaultKind, string, ...any)) {
	turn := slices.Contains(places, "ready") || slices.Contains(places, "urgent") || slices.Contains(places, "suspects")
	want := turn && t.record.isJob() && t.record.retry >= 0
	if t.late != want && t.record.form != '?' {
		add(LateMark, "counted as failed and due: %t; due: %t, retry count %d", t.late, turn, t.record.retry)
	}
}

// judgePostponed checks the mark of a postponed job. The id must be in at most one place.
func (t *idFacts) judgePostponed(places []string, add func(FaultKind, string, ...any)) {
	waits := len(places) > 0 && places[0] != "flight" && places[0] != "blocked"
	want := place{}
	if waits && t.record.isJob() && t.record.since > 0 && t.record.at < protocol.HeldAt.UnixMicro() {
		want = place{true, t.record.since}
	}
	if t.postponed != want && t.record.form != '?' {
		add(PostponedMark, "marked as postponed: %t, waiting since %d us; its record says %d us", t.postponed.in, t.postponed.at, t.record.since)
	}
}

func (t *idFacts) judgeTimes(add func(FaultKind, string, ...any)) {
	if !t.record.isJob() {
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

// judgeSides checks what exists beside a job: parked payloads, quarantine, the morgue.
func (t *idFacts) judgeSides(add func(FaultKind, string, ...any)) {
	if t.parked.exists() && t.flight == 0 {
		add(ParkedAlone, "payloads were pushed during a flight that is over, and were left behind")
	}
	if t.suspects > 0 && !t.crashes {
		add(SuspectUncounted, "it is in quarantine and its crashes are not counted")
	}
	if t.crashes && t.suspects == 0 && t.flight == 0 {
		add(CrashLeft, "its crashes are counted and it is neither in quarantine nor in flight, so the shard may wait for it for ever")
	}
	if t.dead.exists() && !t.deadPlace.in {
		add(DeadUnlisted, "it is in the morgue and not in the morgue's list")
	}
	if t.deadPlace.in && !t.dead.exists() {
		add(DeadUnrecorded, "it is in the morgue's list and not in the morgue")
	}
}

// judgeKept checks the state and the progress of an id.
func (t *idFacts) judgeKept(add func(FaultKind, string, ...any)) {
	if t.state && !t.dated {
		add(StateUndated, "it has a state without a time, so it would be kept for ever")
	}
	if t.dated && !t.state {
		add(StateLeft, "it is listed with a state and has none")
	}
	if t.noted && t.flight == 0 {
		add(NoteLeft, "it has progress and is not in flight")
	}
}

// judgeSpill compares the number of payloads in the records of crowded ids with the number in the
// spill.
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

// faultKinds returns the kinds of faults of an id.
func (t *idFacts) faultKinds() (kinds []FaultKind) {
	for _, v := range t.findFaults() {
		kinds = append(kinds, v.kind)
	}
	return kinds
}

// weighFaults checks an id whose entries in ready were not counted. It tries no, one and two
// entries. It returns the faults that the id has in any case, and the faults that it may have.
func (t *idFacts) weighFaults() (sure, maybe []FaultKind) {
	for n := range 3 {
		guess := *t
		guess.ready = n
		kinds := guess.faultKinds()
		if n == 0 {
			sure = kinds
		}
		sure = slices.DeleteFunc(slices.Clone(sure), func(k FaultKind) bool { return !slices.Contains(kinds, k) })
		maybe = append(maybe, kinds...)
	}
	return sure, maybe
}

// soundFence reports whether the next claim can increase the fence of a claim.
func soundFence(claim map[string]string) bool {
	text, ok := claim["fence"]
	if !ok && claim["instance"] == "" {
		return true // no instance has claimed it
	}
	fence, err := strconv.ParseInt(text, 10, 64)
	// Beyond 2^53 the scripts could not add 1, and the fence would no longer grow.
	return err == nil && fence >= 1 && fence < 1<<53
}

// judgeClaim returns the faults of a claim and its flights.
func judgeClaim(claim map[string]string, flying int) (found []finding) {
	add := func(kind FaultKind, format string, args ...any) {
		found = append(found, finding{kind, fmt.Sprintf(format, args...)})
	}
	if !soundFence(claim) {
		add(ClaimDamaged, "the fence is %q and must be a number from 1 to 2^53; no node can claim the shard", claim["fence"])
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
			add(ClaimDamaged, "flight %q has %q ids and the last pop was %d", text, claim[field], last)
			continue
		}
		open += n
	}
	switch {
	case claim["instance"] == "" && (flying > 0 || open > 0):
		add(FlightUnowned, "%d ids are in flight and no instance owns the shard", flying)
	case open != flying:
		add(FlightCount, "the claim counts %d ids in flight, but there are %d; the next claim or release corrects it, so drain the node", open, flying)
	}
	return found
}
