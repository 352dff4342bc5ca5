package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// fill makes Redis refuse all commands that may need memory. empty undoes it.
func (r *rig) fill() (empty func()) {
	r.t.Helper()
	r.noErr(r.c.DB().ForTests().ConfigSet(r.ctx, "maxmemory", "1").Err())
	return func() { r.noErr(r.c.DB().ForTests().ConfigSet(r.ctx, "maxmemory", "0").Err()) }
}

// TestOutOfMemory checks that a full Redis refuses pushes, and that workers can drain it. Redis refuses only the first
// write of a script, so each script of a worker begins with a write that needs no memory.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			t.Parallel()
			testOutOfMemory(t, &backend{url: redistest.Start(t, "--maxmemory-policy", "noeviction").URL(), shared: shared})
		})
	}
}

func testOutOfMemory(t *testing.T, b *backend) {
	for _, c := range []testCase{
		{"push", testOomPush}, {"push to a crowd", testOomCrowd}, {"worker", testOomWorker}, {"failed", testOomFailed}, {"quarantine", testOomQuarantine}, {"lease", testOomLease}, {"start", testOomStart}, {"people", testOomPeople}, {"reads", testOomReads}, {"calls", testOomCalls}, {"journal", testOomJournal}, {"import", testOomImport},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) }) // one after the other: they share the memory
	}
}

func testOomPush(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("waits", "1"))
	_, _ = r.popOne("waits")
	r.push(job("waits", "2"))
	defer r.fill()()
	before := r.dump()
	big := strings.Repeat("x", 5000)
	for name, jobs := range map[string][]lowkiq.Push{
		"fresh":        {job("a", "1")},
		"scored":       {job("a", "1", score(1))},
		"scheduled":    {job("a", "1", in(time.Hour))},
		"twice":        {job("a", "1"), job("a", "1")},
		"crowded":      {job("a", big, in(time.Hour))},
		"parked":       {job("waits", "3")},
		"parked crowd": {job("waits", big)},
	} {
		results, err := r.q.Push(r.ctx, jobs...)
		if err == nil || results[0].Err == nil || !Transient(err) || !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("%s: got %v, want a transient error that says out of memory", name, err)
		}
		eq(t, "redis after "+name, r.dump(), before)
	}
}

// testOomCrowd checks that a push does not take a refusal to write for a damaged record. Otherwise it would go on with
// the id's later payloads, and the repeated push would store the earlier payload behind them (I3).
func testOomCrowd(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.crowds(40, 3, "a")
	p, _, err := browse.Of(r.q).Job(r.ctx, "a")
	r.noErr(err)
	jobs := []lowkiq.Push{job("a", "first"), job("a", string(p.Payloads[0].Data), score(-1)), job("a", "second")}
	empty := r.fill()
	before := r.dump()
	results, err := r.q.Push(r.ctx, jobs...)
	eq(t, "redis", r.dump(), before)
	empty()
	for i, result := range results {
		if !Transient(result.Err) {
			t.Errorf("job %d: got %v, want a transient error", i, result.Err)
		}
	}
	if !strings.Contains(fmt.Sprint(err), "out of memory") {
		t.Errorf("got %v, want out of memory", err)
	}
	r.push(jobs...)
	got, _ := r.popOne("a")
	eq(t, "last ones", dataOf(got.Payloads[len(got.Payloads)-2:]), []string{"first", "second"})
}

func testOomWorker(t *testing.T, b *backend) {
	r := newRig(t, b)
	for i := range 6 {
		r.push(job(fmt.Sprint("id", i), "1"))
	}
	r.push(job("crowd", strings.Repeat("x", 5000), in(-time.Hour)), job("later", "1", in(time.Hour)))
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
	_, flight := r.popOne("id0")
	r.push(job("id0", "2"))
	defer r.fill()()
	eq(t, "ack", r.ack(flight, "id0"), 1)
	p := r.pop(3)
	r.nack(p.Flight, "id1", Retry, 0, time.Hour)
	r.nack(p.Flight, "id2", Return, 0, 0)
	r.bury(p.Flight, "id3", Bury)
	r.own(Self)
	_, err := r.claim.Release(r.ctx)
	r.noErr(err)
	r.own(Fresh)
	p = r.pop(1)
	r.bury(p.Flight, "id2", Skip)
	p = r.pop(1)
	r.bury(p.Flight, "id4", Block)
	r.own(Seize)
	eq(t, "drained", show(r.drain()...), "id5[1] crowd["+strings.Repeat("x", 5000)+"] later[1] id0[2]")
	for range 2 { // nothing is there
		eq(t, "empty pop", show(r.pop(5).Jobs...), "")
	}
}

