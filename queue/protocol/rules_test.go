package protocol_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
)

// ruleTests has a test for each rule in section 4 of the design that package queue/protocol implements.
var ruleTests = []testCase{
	{"Rule_PayloadsAreASetWithTheSmallestScore", testRuleSet},
	{"Rule_EqualScoresKeepPushOrder", testRuleEqualScores},
	{"Rule_NewIntoQueuedKeepsDueTimeAndRetryCount", testRuleNewIntoQueued},
	{"Rule_FailedIntoQueuedTheFailedJobWins", testRuleFailedIntoQueued},
	{"Rule_PostponeAndReturnSpendNoRetry", testRulePostpone},
	{"Rule_MorgueIntoQueuedIsFreshAndDueNow", testRuleMorgueIntoQueued},
	{"Rule_SkipBuriesTheSmallestScore", testRuleSkip},
	{"Rule_BuryBuriesTheFlight", testRuleBury},
	{"Rule_BlockWaitsForAPerson", testRuleBlock},
	{"Rule_ParkedWaitsSinceItsOwnTime", testRuleParked},
	{"Rule_DefaultScoresRiseStrictly", testRuleDefaultScores},
	{"Rule_LimitsRefuseThatJobOnly", testRuleLimits},
	{"Rule_MergesDropNothing", testRuleMergesDropNothing},
	{"Rule_PeopleLeaveAFlightAlone", testRuleFlightAlone},
	{"Rule_ScoresKeepTheirBits", testRuleScoreBits},
	{"Rule_IDsAndPayloadsAreAnyBytes", testRuleAnyBytes},
	{"Rule_DueJobsComeByDueTime", testRuleDueOrder},
	{"Rule_HeadersAreNoPartOfEquality", testRuleHeaders},
	{"Rule_HeadersComeBack", testRuleHeadersComeBack},
	{"Rule_BadHeadersRefuseTheirJob", testRuleBadHeaders},
}

func testRuleSet(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "x", score(5)), job("a", "y", score(3)))
	got := r.push(job("a", "x", score(1)), job("a", "y", score(4)))
	eq(t, "merged", []bool{got[0].Merged, got[1].Merged}, []bool{true, true})
	a, _ := r.popOne("a")
	eq(t, "payloads", fmt.Sprint(a.Payloads), fmt.Sprint([]lowkiq.Payload{{Score: 1, Data: []byte("x")}, {Score: 3, Data: []byte("y")}}))
	// The same within one push, in every form.
	for _, options := range [][]func(*lowkiq.Push){nil, {score(2)}, {in(-time.Hour)}} {
		results := r.push(job("b", "x", options...), job("c", "z", options...), job("b", "x", options...))
		eq(t, "second in one push merged", results[2].Merged, true)
		eq(t, "drained", show(r.drain()...), "b[x] c[z]")
	}
}

func testRuleEqualScores(t *testing.T, b *backend) {
	r := newRig(t, b)
	var want []string
	for i := range 100 { // past the spill
		r.push(job("a", fmt.Sprint("p", i), score(7)))
		want = append(want, fmt.Sprint("p", i))
	}
	r.push(job("a", "p50", score(9)), job("a", "last", score(8)), job("a", "first", score(6)))
	a, _ := r.popOne("a")
	eq(t, "order", dataOf(a.Payloads), append(append([]string{"first"}, want...), "last"))
}

func testRuleNewIntoQueued(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("later", "1", in(2*time.Hour)))
	r.push(job("later", "2"), job("later", "3", in(time.Hour)))
	later := r.find("later", browse.StateScheduled)
	near(t, "due time", later.PerformAt, 2*time.Hour)

	r.push(job("failed", "1"))
	_, flight := r.popOne("failed")
	r.nack(flight, "failed", Retry, 4, 3*time.Hour)
	r.push(job("failed", "2"))
	failed := r.find("failed", browse.StateRetry)
	near(t, "due time", failed.PerformAt, 3*time.Hour)
	eq(t, "retry count", failed.RetryCount, 4)
	eq(t, "error", failed.Error, "boom")
	eq(t, "payloads", show(failed.Job), "failed[1 2]")
}

