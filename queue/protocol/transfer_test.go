package protocol_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/transfer"

	"github.com/lowkiq/lowkiq"
)

var transferTests = []testCase{
	{"Import_Once", testImportOnce}, {"Import_Wins", testImportWins}, {"Import_IntoAFlight", testImportIntoAFlight}, {"Import_Refused", testImportRefused},
	{"Import_Morgue", testImportMorgue}, {"Import_Large", testImportLarge}, {"Import_Wakes", testImportWakes}, {"Import_BadEntries", testImportBadEntries},
}

// entry returns an entry with payloads "a b c" of scores 1, 2, 3.
func entry(number int64, id, payloads string, change ...func(*transfer.Entry)) transfer.Entry {
	e := transfer.Entry{Number: number, ID: id, RetryCount: -1}
	for i, data := range strings.Fields(payloads) {
		e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(i + 1), Data: []byte(data)})
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

// failed makes an entry a failed job that is due in d.
func failed(retry int, message string, d time.Duration) func(*transfer.Entry) {
	return func(e *transfer.Entry) {
		e.RetryCount, e.Error, e.Due = retry, message, time.Now().Add(d).UnixMicro()
	}
}

// imports sends entries twice. want has a word per entry: taken, before, or a part of its error.
func (r *rig) imports(want string, entries ...transfer.Entry) {
	r.t.Helper()
	for i, words := range []string{want, strings.ReplaceAll(want, "taken", "before")} {
		results, err := transfer.Import(r.ctx, r.q, "old", entries...)
		if results == nil {
			r.t.Fatalf("import %d: %v", i, err)
		}
		for k, want := range strings.Split(words, "|") {
			got := "taken"
			switch {
			case results[k].Before:
				got = "before"
			case results[k].Err != nil:
				got = results[k].Err.Error()
			}
			if !strings.Contains(got, want) {
				r.t.Errorf("import %d: entry %d: got %q, want %q", i, entries[k].Number, got, want)
			}
		}
	}
}

// testImportOnce checks that an entry is stored once, also after its job was handled. Payloads keep scores and order.
func testImportOnce(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.imports("taken|taken|taken", entry(1, "a", "x y"), entry(2, "b", "z"), entry(5, "later", "1", failed(-1, "", time.Hour)))
	eq(t, "drained", show(r.drain()...), "a[x y] b[z]")
	r.imports("before|before", entry(1, "a", "x y"), entry(2, "b", "z"))
	eq(t, "drained", show(r.drain()...), "")
	near(t, "due", r.find("later", browse.StateScheduled).PerformAt, time.Hour)
	r.imports("taken", entry(6, "e", "one", func(e *transfer.Entry) { e.Payloads[0].Data = []byte("\x00L is no envelope") }))
	got, _ := r.popOne("e")
	eq(t, "payload", string(got.Payloads[0].Data), "\x00L is no envelope")
	results, err := transfer.Import(r.ctx, r.q, "another", entry(1, "a", "x"))
	eq(t, "another source", fmt.Sprint(results, err), "[{false <nil>}] <nil>")
}

// testImportWins checks that the retry count, due time and error of an entry replace those of the waiting job, wherever
// it waits.
func testImportWins(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("ready", "new", score(2)), job("due", "new", score(9), in(time.Hour)), job("blocked", "new"), job("retry", "new"), job("now", "new", in(time.Hour)))
	p := r.pop(3)
	r.bury(p.Flight, "blocked", Block)
	r.nack(p.Flight, "retry", Retry, 7, time.Hour)
	r.nack(p.Flight, "ready", Return, 0, 0)
	r.imports("taken|taken|taken|taken|taken", entry(1, "ready", "p q", failed(3, "old", 2*time.Hour)), entry(2, "due", "p", failed(-1, "", 3*time.Hour)),
		entry(3, "blocked", "p", failed(2, "old", 0)), entry(4, "retry", "p", failed(-1, "", 0)), entry(5, "now", "p", failed(0, "old", -time.Hour)))
	for _, c := range []struct {
		id       string
		state    browse.State
		retry    int
		message  string
		in       time.Duration
		payloads string
	}{
		{"ready", browse.StateRetry, 3, "old", 2 * time.Hour, "[p q new]"},
		{"due", browse.StateScheduled, -1, "", 3 * time.Hour, "[p new]"},
		{"blocked", browse.StateBlocked, 25, "exhausted", 0, "[p new]"},
		{"retry", browse.StateReady, -1, "boom", 0, "[p new]"},
		{"now", browse.StateReady, 0, "old", 0, "[p new]"},
	} {
		got := r.find(c.id, c.state)
		eq(t, c.id, fmt.Sprint(got.RetryCount, got.Error, dataOf(got.Payloads)), fmt.Sprint(c.retry, c.message, c.payloads))
		near(t, c.id, got.PerformAt, c.in)
	}
	eq(t, "drained", show(r.drain()...), "retry[p new] now[p new]")
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (4 * time.Hour).Microseconds()))
	eq(t, "drained", show(r.drain()...), "ready[p q new] due[p new]")
}