// testOomFailed checks that failed jobs are marked when their turn comes, which takes memory. This must refuse no pop.
func testOomFailed(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	p := r.pop(3)
	r.nack(p.Flight, "b", Retry, 0, time.Hour)
	r.nack(p.Flight, "c", Retry, 0, 3*time.Hour)
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
	defer r.fill()()
	r.nack(p.Flight, "a", Retry, 0, 0)
	n, err := browse.Of(r.q).RunNow(r.ctx, "c")
	eq(t, "run now", fmt.Sprint(n, err), "1 <nil>")
	p = r.pop(2)
	eq(t, "popped", show(p.Jobs...), "a[1] c[1]")
	r.nack(p.Flight, "c", Return, 0, 0)
	r.own(Self)
	n, err = browse.Of(r.q).Delete(r.ctx, browse.StateFailed, "c")
	eq(t, "deleted", fmt.Sprint(n, err), "1 <nil>")
	r.wantFailed("with a full Redis", 2, 2)
	eq(t, "drained", show(r.drain()...), "a[1] b[1]")
}

func testOomQuarantine(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	r.pop(2)
	r.own(Seize)
	defer r.fill()()
	p := r.pop(1)
	eq(t, "popped", show(p.Jobs...), "a[1]")
	eq(t, "beside it", r.pop(1).Quarantine, QuarantineWait)
	r.own(Seize)
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 1, Slot: true})
	r.noErr(err)
	eq(t, "popped", show(p.Jobs...), "a[1]")
	r.own(Seize)
	eq(t, "buried", r.claim.Buried, 1)
	eq(t, "drained", show(r.drain()...), "b[1] c[1]")
}

func testOomLease(t *testing.T, b *backend) {
	r := newRig(t, b)
	held, err := r.c.Leases().Take(r.ctx, "old/1", []byte("i"), []byte("v1"), time.Hour)
	r.noErr(err)
	expired, err := r.c.Leases().Take(r.ctx, "expired/1", []byte("i"), []byte("v1"), time.Millisecond)
	r.noErr(err)
	until(t, "the lease expired", func() bool {
		in, err := r.c.Leases().Instance(r.ctx, "expired/1")
		return err == nil && in.Lease == nil
	})
	defer r.fill()()
	if err := expired.Renew(r.ctx, []byte("v2"), time.Hour); !errors.Is(err, lease.ErrGone) {
		t.Errorf("renewal of an expired lease: got %v, want %v", err, lease.ErrGone)
	}
	r.noErr(held.Renew(r.ctx, []byte("v2 longer than before"), time.Hour))
	_, err = r.c.Leases().Take(r.ctx, "new/1", []byte("i"), []byte("v1"), time.Hour)
	r.noErr(err)
	for _, name := range []string{"old/1", "new/1"} {
		in, err := r.c.Leases().Instance(r.ctx, name)
		r.noErr(err)
		eq(t, name+" in the index", string(in.Identity), "i")
		eq(t, name+" has a lease", len(in.Lease) > 0, true)
	}
	r.noErr(held.Drop(r.ctx))
}

// testOomStart checks that a node that starts now finds its queues, to drain them.
func testOomStart(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	defer r.fill()()
	c := Rename(t, r.c, r.c.Cluster())
	q, err := c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1})
	r.noErr(err)
	eq(t, "shards", q.Shards, 1)
	if _, err := c.Register(r.ctx, lowkiq.Queue{Name: "new", Shards: 1}); !Transient(err) {
		t.Errorf("a new queue: got %v, want a transient error", err)
	}
	_, err = c.Check(context.WithoutCancel(r.ctx), false)
	r.noErr(err)
}