func testRuleFailedIntoQueued(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "x", score(2)))
	_, flight := r.popOne("a")
	r.push(job("a", "y", score(1), in(9*time.Hour)), job("a", "x", score(0)))
	r.nack(flight, "a", Retry, 7, time.Hour)
	a := r.find("a", browse.StateRetry)
	near(t, "due time", a.PerformAt, time.Hour)
	eq(t, "retry count", a.RetryCount, 7)
	eq(t, "payloads", fmt.Sprint(a.Payloads), fmt.Sprint([]lowkiq.Payload{{Score: 0, Data: []byte("x")}, {Score: 1, Data: []byte("y")}}))
}

func testRulePostpone(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	p := r.pop(2)
	r.push(job("c", "1"))
	r.nack(p.Flight, "a", Postpone, 3, time.Hour)
	a := r.find("a", browse.StateScheduled)
	near(t, "due time", a.PerformAt, time.Hour)
	eq(t, "retry count", a.RetryCount, -1)
	r.nack(p.Flight, "b", Return, 3, time.Hour)
	eq(t, "returned to the head", show(r.drain()...), "b[1] c[1]")
}

func testRuleMorgueIntoQueued(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "dead", score(1)))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Bury)
	r.push(job("a", "new", score(0), in(time.Hour)), job("a", "dead", score(2)))
	n, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	eq(t, "requeued", n, 1)
	a := r.find("a", browse.StateReady)
	near(t, "due time", a.PerformAt, 0)
	eq(t, "retry count", a.RetryCount, -1)
	eq(t, "payloads", fmt.Sprint(a.Payloads), fmt.Sprint([]lowkiq.Payload{{Score: 0, Data: []byte("new")}, {Score: 1, Data: []byte("dead")}}))
	eq(t, "due", show(r.drain()...), "a[new dead]")
}

func testRuleSkip(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "2", score(2)), job("a", "1", score(1)), job("a", "1b", score(1)))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Skip)
	a := r.find("a", browse.StateReady)
	eq(t, "left", show(a.Job), "a[1b 2]")
	eq(t, "retry count", a.RetryCount, -1)
	eq(t, "error", a.Error, "exhausted")
	near(t, "due time", a.PerformAt, 0)
	dead := whole(t, r.q, browse.Query{State: browse.StateMorgue})
	eq(t, "morgue", show(dead[0].Job), "a[1]")
	eq(t, "morgue's error", dead[0].Error, "exhausted")
	eq(t, "morgue's retry count", dead[0].RetryCount, 25)
}

func testRuleBury(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("a", "2"))
	_, flight := r.popOne("a")
	r.push(job("a", "3", in(time.Hour)))
	r.bury(flight, "a", Bury)
	a := r.find("a", browse.StateScheduled) // never tried: a fresh job, with its own due time
	eq(t, "left", show(a.Job), "a[3]")
	near(t, "due time", a.PerformAt, time.Hour)
	dead := whole(t, r.q, browse.Query{State: browse.StateMorgue})
	eq(t, "morgue", show(dead[0].Job), "a[1 2]")
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "payloads in the morgue", stats.Morgue, 2)
}

func testRuleBlock(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.push(job("a", "2"))
	r.bury(flight, "a", Block)
	r.push(job("a", "3"))
	n, err := browse.Of(r.q).RunNow(r.ctx, "a")
	r.noErr(err)
	eq(t, "run now", n, 0)
	eq(t, "popped", show(r.drain()...), "")
	eq(t, "accumulated", show(r.find("a", browse.StateBlocked).Job), "a[1 2 3]")
	n, err = browse.Of(r.q).BuryOldest(r.ctx, browse.StateBlocked, "a")
	r.noErr(err)
	eq(t, "skipped", n, 1)
	eq(t, "goes on", show(r.drain()...), "a[2 3]")
	r.push(job("b", "1"))
	_, flight = r.popOne("b")
	r.bury(flight, "b", Block)
	_, err = browse.Of(r.q).Requeue(r.ctx, browse.StateBlocked, "b")
	r.noErr(err)
	eq(t, "unblocked", show(r.drain()...), "b[1]")
}

