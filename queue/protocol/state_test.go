package protocol_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/packed"
)

// state is everything that Redis stores of a shard, read without the queue's own code.
type state struct {
	jobs, parked, morgue map[string]*modelJob
	crowded              map[string]bool // "w"/"m" + id whose payloads are in the spill
	tombs, stale, late   map[string]bool
	ready, suspects      []string
	due, retry, blocked  map[string]int64
	dead                 map[string]int64
	flight               map[string]int64
	crashes              map[string]int
	count, claim         map[string]string
	runs                 []string // of the journal, oldest first, as sketched
	entries              int      // of the journal
	states, notes, from  map[string]string
	stated               map[string]int64 // when they were written
	since                map[string]int64 // when ids were pushed first that pushes put off
	postponed            map[string]int64 // since when ids wait that were put off
	urgent               map[string]int64 // scores of urgent ids
}

// raw has the shard's keys as Redis returned them.
type raw struct {
	jobs, parked, morgue, crashes, count, claim, spillx, stale, late, states, progress, from *redis.MapStringStringCmd
	ready, suspects, spill, flight                                                           *redis.StringSliceCmd
	journal                                                                                  *redis.XMessageSliceCmd
	journalx                                                                                 *redis.StringSliceCmd
	due, retry, blocked, dead, statesx, since, postponed, urgent                             *redis.ZSliceCmd
}

func readRaw(s *Shard, ctx context.Context) (*raw, error) {
	pipe := s.DB().ForTests().Pipeline()
	k := s.Keys()
	r := &raw{
		jobs: pipe.HGetAll(ctx, k.Jobs), parked: pipe.HGetAll(ctx, k.Parked), morgue: pipe.HGetAll(ctx, k.Morgue),
		flight: pipe.LRange(ctx, k.Flight, 0, -1), crashes: pipe.HGetAll(ctx, k.Crashes), count: pipe.HGetAll(ctx, k.Count),
		claim: pipe.HGetAll(ctx, k.Claim), spillx: pipe.HGetAll(ctx, k.Spillx), stale: pipe.HGetAll(ctx, k.Stale), late: pipe.HGetAll(ctx, k.Late),
		ready: pipe.LRange(ctx, k.Ready, 0, -1), suspects: pipe.LRange(ctx, k.Suspects, 0, -1), spill: pipe.ZRange(ctx, k.Spill, 0, -1),
		due: pipe.ZRangeWithScores(ctx, k.Due, 0, -1), retry: pipe.ZRangeWithScores(ctx, k.Retry, 0, -1),
		journal: pipe.XRange(ctx, k.Journal, "-", "+"), journalx: pipe.LRange(ctx, k.Journalx, 0, -1), states: pipe.HGetAll(ctx, k.States), progress: pipe.HGetAll(ctx, k.Progress), from: pipe.HGetAll(ctx, k.From), statesx: pipe.ZRangeWithScores(ctx, k.Statesx, 0, -1),
		since: pipe.ZRangeWithScores(ctx, k.Since, 0, -1), postponed: pipe.ZRangeWithScores(ctx, k.Postponed, 0, -1), urgent: pipe.ZRangeWithScores(ctx, k.Urgent, 0, -1),
		blocked: pipe.ZRangeWithScores(ctx, k.Blocked, 0, -1), dead: pipe.ZRangeWithScores(ctx, k.Dead, 0, -1),
	}
	_, err := pipe.Exec(ctx)
	return r, err
}

// flightAt returns the flight of a place in the flight list. The claim has the number of ids of each
// flight, oldest first.
func flightAt(claim map[string]string, place int64) int64 {
	var flights []int64
	for field := range claim {
		if number, ok := strings.CutPrefix(field, "#"); ok {
			flights = append(flights, counter(number))
		}
	}
	slices.Sort(flights)
	for _, flight := range flights {
		if place -= counter(claim["#"+fmt.Sprint(flight)]); place < 0 {
			return flight
		}
	}
	return 0
}

// runsOf returns the runs of an entry of the journal, as model.SketchRuns does.
func runsOf(entry map[string]any) (sketches []string, err error) {
	text := func(field string) string { return fmt.Sprint(entry[field]) }
	runs, err := journal.Parse(text("l"), text("i"), time.Time{})
	if n := counter(text("n")); int(n) != len(runs) {
		err = errors.Join(err, fmt.Errorf("an entry of the journal has %d runs, and says %d", len(runs), n))
	}
	for i := range runs {
		sketches = append(sketches, sketch(runs[i:i+1]))
	}
	return sketches, err
}