// testOomImport checks that an import is refused as a whole, wherever its ids are, and stored when there is room. This
// holds also if Redis becomes full between two parts of an entry.
func testOomImport(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.crowds(40, 3, "crowd")
	r.push(job("ready", "1"), job("fly", "1"))
	_, flight := r.popOne("crowd")
	r.nack(flight, "crowd", Retry, 0, time.Hour)
	r.pop(1)
	_, flight = r.popOne("fly")
	r.push(job("fly", "2"))
	large := entry(9, "large", "")
	for i := range 5000 {
		large.Payloads = append(large.Payloads, transfer.Payload{Score: float64(i), Data: fmt.Append(nil, i)})
	}
	refused := entry(1, "refused", "x", func(e *transfer.Entry) { e.Err = errors.New("not now") })
	_, err := transfer.Import(r.ctx, r.q, "old", refused)
	eq(t, "refused", transfer.Refused(err), true)
	entries := []transfer.Entry{
		entry(2, "fresh", "x"), entry(3, "later", "x y", failed(3, "old", time.Hour)), entry(4, "crowd", "x y", failed(3, "old", 0)), entry(5, "fly", "x"), entry(6, "ready", "x", failed(3, "old", time.Hour)),
		entry(7, "dead", "x", func(e *transfer.Entry) { e.Morgue = true }), entry(8, "refused", "y"), large,
	}
	refused.Err = nil
	empty := r.fill()
	before := r.dump()
	for _, one := range append(entries, refused) {
		results, err := transfer.Import(r.ctx, r.q, "old", one)
		if !Transient(err) || transfer.Refused(results[0].Err) || !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("%s: got %v, want a transient error that says out of memory", one.ID, err)
		}
		eq(t, "redis after "+one.ID, r.dump(), before)
	}
	results, _ := transfer.Import(r.ctx, r.q, "old", entries...)
	for i, result := range results {
		eq(t, entries[i].ID, Transient(result.Err), true)
	}
	eq(t, "redis", r.dump(), before)
	empty()
	calls := 0
	full := func() {}
	r.c.DB().ForTests().AddHook(afterEach(func(script string) {
		if script == r.c.DB().Scripts.Import.SHA() {
			if calls++; calls == 2 {
				full = r.fill()
			}
		}
	}))
	results, _ = transfer.Import(r.ctx, r.q, "old", entries...)
	for i, result := range results[:6] {
		eq(t, entries[i].ID, fmt.Sprint(result), "{false <nil>}")
	}
	eq(t, "behind", errors.Is(results[6].Err, transfer.ErrBehind), true)
	eq(t, "large", Transient(results[7].Err) && calls >= 2, true)
	full()
	results, err = transfer.Import(r.ctx, r.q, "old", append([]transfer.Entry{refused}, entries...)...)
	r.noErr(err)
	for i, result := range results {
		eq(t, fmt.Sprint("entry ", i, " again"), result.Before, i > 0 && i < 7)
	}
	r.ack(flight, "fly")
	got := map[string]int{}
	for _, j := range r.drain() {
		got[j.ID] += len(j.Payloads)
	}
	eq(t, "drained", got, map[string]int{"fresh": 1, "crowd": 42, "fly": 2, "refused": 2, "large": 5000})
}

// afterEach is called for each script that has run.
type afterEach func(sha string)

func (afterEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f afterEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		f.tell(cmd)
		return err
	}
}

func (f afterEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			f.tell(cmd)
		}
		return err
	}
}

func (f afterEach) tell(cmd redis.Cmder) {
	if args := cmd.Args(); cmd.Name() == "evalsha" && len(args) > 1 {
		f(fmt.Sprint(args[1]))
	}
}

// testOomReads checks that a full Redis answers reads.
func testOomReads(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Bury)
	defer r.fill()()
	if report, err := audit.Run(r.ctx, r.c, audit.Config{Orphans: true}); err != nil || report.Jobs != 1 || len(report.Unsettled) > 0 {
		t.Errorf("audit: got %+v, %v, want a job and all settled", report, err)
	}
	if _, payloads, err := r.c.ReadID(r.ctx, r.q.Name, "b"); err != nil || len(payloads) != 1 {
		t.Errorf("read an id: got %v, %v, want a payload", payloads, err)
	}
}

// testOomPeople checks that actions that free memory work. Others are refused as a whole.
func testOomPeople(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("dead", "1"), job("a", "1"), job("b", "1"), job("c", "1", in(time.Hour)))
	_, flight := r.popOne("dead")
	r.bury(flight, "dead", Bury)
	defer r.fill()()
	before := r.dump()
	for name, op := range map[string]func(context.Context, ...string) (int, error){
		"requeue": func(ctx context.Context, ids ...string) (int, error) {
			return browse.Of(r.q).Requeue(ctx, browse.StateMorgue, ids...)
		},
		"kill": func(ctx context.Context, ids ...string) (int, error) {
			return browse.Of(r.q).Bury(ctx, browse.Anywhere, ids...)
		},
	} {
		if n, err := op(r.ctx, "dead", "a"); err != nil && (!Transient(err) || r.dump() != before) {
			t.Errorf("%s: got %d, %v, want all or nothing", name, n, err)
		}
	}
	n, err := browse.Of(r.q).RunNow(r.ctx, "c")
	r.noErr(err)
	eq(t, "run now", n, 1)
	n, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "b", "c")
	r.noErr(err)
	eq(t, "deleted", n, 2)
	step, err := browse.Of(r.q).Bulk(r.ctx, browse.DeleteBuried, browse.Query{State: browse.StateMorgue})
	r.noErr(err)
	eq(t, "morgue emptied", step.Changed, 1)
}