func testRuleParked(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("past", "1"), job("future", "1"))
	p := r.pop(2)
	r.push(job("past", "2", in(-time.Hour)), job("future", "2", in(time.Hour)))
	eq(t, "parked", r.find("past", browse.StateInFlight).Parked, 1)
	eq(t, "popped while in flight", show(r.drain()...), "")
	r.ack(p.Flight, "past", "future")
	near(t, "due time", r.find("past", browse.StateReady).PerformAt, -time.Hour)
	near(t, "due time", r.find("future", browse.StateScheduled).PerformAt, time.Hour)
	eq(t, "due", show(r.drain()...), "past[2]")
}

func testRuleDefaultScores(t *testing.T, b *backend) {
	r := newRig(t, b)
	last := 0.0
	rise := func(when string) {
		t.Helper()
		var jobs []lowkiq.Push
		for i := range 200 {
			jobs = append(jobs, job(fmt.Sprint("id", i%100), strconv.Itoa(i)))
		}
		r.push(jobs...)                // one script, with ids twice
		r.push(jobs[100:150]...)       // merges
		r.push(job("more", when+"1"))  // single
		r.push(job("more", when+"2"))  // into a waiting id
		r.push(job("more", when+"3x")) // once more
		scores := map[string]float64{}
		for _, j := range r.drain() {
			for _, p := range j.Payloads {
				scores[string(p.Data)] = p.Score
			}
		}
		for i := range 200 {
			if s := scores[strconv.Itoa(i)]; s <= last {
				t.Fatalf("%s: score %d: got %v after %v, want more", when, i, s, last)
			} else {
				last = s
			}
		}
		for _, k := range []string{"1", "2", "3x"} {
			if s := scores[when+k]; s <= last {
				t.Fatalf("%s: score of %s: got %v after %v, want more", when, k, s, last)
			} else {
				last = s
			}
		}
	}
	rise("as the clock goes")
	// Redis's clock was ahead an hour ago. Scores continue from there.
	ahead := time.Now().Add(time.Hour).UnixMicro()
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Count, "last", ahead).Err())
	rise("after the clock went back")
	if last < float64(ahead)/1e6 {
		t.Errorf("score: got %v, want more than the last one, %v", last, float64(ahead)/1e6)
	}
}

func testRuleLimits(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 40, IDPayload: 6000}}))
	fill := func(id string, n, size int) {
		for i := range n {
			r.push(job(id, fmt.Sprintf("%0*d", size, i)))
		}
	}
	fill("many", 40, 2)
	fill("bulky", 3, 2000)
	big := strings.Repeat("x", 6001)
	results, err := r.q.Push(r.ctx, job("many", "one more"), job("ok", "1"), job("bulky", "x"), job("many", "07"), job("big", big), job("ok", "2"))
	if !errors.Is(err, ErrTooManyPayloads) {
		t.Errorf("push: got %v, want %v", err, ErrTooManyPayloads)
	}
	for i, want := range []error{ErrTooManyPayloads, nil, ErrTooManyBytes, nil, ErrTooManyBytes, nil} {
		if !errors.Is(results[i].Err, want) {
			t.Errorf("job %d: got %v, want %v", i, results[i].Err, want)
		}
	}
	eq(t, "equal payload merged", results[3].Merged, true)
	eq(t, "others stored", show(r.find("ok", browse.StateReady).Job), "ok[1 2]")
	r.gone("big")
}

func testRuleMergesDropNothing(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 3}}))
	r.push(job("a", "1"), job("a", "2"), job("a", "3"))
	_, flight := r.popOne("a")
	r.push(job("a", "4"), job("a", "5"), job("a", "6"))
	r.nack(flight, "a", Return, 0, 0)
	_, err := r.q.Push(r.ctx, job("a", "7"))
	if !errors.Is(err, ErrTooManyPayloads) {
		t.Errorf("push: got %v, want %v", err, ErrTooManyPayloads)
	}
	eq(t, "merged", show(r.drain()...), "a[1 2 3 4 5 6]")
}