// readState reads a shard and checks that its keys agree with each other.
func readState(s *Shard, ctx context.Context) (*state, error) {
	r, err := readRaw(s, ctx)
	if err != nil {
		return nil, err
	}
	return r.state()
}

func (r *raw) state() (*state, error) {
	st := &state{
		crowded: map[string]bool{}, tombs: map[string]bool{}, stale: map[string]bool{}, late: map[string]bool{},
		ready: r.ready.Val(), suspects: r.suspects.Val(),
		due: times(r.due.Val()), retry: times(r.retry.Val()), blocked: times(r.blocked.Val()), dead: times(r.dead.Val()),
		flight: map[string]int64{}, crashes: map[string]int{}, count: r.count.Val(), claim: r.claim.Val(),
		states: r.states.Val(), notes: r.progress.Val(), from: r.from.Val(), stated: times(r.statesx.Val()), since: times(r.since.Val()), postponed: times(r.postponed.Val()), urgent: times(r.urgent.Val()),
	}
	spill := newSpill(r.spill.Val(), r.spillx.Val())
	var faults []error
	read := func(space string, records map[string]string) map[string]*modelJob {
		jobs := map[string]*modelJob{}
		for id, record := range records {
			switch {
			case id == "": // keeps the hash a table
			case record == "x":
				st.tombs[id] = true
			default:
				job, err := spill.job(space, id, record)
				faults = append(faults, err)
				jobs[id] = job
				st.crowded[space+id] = record[0] == 's'
			}
		}
		return jobs
	}
	st.parked = read("w", r.parked.Val())
	st.jobs = read("w", r.jobs.Val())
	st.morgue = read("m", r.morgue.Val())
	for place, id := range r.flight.Val() {
		if st.flight[id] != 0 {
			faults = append(faults, fmt.Errorf("%q is in flight twice", id))
		}
		st.flight[id] = flightAt(st.claim, int64(place))
	}
	for _, entry := range r.journal.Val() {
		runs, err := runsOf(entry.Values)
		faults = append(faults, err)
		st.runs = append(st.runs, runs...)
		st.entries++
	}
	listed := int64(0)
	for _, row := range r.journalx.Val() {
		_, lines, _ := strings.Cut(row, " ")
		listed += counter(lines)
	}
	if listed != int64(len(st.runs)) {
		faults = append(faults, fmt.Errorf("journalx counts %d lines, there are %d: %q", listed, len(st.runs), r.journalx.Val()))
	}
	for id := range r.stale.Val() {
		st.stale[id] = true
	}
	for id := range r.late.Val() {
		st.late[id] = true
	}
	for id, n := range r.crashes.Val() {
		st.crashes[id], _ = strconv.Atoi(n)
	}
	return st, errors.Join(append(faults, spill.left(), st.check())...)
}

func times(zs []redis.Z) map[string]int64 {
	m := map[string]int64{}
	for _, z := range zs {
		m[z.Member.(string)] = int64(z.Score)
	}
	return m
}

// spill has the two structures of lua/lib/spill.lua. Entries that no record refers to are left in it.
type spill struct {
	members []string
	fields  map[string]string
}

func newSpill(members []string, fields map[string]string) *spill {
	return &spill{members: slices.Clone(members), fields: maps.Clone(fields)}
}

func (s *spill) left() error {
	if len(s.members)+len(s.fields) > 0 {
		return fmt.Errorf("the spill keeps %.200q and %.200q, which no record counts", s.members, fmt.Sprint(s.fields))
	}
	return nil
}

