package protocol_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

var journalTests = []testCase{
	{"Journal_OfAnID", testJournalOfID},
	{"Journal_Crashes", testJournalCrashes},
	{"Journal_Bounds", testJournalBounds},
	{"Journal_OfAQueue", testJournalOfQueue},
	{"Journal_OfHostileErrors", testJournalHostile},
	{"Journal_DoneJobs", testJournalDone},
	{"Journal_DropsOldRuns", testJournalDropsOldRuns},
	{"Journal_After", testJournalAfter},
	{"Journal_Search", testJournalSearch},
}

func (r *rig) runs(id string) []browse.Run {
	r.t.Helper()
	runs, err := browse.Of(r.q).Runs(r.ctx, browse.RunQuery{ID: id})
	r.noErr(err)
	if !runs.Oldest.IsZero() {
		r.t.Fatalf("runs of %q: got a list as far back as %s, want all", id, runs.Oldest)
	}
	return runs.List
}

func (r *rig) fail(id string, retry int, text string) {
	r.t.Helper()
	_, flight := r.popOne(id)
	now := time.Now()
	_, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry, RetryCount: retry, Error: text, Ran: journal.Ran{Due: now, Popped: now, Began: now}})
	r.noErr(err)
}

func testJournalOfID(t *testing.T, b *backend) {
	r := newRig(t, b)
	id := "a b\n\x00'\"\xff" // any bytes
	r.push(job(id, "1"))
	r.fail(id, 0, "boom\nwith its stack")
	r.fail(id, 1, "")
	r.fail(id, 2, strings.Repeat("ü", 150))
	_, flight := r.popOne(id)
	r.nack(flight, id, Postpone, 0, 0) // no attempt was spent
	_, flight = r.popOne(id)
	r.nack(flight, id, Return, 0, 0)
	_, flight = r.popOne(id)
	r.bury(flight, id, Bury)
	r.push(job("other", "1"))
	_, flight = r.popOne("other")
	r.bury(flight, "other", Block)
	r.nack0(flight, "other") // too late: it is in no flight
	list := r.runs(id)
	want := fmt.Sprintf(`%[1]s exhausted 25 "exhausted"; %[1]s failed 2 %[2]q; %[1]s failed 1 ""; %[1]s failed 0 "boom"`, id, strings.Repeat("ü", 100))
	eq(t, "runs", sketch(list), want)
	for _, a := range list {
		near(t, "time", a.Ended, 0)
		eq(t, "instance", a.Instance, r.claim.Instance)
	}
	eq(t, "the other's", sketch(r.runs("other")), `other exhausted 25 "exhausted"`)
	eq(t, "nobody's", sketch(r.runs("nobody")), "")
}

// nack0 nacks a job that is not in its flight.
func (r *rig) nack0(flight int64, id string) {
	r.t.Helper()
	n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry})
	r.noErr(err)
	eq(r.t, "nacked", n, 0)
}

// testJournalCrashes checks that only the seizure that counts a crash writes it.
func testJournalCrashes(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	r.pop(2)
	r.own(Seize)
	eq(t, "two in flight", sketch(r.runs("a")), "")
	r.popOne("a")
	dead := r.claim.Instance
	r.own(Seize)
	list := r.runs("a")
	eq(t, "alone", sketch(list), `a crashed -1 "its worker died while it ran alone"`)
	eq(t, "whose", list[0].Instance, dead)
	eq(t, "b", sketch(r.runs("b")), "")
}