func testRuleFlightAlone(t *testing.T, b *backend) {
	r := newRig(t, b)
	actions := map[string]func(...string) (int, error){
		"delete":  func(ids ...string) (int, error) { return browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...) },
		"kill":    func(ids ...string) (int, error) { return browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...) },
		"run now": func(ids ...string) (int, error) { return browse.Of(r.q).RunNow(r.ctx, ids...) },
	}
	for name, act := range actions {
		id := "id " + name
		r.push(job(id, "flying"))
		_, flight := r.popOne(id)
		n, err := act(id)
		r.noErr(err)
		eq(t, name+" with nothing waiting", n, 0)
		r.push(job(id, "parked", in(time.Hour)))
		n, err = act(id)
		r.noErr(err)
		eq(t, name+" of what was parked", n, 1)
		eq(t, name+": still flying", show(r.find(id, browse.StateInFlight).Job), id+"[flying]")
		eq(t, name+": acked", r.ack(flight, id), 1)
		if name == "run now" {
			eq(t, "run now: due", show(r.drain()...), id+"[parked]")
		} else if found, ok, _ := browse.Of(r.q).Job(r.ctx, id); ok && found.State != browse.StateMorgue {
			t.Errorf("%s: got %+v, want nothing waiting", name, found)
		}
	}
}

func testRuleScoreBits(t *testing.T, b *backend) {
	r := newRig(t, b)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if b.mini && n > 20 {
			return
		}
		want := rapid.Float64().Filter(func(f float64) bool { return !math.IsInf(f, 0) && !math.IsNaN(f) }).Draw(rt, "score")
		n++
		id := fmt.Sprint("id", n)
		// Records of one payload, with a due time, of several payloads, and a crowded record, through a
		// flight and back.
		r.push(job(id, "x", score(want)), job(id+"at", "x", score(want), in(-time.Hour)), job(id+"two", "x", score(want)), job(id+"two", "y", score(want)))
		for i := range 33 {
			r.push(job(id+"crowd", fmt.Sprint(i), score(want)))
		}
		p := r.pop(4)
		for _, j := range p.Jobs {
			r.nack(p.Flight, j.ID, Return, 0, 0)
		}
		for _, j := range r.drain() {
			for _, p := range j.Payloads {
				if exact := math.Float64bits(p.Score) == math.Float64bits(want); !exact && !(want == 0 && p.Score == 0) { // a crowd takes -0 for 0: they are equal (I3)
					rt.Fatalf("score of %s: got %v, want %v", j.ID, p.Score, want)
				}
			}
		}
	})
}

func testRuleAnyBytes(t *testing.T, b *backend) {
	r := newRig(t, b)
	words := []string{"\x00", "\n", "a\x00b", "\xff\xfe", "a\nb 1 2:3", "x", "s", "j-1 0 0 0 0 0\n", "a b", ":", strings.Repeat("\x00", 512), "é", "\r\n$5"}
	for _, id := range words {
		for _, payload := range append(words, "") {
			r.push(job(id, payload), job(id, payload+"\x00"))
		}
	}
	for i := range 2 {
		p := r.pop(100)
		eq(t, "ids", len(p.Jobs), len(words))
		for k, j := range p.Jobs {
			eq(t, "id", j.ID, words[k])
			want := map[string]bool{"": true, "\x00": true}
			for _, w := range words {
				want[w], want[w+"\x00"] = true, true
			}
			for _, payload := range j.Payloads {
				delete(want, string(payload.Data))
			}
			eq(t, "missing payloads", len(want), 0)
		}
		if i == 0 {
			r.own(Seize)
			r.crashFree()
		}
	}
}

// crashFree ends the quarantine of all ids.
func (r *rig) crashFree() {
	r.t.Helper()
	pipe := r.c.DB().ForTests().Pipeline()
	ids := r.c.DB().ForTests().LRange(r.ctx, r.s.Keys().Suspects, 0, -1).Val()
	pipe.Del(r.ctx, r.s.Keys().Suspects, r.s.Keys().Crashes)
	for _, id := range ids {
		pipe.RPush(r.ctx, r.s.Keys().Ready, id)
	}
	_, err := pipe.Exec(r.ctx)
	r.noErr(err)
}