// job decodes a record with its payloads in push order, and checks its sums.
func (s *spill) job(space, id, record string) (*modelJob, error) {
	job, _, err := packed.Decode(id, record, nil)
	if err != nil {
		return nil, err
	}
	m := &modelJob{Retry: job.RetryCount, Err: job.Error, At: job.PerformAt.UnixMicro()}
	if !job.WaitingSince.Equal(job.PerformAt) {
		m.Since = job.WaitingSince.UnixMicro()
	}
	if record[0] == 's' {
		s.take(space+strconv.Itoa(len(id))+":"+id+":", m)
	} else {
		if m.Payloads, err = inPushOrder(record); err != nil {
			return nil, fmt.Errorf("job %q: %w", id, err)
		}
	}
	if record[0] == 'a' || record[0] == 'e' {
		return m, nil
	}
	var head lowkiq.Job
	_, n, err := packed.DecodeHead(record, &head)
	words := strings.Fields(record)
	if err != nil || n != len(m.Payloads) || words[3] != strconv.Itoa(m.Size()) {
		return m, fmt.Errorf("job %q: its record says %.80q, it has %d payloads of %d bytes", id, record, len(m.Payloads), m.Size())
	}
	if big := n > 32 || m.Size() > 4096; space == "m" && big && record[0] != 's' {
		return m, fmt.Errorf("dead job %q: form %c with %d payloads of %d bytes", id, record[0], n, m.Size())
	}
	return m, nil
}

func (s *spill) take(prefix string, job *modelJob) {
	s.members = slices.DeleteFunc(s.members, func(member string) bool {
		rest, ok := strings.CutPrefix(member, prefix)
		if !ok {
			return false
		}
		key, data := rest[:packed.KeyBytes], rest[packed.KeyBytes:]
		field := prefix + bareOf(data)
		if s.fields[field] != key {
			return false
		}
		delete(s.fields, field)
		job.Payloads = append(job.Payloads, modelPayload{Data: data, Score: packed.KeyScore(key)})
		return true
	})
}

// inPushOrder reads the payloads of a record that is not crowded, with their addresses. The record of a
// flight, form p, has them in the order of their keys.
func inPushOrder(record string) (list []modelPayload, err error) {
	if record[0] == 'a' || record[0] == 'e' {
		var job lowkiq.Job
		job, _, err = packed.Decode("", record, nil)
		return []modelPayload{{Data: record[map[byte]int{'a': 10, 'e': 16}[record[0]]:], Score: job.Payloads[0].Score}}, err
	}
	var job lowkiq.Job
	rest, n, err := packed.DecodeHead(record, &job)
	for range n {
		var one modelPayload
		size := 0
		if record[0] == 'p' {
			one.Score, size = packed.KeyScore(rest), int(binary.BigEndian.Uint32([]byte(rest[packed.KeyBytes:])))
			rest = rest[packed.KeyBytes+4:]
		} else if _, err := fmt.Sscanf(rest, "%g %d:", &one.Score, &size); err != nil {
			return nil, fmt.Errorf("payload %.40q: %w", rest, err)
		} else {
			rest = rest[strings.IndexByte(rest, ':')+1:]
		}
		one.Data, rest = rest[:size], rest[size:]
		list = append(list, one)
	}
	if rest != "" {
		return list, fmt.Errorf("%.40q follows the last payload", rest)
	}
	return list, err
}

// check checks the rules that hold in every shard at every moment.
func (st *state) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	places := map[string][]string{}
	passed := map[string]bool{}
	for _, id := range st.ready {
		if st.stale[id] && !passed[id] {
			passed[id] = true // a left entry is no place
		} else {
			places[id] = append(places[id], "ready")
		}
	}
	for id, score := range st.urgent {
		if score >= 0 {
			places[id] = append(places[id], "urgent")
		}
		if job := st.jobs[id]; job == nil || score >= 0 && (score < job.At || score > job.At+1000) {
			fault("urgent %q: score %d, job %v", id, score, job)
		}
	}
	for _, id := range st.suspects {
		places[id] = append(places[id], "suspects")
	}
	for name, set := range map[string]map[string]int64{"due": st.due, "retry": st.retry, "blocked": st.blocked, "flight": st.flight} {
		for id := range set {
			places[id] = append(places[id], name)
		}
	}
	for id := range st.stale {
		if at := fmt.Sprint(places[id]); st.jobs[id] == nil || at == "[]" || at == "[ready]" || !passed[id] {
			fault("stale %q: in %s, an entry in ready %t, want a job elsewhere and an entry", id, at, passed[id])
		}
	}
	for id, at := range places {
		if st.tombs[id] {
			if fmt.Sprint(at) != "[ready]" {
				fault("tomb %q: got places %v, want ready once", id, at)
			}
		} else if st.jobs[id] == nil {
			fault("id %q: in %v without a record", id, at)
		}
	}
	for id := range st.jobs {
		if len(places[id]) != 1 {
			fault("job %q: got places %v, want one (I2)", id, places[id])
		}
	}
	for id := range st.late {
		if st.jobs[id] == nil {
			fault("late %q has no record", id)
		}
	}
	for id := range st.postponed {
		if st.jobs[id] == nil {
			fault("postponed %q has no record", id)
		}
	}
	for id, job := range st.jobs {
		at := fmt.Sprint(places[id])
		if want := job.Retry >= 0 && (at == "[ready]" || at == "[urgent]" || at == "[suspects]"); st.late[id] != want {
			fault("job %q in %s with retry count %d: late %t, want %t", id, at, job.Retry, st.late[id], want)
		}
		_, flies := st.flight[id]
		_, blocked := st.blocked[id]
		since := job.Since
		if flies || blocked || job.At >= HeldAt.UnixMicro() {
			since = 0
		}
		if st.postponed[id] != since {
			fault("job %q in %s: noted to wait since %d, want %d", id, at, st.postponed[id], since)
		}
		if n := len(job.Payloads); !flies && (n > 32 || n > 1 && job.Size() > 4096) && !st.crowded["w"+id] {
			fault("job %q: %d payloads of %d bytes are in its record: each push copies them", id, n, job.Size())
		}
	}
	for id := range st.tombs {
		if len(places[id]) == 0 {
			fault("tomb %q is in no list", id)
		}
	}
	st.checkSums(fault)
	return errors.Join(faults...)
}