// testJournalBounds checks that a shard keeps a number of runs in whole entries, and a tenth more before it drops any.
// The count follows.
func testJournalBounds(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.claim.SetJournal(journal.Rule{Runs: journal.Failures, Keep: 50})
	for i := range 60 {
		r.push(job("a", "1"))
		r.fail("a", i, "boom")
	}
	kept := r.runs("a")
	if len(kept) < 50 || len(kept) > 55 {
		t.Errorf("after 60 runs: got %d, want 50 to 55", len(kept))
	}
	eq(t, "newest", sketch(kept[:1]), `a failed 59 "boom"`)
	// Of many runs that end in one script, none is dropped.
	for i := range 100 {
		r.push(job(fmt.Sprint("id", i), "1"))
	}
	for r.left() > 0 {
		p := r.pop(100)
		var burials []Burial
		for _, j := range p.Jobs {
			burials = append(burials, Burial{Flight: p.Flight, ID: j.ID, Policy: Bury, RetryCount: 25})
		}
		_, err := r.claim.Bury(r.ctx, burials...)
		r.noErr(err)
	}
	all, err := browse.Of(r.q).Runs(r.ctx, browse.RunQuery{Limit: 1000})
	r.noErr(err)
	if len(all.List) < 100 {
		t.Errorf("after 101 burials: got %d runs, want those of the last script", len(all.List))
	}
	eq(t, "newest", sketch(all.List[:1]), `id99 exhausted 25 ""`)
}

// left returns the number of waiting jobs.
func (r *rig) left() int {
	r.t.Helper()
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	return stats.Jobs.Ready
}

// testJournalDone checks that a done job has one line if the rule says so, with the note and result of its handler.
func testJournalDone(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.claim.SetJournal(journal.Rule{Runs: journal.All, Keep: 100})
	due := time.UnixMicro(1_000_000)
	line := func(id, log string, result []byte) (block journal.Block) {
		block.Add(&journal.Run{ID: id, Verdict: journal.Done, RetryCount: -1, Result: result, Ran: journal.Ran{
			Due: due, Popped: due.Add(time.Second), Began: due.Add(2 * time.Second), Took: 3 * time.Second, Log: log}})
		return block
	}
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	p := r.pop(3)
	if last, err := r.claim.LastNote(r.ctx, "a", "b"); err != nil || !last.IsZero() {
		t.Errorf("got %s, %v for the last note, want none", last, err)
	}
	r.noErr(r.claim.Note(r.ctx, Note{Flight: p.Flight, ID: "a", Note: lowkiq.Note{Log: "one"}}))
	last, err := r.claim.LastNote(r.ctx, "a", "b")
	r.noErr(err)
	near(t, "the last note", last, 0)
	r.noErr(r.claim.Note(r.ctx, Note{Flight: p.Flight, ID: "a", Note: lowkiq.Note{Log: "two"}}))
	runs := line("a", "three", []byte("r"))
	runs.Join(line("b", "", nil))
	acks := []Acks{{Flight: p.Flight, IDs: []string{"a", "b"}, Runs: runs, InRow: true, Answers: []Answer{{ID: "a", HasNotes: true}}}}
	for _, want := range []int{2, 0} { // the second time nothing is written
		n, err := r.claim.Ack(r.ctx, acks...)
		r.noErr(err)
		eq(t, "acked", n, want)
	}
	eq(t, "a", sketch(r.runs("a")), `a done -1 "" log "one\ntwo\nthree" result "r"`)
	eq(t, "b", sketch(r.runs("b")), `b done -1 ""`)
	run := r.runs("b")[0]
	eq(t, "times", fmt.Sprint(run.Due.UnixMilli(), run.Popped.UnixMilli(), run.Began.UnixMilli(), run.Ended.UnixMilli()), "1000 2000 3000 6000")
	eq(t, "instance", run.Instance, r.claim.Instance)
	eq(t, "attempt", run.Attempt(), 1)
	// With a pop, in the same round trip. Only c is left of the flight.
	next, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1 << 20, Acks: []Acks{{Flight: p.Flight, IDs: []string{"c", "a"}, Runs: line("c", "", nil)}}})
	r.noErr(err)
	eq(t, "open flights", len(next.Open), 0)
	eq(t, "c", sketch(r.runs("c")), `c done -1 ""`)
	eq(t, "a again", len(r.runs("a")), 1)
	// In a row that is not the next of its flight, because the jobs before it are not done yet.
	r.push(job("e", "1"), job("f", "1"), job("g", "1"), job("h", "1"))
	p = r.pop(4)
	later := line("g", "", nil)
	later.Join(line("h", "", nil))
	for _, want := range []int{2, 0} {
		n, err := r.claim.Ack(r.ctx, Acks{Flight: p.Flight, IDs: []string{"g", "h"}, Runs: later, InRow: true})
		r.noErr(err)
		eq(t, "acked", n, want)
	}
	before := line("e", "", nil)
	before.Join(line("f", "", nil))
	n, err := r.claim.Ack(r.ctx, Acks{Flight: p.Flight, IDs: []string{"e", "f"}, Runs: before, InRow: true})
	r.noErr(err)
	eq(t, "acked", n, 2)
	eq(t, "e to h", len(r.runs("e"))+len(r.runs("f"))+len(r.runs("g"))+len(r.runs("h")), 4)
	// Nothing is written of a flight of which another instance took the rest.
	r.push(job("d", "1"))
	d, flight := r.popOne("d")
	r.own(Self)
	_, err = r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: []string{d.ID}, Runs: line("d", "", nil)})
	r.noErr(err)
	eq(t, "d", len(r.runs("d")), 0)
}