// testImportIntoAFlight checks that an entry for an id in flight waits for the end of the flight as a fresh job. If the
// flight comes back, the two become one job.
func testImportIntoAFlight(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "new", score(1)), job("b", "new", score(1)), job("c", "new", score(1)))
	p := r.pop(3)
	r.push(job("a", "newer", score(1)))
	r.imports("taken|taken|taken", entry(1, "a", "x y", failed(4, "old", 0)), entry(2, "b", "x", failed(4, "old", time.Hour)), entry(3, "c", "x", failed(4, "old", 0)))
	r.ack(p.Flight, "a", "b")
	got := r.find("b", browse.StateScheduled)
	eq(t, "b", fmt.Sprint(got.RetryCount, got.Error), "-1old")
	near(t, "b", got.PerformAt, time.Hour)
	r.nack(p.Flight, "c", Retry, 0, 0)
	eq(t, "drained", show(r.drain()...), "a[x newer y] c[new x]")
}

// testImportRefused checks that a refused entry holds back later entries of its id and no others. It may come again
// after them.
func testImportRefused(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules(r.q.Name, PushRules{Push: rules.Push{Payloads: 2, PayloadBytes: 9}}))
	many := entry(1, "a", "1 2 3")
	r.imports("too many payloads|taken|earlier entry of this id|payload is too large|earlier|taken", many, entry(2, "b", "x"), entry(3, "a", "y"),
		entry(4, "c", "0123456789"), entry(5, "c", "z"), entry(6, "d", "w"))
	r.imports("a reason|taken|earlier", entry(7, "e", "x", func(e *transfer.Entry) { e.Err = errors.New("a reason") }), entry(8, "f", "x"), entry(9, "e", "y"))
	eq(t, "drained", show(r.drain()...), "b[x] d[w] f[x]")
	r.noErr(r.c.SetRules(r.q.Name, PushRules{}))
	r.imports("taken|before|taken|taken|taken|before|taken|before|taken", many, entry(2, "b", "x"), entry(3, "a", "y"), entry(4, "c", "0123456789"),
		entry(5, "c", "z"), entry(6, "d", "w"), entry(7, "e", "x"), entry(8, "f", "x"), entry(9, "e", "y"))
	eq(t, "drained", show(r.drain()...), "a[y 1 2 3] c[z 0123456789] e[y x]") // equal scores: a later entry stands before what waits
	r.imports("taken", entry(10, "a", "z"))
}

// testImportMorgue checks that entries of the morgue keep error and time, and join the buried payloads of their id.
func testImportMorgue(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "new", score(1)))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Bury)
	buried := func(ago time.Duration) func(*transfer.Entry) {
		return func(e *transfer.Entry) {
			e.Morgue, e.Buried, e.RetryCount, e.Error = true, time.Now().Add(-ago).UnixMicro(), 24, "old"
		}
	}
	r.imports("taken|taken", entry(1, "a", "x new", buried(time.Hour)), entry(2, "b", "x", buried(2*time.Hour)))
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(t, "a", fmt.Sprint(st.morgue["a"].Retry, st.morgue["a"].Err, handed(st.morgue["a"])), "25exhausted[new x]")
	near(t, "a", time.UnixMicro(st.morgue["a"].At), 0)
	eq(t, "b", fmt.Sprint(st.morgue["b"].Retry, st.morgue["b"].Err, handed(st.morgue["b"])), "24old[x]")
	near(t, "b", time.UnixMicro(st.morgue["b"].At), -2*time.Hour)
	r.imports("taken", entry(3, "b", "y", buried(time.Minute)))
	n, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a", "b")
	eq(t, "requeued", fmt.Sprint(n, err), "2 <nil>")
	eq(t, "drained", show(r.drain()...), "a[new x] b[x y]")
}

// handed returns the payloads of a job in the order of a handler.
func handed(job *modelJob) (data []string) {
	for _, p := range job.InOrder() {
		data = append(data, p.Data)
	}
	return data
}