func (st *state) checkSums(fault func(string, ...any)) {
	want := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			fault("%s: got %v, want %v", what, got, want)
		}
	}
	number := func(field string) int {
		n, _ := strconv.Atoi(st.count[field])
		return n
	}
	want("ids whose states have a time", slices.Sorted(maps.Keys(st.stated)), slices.Sorted(maps.Keys(st.states)))
	for id := range st.notes {
		if _, busy := st.flight[id]; !busy {
			fault("noted %q is not in flight", id)
		}
	}
	want("count.tombs", number("tombs"), len(st.tombs))
	dead := 0
	for _, job := range st.morgue {
		dead += len(job.Payloads)
	}
	want("count.morgue", number("morgue"), dead)
	want("ids of the dead set", slices.Sorted(maps.Keys(st.dead)), slices.Sorted(maps.Keys(st.morgue)))
	for id := range st.parked {
		if _, busy := st.flight[id]; !busy {
			fault("parked %q is not in flight", id)
		}
	}
	flights, claimed, dated := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, number := range st.flight {
		flights["#"+strconv.FormatInt(number, 10)]++
	}
	for field, n := range st.claim {
		if field[0] == '#' {
			claimed[field], _ = strconv.Atoi(n)
		}
		if field[0] == '@' && counter(n) > 0 {
			dated["#"+field[1:]] = true
		}
	}
	want("open flights of the claim", claimed, flights)
	want("flights with a time", slices.Sorted(maps.Keys(dated)), slices.Sorted(maps.Keys(flights)))
	if n := counter(st.count["runs"]); n != int64(len(st.runs)) {
		fault("the journal has %d runs, and counts %d", len(st.runs), n)
	}
	for _, set := range []struct {
		name  string
		ids   map[string]int64
		retry bool
	}{{"due", st.due, false}, {"retry", st.retry, true}} {
		for id, at := range set.ids {
			if job := st.jobs[id]; job != nil && ((job.Retry >= 0) != set.retry || job.At != at) {
				fault("%s: %q at %d with retry count %d, due %d", set.name, id, at, job.Retry, job.At)
			}
		}
	}
	for _, id := range st.suspects {
		if _, ok := st.crashes[id]; !ok {
			fault("suspect %q is not among crashes", id)
		}
	}
	for id := range st.crashes {
		if _, flies := st.flight[id]; !flies && !slices.Contains(st.suspects, id) {
			fault("%q of crashes is neither in flight nor a suspect", id)
		}
	}
}