// testJournalDropsOldRuns checks that the next write drops runs that are too old.
func testJournalDropsOldRuns(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.claim.SetJournal(journal.Rule{Runs: journal.Failures, Keep: 1000, For: time.Hour})
	old := time.Now().Add(-2 * time.Hour).UnixMilli()
	for i := range 10 {
		id := fmt.Sprintf("%d-%d", old, i+1)
		r.noErr(r.c.DB().ForTests().XAdd(r.ctx, &redis.XAddArgs{Stream: r.s.Keys().Journal, ID: id,
			Values: []any{"i", "n/1", "n", 1, "l", "f 0 1 0 0 0 1 0 0 0\na"}}).Err())
		r.noErr(r.c.DB().ForTests().RPush(r.ctx, r.s.Keys().Journalx, id+" 1").Err())
	}
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Count, "runs", 10).Err())
	for i, want := range []int{3, 2, 3} { // eight old ones go at a time
		r.push(job("a", "1"))
		r.fail("a", i, "boom")
		eq(t, fmt.Sprint("after run ", i), len(r.runs("a")), want)
	}
}

// testJournalAfter checks that a cursor misses no run and lists none twice, whatever the limit is.
func testJournalAfter(t *testing.T, b *backend) {
	c := b.open(t)
	q := newQueue(t, c, 8)
	cursor, seen := int64(0), map[string]int{}
	list := func() {
		for range 1000 {
			runs, err := browse.Of(q).RunsAfter(t.Context(), cursor, browse.RunQuery{Limit: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range runs.List {
				seen[r.ID]++
			}
			if cursor = runs.Cursor; len(runs.List) == 0 {
				return
			}
		}
		t.Fatal("got 1,000 pages, want an end")
	}
	for i := range 40 {
		id := fmt.Sprint("id", i)
		r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Of(id), instances: i}
		r.own(Self)
		r.push(job(id, "1"))
		r.fail(id, 0, "boom")
		_, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, id)
		r.noErr(err)
		if i%9 == 0 {
			list()
		}
	}
	for deadline := time.Now().Add(patience); len(seen) < 40 && time.Now().Before(deadline); {
		list()
	}
	for i := range 40 {
		eq(t, fmt.Sprint("id", i), seen[fmt.Sprint("id", i)], 1)
	}
}

// testJournalSearch checks that runs are found by verdict, node and text, also in a long journal.
func testJournalSearch(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.claim.SetJournal(journal.Rule{Runs: journal.All, Keep: 100_000})
	text := strings.Repeat("x", 900)
	for n := range 20 {
		var block journal.Block
		acks := Acks{}
		for i := range 50 {
			id := fmt.Sprint("id", n, "-", i)
			r.push(job(id, "1"))
			acks.IDs = append(acks.IDs, id)
			block.Add(&journal.Run{ID: id, Verdict: journal.Done, RetryCount: -1, Ran: journal.Ran{Log: text}})
		}
		acks.Runs = block
		for at := 0; at < 50; {
			p := r.pop(50)
			acks.Flight = p.Flight
			_, err := r.claim.Ack(r.ctx, acks)
			r.noErr(err)
			at += len(p.Jobs)
		}
	}
	r.push(job("the one", "1"))
	r.fail("the one", 3, "needle in it")
	for name, c := range map[string]struct {
		q    browse.RunQuery
		want int
	}{
		"all":           {browse.RunQuery{Limit: 1000}, 1000},
		"failed":        {browse.RunQuery{Verdicts: []browse.Verdict{browse.RunFailed, browse.RunCrashed}}, 1},
		"an old id":     {browse.RunQuery{ID: "id0-0"}, 1},
		"text":          {browse.RunQuery{Contains: "needle"}, 1},
		"its node":      {browse.RunQuery{Node: "n", Verdicts: []browse.Verdict{browse.RunFailed}}, 1},
		"another node":  {browse.RunQuery{Node: "m"}, 0},
		"since later":   {browse.RunQuery{Since: time.Now().Add(time.Hour)}, 0},
		"as many as 10": {browse.RunQuery{Limit: 10}, 10},
	} {
		runs, err := browse.Of(r.q).Runs(r.ctx, c.q)
		r.noErr(err)
		eq(t, name, len(runs.List), c.want)
		for i := 1; i < len(runs.List); i++ {
			if runs.List[i-1].Ended.Before(runs.List[i].Ended) {
				t.Fatalf("%s: got %s before %s, want the newest first", name, runs.List[i-1].Ended, runs.List[i].Ended)
			}
		}
	}
}