// testImportLarge checks that a large entry is sent in parts. They keep one order, and come before waiting payloads
// with equal scores.
func testImportLarge(t *testing.T, b *backend) {
	r := newRig(t, b)
	large := func(number int64, id string, change ...func(*transfer.Entry)) transfer.Entry {
		e := entry(number, id, "", change...)
		for i := range 750 {
			e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(i / 400), Data: fmt.Appendf(nil, "%04d", i)})
		}
		return e
	}
	var want []string
	for i := range 750 {
		if i == 400 {
			want = append(want, "new0", "0500")
		}
		if i != 500 {
			want = append(want, fmt.Sprintf("%04d", i))
		}
	}
	want = append(want, "new1")
	for _, id := range []string{"a", "b", "c"} {
		r.push(job(id, "new0", score(0)), job(id, "new1", score(1)), job(id, "0500", score(0)))
	}
	p := r.pop(1)
	r.push(job("a", "new0", score(0)), job("a", "new1", score(1)), job("a", "0500", score(0)))
	var jobs []lowkiq.Push
	for i := range 40 {
		jobs = append(jobs, job("c", fmt.Sprint("crowd", i), score(5)))
	}
	r.push(jobs...)
	results, err := transfer.Import(r.ctx, r.q, "old", large(1, "a"), large(2, "b", failed(3, "old", 0)), large(3, "c"), large(4, "fresh"))
	r.noErr(err)
	eq(t, "results", fmt.Sprint(results), "[{false <nil>} {false <nil>} {false <nil>} {false <nil>}]")
	results, err = transfer.Import(r.ctx, r.q, "old", large(1, "a"), large(2, "b"), large(3, "c"), large(4, "fresh"))
	r.noErr(err)
	eq(t, "results", fmt.Sprint(results), "[{true <nil>} {true <nil>} {true <nil>} {true <nil>}]")
	if n := r.c.DB().ForTests().HLen(r.ctx, r.s.Keys().From).Val(); n != 1 {
		t.Errorf("got %d numbers of the source, want one", n)
	}
	r.ack(p.Flight, "a")
	got := map[string][]string{}
	for _, j := range r.drain() {
		got[j.ID] = append(got[j.ID], dataOf(j.Payloads)...)
	}
	eq(t, "a", got["a"], want)
	eq(t, "b", got["b"], want)
	eq(t, "c", got["c"][:752], want)
	eq(t, "fresh", len(got["fresh"]), 750)
	eq(t, "the crowd", len(got["c"]), 792)
}

// testImportWakes checks that an import wakes the owner as a push does.
func testImportWakes(t *testing.T, b *backend) {
	r := newRig(t, b)
	sub := r.c.DB().ForTests().(redis.UniversalClient).Subscribe(r.ctx, r.s.Keys().Wake)
	defer sub.Close()
	_, err := sub.Receive(r.ctx)
	r.noErr(err)
	next := func(what, want string) {
		t.Helper()
		m, err := r.receive(sub)
		r.noErr(err)
		eq(t, what, m.Payload, want)
	}
	later := entry(1, "later", "x", failed(-1, "", time.Hour))
	for i, c := range []struct {
		what, want string
		entry      transfer.Entry
	}{{"scheduled", fmt.Sprint(later.Due), later}, {"due now", "0", entry(2, "a", "x")}, {"due now after all", "0", entry(3, "later", "y")}} {
		_, err := transfer.Import(r.ctx, r.q, "old", c.entry)
		r.noErr(err)
		next(fmt.Sprint(i, " ", c.what), c.want)
		if i == 1 {
			r.pop(1)
		}
	}
	_, err = transfer.Import(r.ctx, r.q, "old", entry(4, "a", "y"))
	r.noErr(err)
	next("in flight", "-1")
}

// testImportBadEntries checks that entries that no queue accepts are refused with a reason, and a malformed import is
// refused as a whole.
func testImportBadEntries(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.imports("id is empty|512 are allowed|without payloads|not a finite|retry count|perform_in|taken",
		entry(1, "", "x"), entry(2, strings.Repeat("i", 513), "x"), entry(3, "a", ""), entry(4, "b", "x", func(e *transfer.Entry) { e.Payloads[0].Score = math.Inf(1) }),
		entry(5, "c", "x", failed(-2, "", 0)), entry(6, "d", "x", func(e *transfer.Entry) { e.Due = (lowkiq.MaxPerformAt + 1) * 1e6 }), entry(7, "\xff\x00 any", "x"))
	for _, bad := range []struct {
		source  string
		entries []transfer.Entry
	}{{"", nil}, {"a\x00", nil}, {strings.Repeat("s", 201), nil}, {"old", []transfer.Entry{entry(0, "a", "x")}}, {"old", []transfer.Entry{entry(9, "a", "x"), entry(9, "a", "x")}}} {
		if results, err := transfer.Import(r.ctx, r.q, bad.source, bad.entries...); err == nil || results != nil {
			t.Errorf("%.20q: got %v, %v, want an error alone", bad.source, results, err)
		}
	}
}