// diff compares the shard with the model. Soft times of the model become the real times if these are
// between the model's time and hi.
func diff(m *modelShard, st *state, hi int64) error {
	var faults []error
	want := func(what string, got, want any) {
		if g, w := fmt.Sprintf("%q", got), fmt.Sprintf("%q", want); g != w {
			faults = append(faults, fmt.Errorf("%s: got %s, want %s", what, g, w))
		}
	}
	all := maps.Clone(m.Waiting)
	maps.Copy(all, m.InFlight)
	faults = append(faults, diffJobs(m, "jobs", st.jobs, all, hi), diffJobs(m, "parked", st.parked, m.Parked, hi), diffJobs(m, "morgue", st.morgue, m.Morgue, hi))
	want("ready", nonNil(st.ready), nonNil(m.Ready))
	want("suspects", nonNil(st.suspects), nonNil(m.Suspects))
	want("tombs", st.tombs, m.Tombs)
	want("stale", st.stale, m.Stale)
	faults = append(faults, diffUrgent(m, st))
	due := slices.Concat(slices.Collect(maps.Keys(st.due)), slices.Collect(maps.Keys(st.retry)))
	slices.Sort(due)
	want("scheduled", nonNil(due), nonNil(slices.Sorted(maps.Keys(m.Scheduled))))
	want("blocked", nonNil(slices.Sorted(maps.Keys(st.blocked))), nonNil(slices.Sorted(maps.Keys(m.Blocked))))
	want("flights", st.flight, m.FlightOf)
	want("crashes", st.crashes, m.Crashes)
	kept := len(st.runs)
	if least := min(len(m.Runs), cmp.Or(m.Journal.Keep, journal.Default.Keep)); kept < least || kept > len(m.Runs) {
		faults = append(faults, fmt.Errorf("the journal has %d runs of %d, want at least %d", kept, len(m.Runs), least))
	} else {
		want("journal", nonNil(st.runs), nonNil(m.Runs[len(m.Runs)-kept:]))
	}
	want("states", st.states, textsOf(m.States))
	notes := map[string]string{}
	for id, note := range st.notes {
		_, notes[id], _ = strings.Cut(note, " ")
	}
	want("notes", notes, m.Notes)
	from, imported := map[string]int64{}, map[string]string{}
	for source, number := range st.from {
		if !strings.Contains(source, "\x00") {
			from[source] = counter(number)
		} else if imported[source], _ = strings.CutSuffix(number, " 0 0"); imported[source] == number {
			faults = append(faults, fmt.Errorf("of %q only a part is imported: %s", source, number))
		}
	}
	want("from", from, m.LastNumber)
	want("imported", imported, m.ImportState())
	for id, first := range m.PutOffSince {
		if at := st.since[id]; at >= first && first >= m.Now && at <= hi { // as of this step
			m.PutOffSince[id] = at
		}
	}
	want("since", st.since, m.PutOffSince)
	want("postponed", st.postponed, m.PostponedSince())
	for id, state := range m.States {
		if at := st.stated[id]; state.Soft && at >= m.Now && at <= hi {
			state.At, state.Soft = at, false
		}
		want("time of the state of "+id, fmt.Sprint(st.stated[id]), fmt.Sprint(state.At))
	}
	want("processed", counter(st.count["processed"]), m.Processed)
	want("failed", counter(st.count["failed"]), m.Failed)
	return errors.Join(faults...)
}

// diffUrgent compares the urgent ids. A job of the state has the times of the model's job.
func diffUrgent(m *modelShard, st *state) error {
	want := map[string]string{}
	for id, u := range m.Urgent {
		switch job := m.Waiting[id]; {
		case u.Lined:
			want[id] = fmt.Sprint(job.At + u.After)
		case u.Again && m.InFlight[id] != nil:
			want[id] = "again"
		default:
			want[id] = "elsewhere"
		}
	}
	got := map[string]string{}
	for id, score := range st.urgent {
		switch {
		case score >= 0:
			got[id] = fmt.Sprint(score)
		case score == -2 && m.InFlight[id] != nil:
			got[id] = "again"
		default:
			got[id] = "elsewhere"
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("urgent: got %v, want %v", got, want)
	}
	return nil
}

func textsOf(states map[string]*modelState) map[string]string {
	texts := map[string]string{}
	for id, state := range states {
		texts[id] = state.Data
	}
	return texts
}

func counter(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func nonNil(list []string) []string { return append([]string{}, list...) }

func diffJobs(m *modelShard, what string, got, want map[string]*modelJob, hi int64) error {
	var faults []error
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		return fmt.Errorf("%s: got ids %q, want %q", what, g, w)
	}
	for id, w := range want {
		g := got[id]
		w.ResolveSoft(g, m.Now, hi)
		if x, y := g.String(), w.String(); x != y {
			faults = append(faults, fmt.Errorf("%s %q:\n got %s\nwant %s", what, id, x, y))
		}
	}
	return errors.Join(faults...)
}