func testJournalOfQueue(t *testing.T, b *backend) {
	c := b.open(t)
	q := newQueue(t, c, 250)
	for i := range 12 {
		id := fmt.Sprint("id", i)
		s := q.Of(id)
		r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: s}
		r.own(Fresh)
		r.push(job(id, "1"))
		r.fail(id, 0, "boom")
	}
	runs, err := browse.Of(q).Runs(t.Context(), browse.RunQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	list := runs.List
	eq(t, "limit", len(list), 10)
	eq(t, "newest", list[0].ID, "id11")
	eq(t, "its shard", list[0].Shard, q.Of("id11").Index)
	for i := range list[1:] {
		if list[i].Ended.Before(list[i+1].Ended) {
			t.Errorf("got %s after %s, want the newest first", list[i+1].Ended, list[i].Ended)
		}
	}
}

// TestSuccessIsNotJournaled checks that a drain of successes writes nothing into the journal unless the rule says so.
func TestSuccessIsNotJournaled(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	stats := func() string {
		t.Helper()
		text, err := r.c.DB().ForTests().Info(r.ctx, "commandstats").Result()
		r.noErr(err)
		return text
	}
	for i := range 100 {
		r.push(job(fmt.Sprint("id", i), "1"))
	}
	eq(t, "drained", len(r.drain()), 100)
	if text := stats(); strings.Contains(text, "cmdstat_xadd") {
		t.Errorf("after successes: got\n%s\nwant no XADD", text)
	}
	r.push(job("a", "1"))
	r.fail("a", 0, "boom")
	if text := stats(); !strings.Contains(text, "cmdstat_xadd") {
		t.Errorf("after a failure: got\n%s\nwant XADD", text)
	}
}

// testJournalHostile checks that a text in a handler's error costs Redis no search that tries again at each blank. Such
// a search took minutes, again at each retry.
func testJournalHostile(t *testing.T, b *backend) {
	r := newRig(t, b)
	const trace = "Traceback (most recent call last)"
	lines := map[string]string{ // text to the line that is kept
		trace + strings.Repeat(" ", 3900) + "\nlast":     "last",
		trace + "\n" + strings.Repeat("x", 4000):         strings.Repeat("x", 200),
		trace + strings.Repeat(" \n", 1900) + "\nE: x\n": "E: x",
		strings.Repeat(" ", 4000):                        "",
		trace + strings.Repeat("\n", 4000):               trace,
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for text, line := range lines {
		for policy, id := range map[Policy]string{"": "a", Block: "b"} {
			r.push(job(id, "1"))
			_, flight := r.popOne(id)
			var err error
			if policy == "" {
				_, err = r.claim.Nack(ctx, Nack{Flight: flight, ID: id, Kind: Retry, Error: text})
			} else {
				_, err = r.claim.Bury(ctx, Burial{Flight: flight, ID: id, Policy: policy, Error: text})
			}
			r.noErr(err)
			eq(t, fmt.Sprintf("line of %.40q", text), r.runs(id)[0].Error, line)
			_, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)
			r.noErr(err)
		}
	}
}