func testRuleDueOrder(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("late", "1", in(90*time.Minute)), job("c", "1", in(time.Hour)), job("first", "1"))
	r.push(job("b", "1", in(30*time.Minute)))
	r.push(job("long ago", "1", in(-time.Hour))) // due on arrival: to the ready list
	p := r.pop(1)
	eq(t, "popped", show(p.Jobs...), "first[1]")
	near(t, "next", p.Next, 30*time.Minute)
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (70 * time.Minute).Microseconds()))
	eq(t, "popped", show(r.drain()...), "long ago[1] b[1] c[1]")
	near(t, "late", r.find("late", browse.StateScheduled).PerformAt, 20*time.Minute)
}

// header sets a header of a push.
func header(name, value string) func(*lowkiq.Push) {
	return func(p *lowkiq.Push) { p.Header = map[string]string{name: value} }
}

// testRuleHeaders checks that of equal payloads the first keeps its headers, also in the spill.
func testRuleHeaders(t *testing.T, b *backend) {
	for _, crowd := range []int{1, 100} {
		r := newRig(t, b)
		var first, again []lowkiq.Push
		for i := range crowd {
			first = append(first, job("a", fmt.Sprint(i), score(5), header("h", "first")))
			again = append(again, job("a", fmt.Sprint(i), score(float64(4+i%3)), header("another", "second")), job("a", fmt.Sprint(i)))
		}
		r.push(first...)
		for i, result := range r.push(again...) {
			eq(t, fmt.Sprint("merged ", i), result.Merged, true)
		}
		eq(t, "faults of the spill", strings.Contains(linesOf(r.audit()), "spill"), false)
		a, _ := r.popOne("a")
		eq(t, "payloads", len(a.Payloads), crowd)
		for _, p := range a.Payloads {
			eq(t, "header", p.Header, `{"h":"first"}`)
			eq(t, "value", p.Header.Get("h")+p.Header.Get("another"), "first")
			if i, err := strconv.Atoi(string(p.Data)); err != nil || p.Score != float64(min(5, 4+i%3)) {
				t.Errorf("got %q with score %v", p.Data, p.Score)
			}
		}
	}
}

// testRuleHeadersComeBack checks that headers stay with their payload, and data that begins like an envelope comes out
// unchanged.
func testRuleHeadersComeBack(t *testing.T, b *backend) {
	r := newRig(t, b)
	for id, data := range map[string]string{"plain": "x", "alike": "\x00L\x00\x00\x00x", "empty": ""} {
		r.push(job(id, data, header("tag", "vip")), job(id, "none"))
		_, flight := r.popOne(id)
		r.nack(flight, id, Retry, 0, time.Hour)
		_, err := browse.Of(r.q).Bury(r.ctx, browse.StateRetry, id)
		r.noErr(err)
		dead := r.find(id, browse.StateMorgue)
		_, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, id)
		r.noErr(err)
		back, _ := r.popOne(id)
		for _, j := range []lowkiq.Job{dead.Job, back} {
			got := []string{}
			for _, p := range j.Payloads {
				got = append(got, fmt.Sprintf("%q %s", p.Data, p.Header))
			}
			eq(t, id, got, []string{fmt.Sprintf("%q %s", data, `{"tag":"vip"}`), `"none" `})
		}
	}
}

func testRuleBadHeaders(t *testing.T, b *backend) {
	r := newRig(t, b)
	long := strings.Repeat("v", lowkiq.MaxHeaderBytes-len(`{"h":""}`))
	for name, bad := range map[string]func(*lowkiq.Push){
		"too many bytes": header("h", long+"v"), "no name": header("", "v"), "a name with a space": header("a b", "v"),
		"a long name": header(strings.Repeat("n", 129), "v"), "no text": header("h", "\xff"),
	} {
		results, err := r.q.Push(r.ctx, job("x", "1", bad), job("y", "1"), job("x", "2", header("h", long)))
		if !errors.Is(err, lowkiq.ErrHeader) || !errors.Is(results[0].Err, lowkiq.ErrHeader) || results[1].Err != nil || results[2].Err != nil {
			t.Errorf("%s: got %v and %+v, want that job refused, and no other", name, err, results)
		}
	}
	var stored []string
	for _, j := range r.drain() {
		stored = append(stored, fmt.Sprintf("%s %s", j.ID, j.Payloads[0].Data))
	}
	eq(t, "stored", stored, []string{"y 1", "x 2"})
}