// testOomCalls checks that results, states and replies are stored with the ends of jobs, which free memory. A note is
// not, and is refused as a whole.
func testOomCalls(t *testing.T, b *backend) {
	r := newRig(t, b)
	for _, id := range []string{"a", "b", "c", "d", "e", "noted"} {
		r.push(r.called(id, "t-"+id)...)
	}
	r.push(r.called("crowd", tokens("crowd", 100)...)...)
	noted := r.pop(6)
	r.noErr(r.claim.Note(r.ctx, Note{Flight: noted.Flight, ID: "noted", Note: lowkiq.Note{Progress: 0.5}}))
	defer r.fill()()
	before := r.dump()
	if err := r.claim.Note(r.ctx, Note{Flight: noted.Flight, ID: "noted", Note: lowkiq.Note{Progress: 1, State: []byte("s")}}); !Transient(err) {
		t.Errorf("a note: got %v, want a transient error", err)
	}
	eq(t, "redis after a note", r.dump(), before)
	flight := noted.Flight
	end := r.answered(flight, "noted", "result")
	end.Answers[0].HasNotes = true
	r.ackAll(end)
	eq(t, "reply", r.reply("t-noted"), "done\nresult")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", SetState: true, State: []byte("only a state")}}})
	r.bury(flight, "b", Bury)
	eq(t, "reply", r.reply("t-b"), "buried\nexhausted")
	r.nack(flight, "c", Postpone, -1, time.Hour)
	for _, id := range []string{"d", "e"} {
		r.nack(flight, id, Return, -1, 0)
	}
	for _, id := range []string{"c", "d", "crowd"} { // scheduled, ready, in the spill
		n, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)
		eq(t, "deleted", fmt.Sprint(n, err), "1 <nil>")
	}
	for _, token := range []string{"t-c", "t-d", "crowd-0", "crowd-99"} {
		eq(t, "reply "+token, r.reply(token), "deleted")
	}
	before = r.dump()
	n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "e")
	if told := r.reply("t-e"); err != nil && (!Transient(err) || told != "" || r.dump() != before) || err == nil && (n != 1 || told != "buried\n") {
		t.Errorf("kill: got %d, %v, and the reply %q, want all or nothing", n, err, told)
	}
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(t, "states", st.states, map[string]string{"noted": "result", "a": "only a state"})
}

// testOomJournal checks that jobs end without the lines of their runs, which are counted. Once there is room, lines are
// written again.
func testOomJournal(t *testing.T, b *backend) {
	r := newRig(t, b)
	rule := journal.Rule{Runs: journal.All, Keep: 100}
	r.claim.SetJournal(rule)
	ack := func(want int, acks Acks) {
		t.Helper()
		n, err := r.claim.Ack(r.ctx, acks)
		eq(t, "acked", fmt.Sprint(n, err), fmt.Sprint(want, " <nil>"))
	}
	done := func(flight int64, inRow bool, ids ...string) Acks {
		acks := Acks{Flight: flight, IDs: ids, InRow: inRow}
		for _, id := range ids {
			acks.Runs.Add(&journal.Run{ID: id, Verdict: journal.Done, RetryCount: -1})
		}
		return acks
	}
	// round ends seven runs of as many ids. Three of them are in one ack, and two of these have answers.
	round := func(name string) {
		t.Helper()
		for _, id := range idsOf(name, 7) {
			r.push(r.called(id, "t-"+id)...)
		}
		flight := r.pop(7).Flight
		restore := func() {}
		if name == "full" {
			restore = r.fill()
		}
		acks := done(flight, true, name+"0", name+"1", name+"2")
		acks.Answers = r.answered(flight, name+"1", "one").Answers
		ack(3, acks)
		r.nack(flight, name+"3", Retry, 0, time.Hour)
		r.bury(flight, name+"4", Bury)
		for range 2 { // the second time it is late, and counts nothing
			p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, Acks: []Acks{done(flight, false, name+"5")}})
			eq(t, "popped", fmt.Sprint(show(p.Jobs...), err), "<nil>")
		}
		for range 2 {
			r.own(Seize)
			r.claim.SetJournal(rule)
			p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 9, Slot: true})
			eq(t, "popped", fmt.Sprint(show(p.Jobs...), err), name+"6[same]<nil>")
			flight = p.Flight // the first time its worker crashes, with this one alone in flight
		}
		ack(1, done(flight, true, name+"6"))
		restore()
		eq(t, "reply", r.reply("t-"+name+"1"), "done\none")
	}
	held := func(when string, lines, unlogged int) {
		t.Helper()
		all, err := browse.Of(r.q).Runs(r.ctx, browse.RunQuery{})
		r.noErr(err)
		stats, err := r.q.Stats(r.ctx)
		r.noErr(err)
		eq(t, "lines, and those left out, "+when, fmt.Sprint(len(all.List), stats.Unlogged), fmt.Sprint(lines, unlogged))
	}
	round("first")
	held("at first", 8, 0) // with one of the crash
	round("full")
	held("with a full Redis", 8, 8)
	round("then")
	held("when there was room", 16, 8)
}
