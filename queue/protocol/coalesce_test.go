package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

var coalesceTests = []testCase{
	{"Coalesce_Latest", testCoalesceLatest},
	{"Coalesce_LatestOfLargePayloads", testCoalesceLarge},
	{"Coalesce_Once", testCoalesceOnce},
	{"Coalesce_LeavesCallsAlone", testCoalesceCalls},
	{"Coalesce_PushedAgain", testCoalesceAgain},
	{"Coalesce_TheLastPushGetsARun", testCoalesceLast},
	{"Coalesce_Debounce", testDebounce},
	{"Coalesce_DebounceForgets", testDebounceForgets},
	{"Coalesce_DebouncePullsNothingForward", testDebounceForward},
}

func (r *rig) rule(p PushRules) {
	r.t.Helper()
	r.noErr(r.c.SetRules(r.q.Name, p))
}

func testCoalesceLatest(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "0"), job("a", "1"))
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}})
	r.push(job("a", "2"))
	r.push(job("a", "3"), job("a", "4"), job("b", "1"))
	eq(t, "of what waits", show(r.drain()...), "a[4] b[1]")
	for _, c := range []struct {
		pushed []lowkiq.Push
		merged string
		want   string
	}{
		{[]lowkiq.Push{job("a", "new", score(7)), job("a", "old", score(5))}, "[false true]", "a[new]"},
		{[]lowkiq.Push{job("a", "x", score(5)), job("a", "x", score(7)), job("a", "y", score(6))}, "[false true true]", "a[x]"},
		{[]lowkiq.Push{job("a", "x", score(5)), job("a", "y", score(5))}, "[false false]", "a[y]"},
	} {
		var merged []bool
		for _, one := range c.pushed {
			merged = append(merged, r.push(one)[0].Merged)
		}
		eq(t, "merged", fmt.Sprint(merged), c.merged)
		eq(t, "the highest score", show(r.drain()...), c.want)
	}
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.push(job("a", "2"))
	r.push(job("a", "3"))
	r.nack(flight, "a", Retry, 0, 0)
	eq(t, "of what was pushed during a flight that failed", show(r.drain()...), "a[1 3]")
	r.push(job("a", "1"))
	_, flight = r.popOne("a")
	r.nack(flight, "a", Retry, 3, time.Hour)
	r.push(job("a", "2"))
	if failed := r.find("a", browse.StateRetry); failed.RetryCount != 3 || len(failed.Payloads) != 1 || string(failed.Payloads[0].Data) != "2" {
		t.Errorf("got %+v, want the last payload with the retries that are left", failed)
	}
}

// testCoalesceLarge checks that payloads that are stored apart from the record coalesce as well.
func testCoalesceLarge(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest, IDPayload: 2 << 20}})
	large := func(c string, n int) string { return strings.Repeat(c, n) }
	for i, n := range []int{5000, 1 << 20, 20, 300_000, 5000} {
		r.push(job("a", large(fmt.Sprint(i), n), score(float64(i))))
	}
	if r.push(job("a", large("x", 5000), score(2)))[0].Merged != true {
		t.Error("one with a lower score was stored, want it merged")
	}
	got := r.drain()
	if len(got) != 1 || len(got[0].Payloads) != 1 || string(got[0].Payloads[0].Data) != large("4", 5000) {
		t.Errorf("got %.100s, want the last one alone", show(got...))
	}
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest, IDPayload: 6000}})
	r.push(job("a", large("1", 5000)))
	if _, err := r.q.Push(r.ctx, job("a", large("2", 6001))); err == nil {
		t.Error("one beyond the limit was stored")
	}
	if got = r.drain(); len(got) != 1 || string(got[0].Payloads[0].Data) != large("1", 5000) {
		t.Errorf("got %.100s, want what was there before one was refused", show(got...))
	}
}

func testCoalesceOnce(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceOnce}})
	eq(t, "merged", fmt.Sprint(r.push(job("a", "1"), job("a", "2"), job("b", "1"))), "[{false <nil>} {true <nil>} {false <nil>}]")
	j, flight := r.popOne("a")
	eq(t, "the first one", show(j), "a[1]")
	eq(t, "during the flight", fmt.Sprint(r.push(job("a", "3"), job("a", "4"))), "[{false <nil>} {true <nil>}]")
	r.ack(flight, "a")
	eq(t, "runs again", show(r.drain()...), "b[1] a[3]")
}

// testCoalesceCalls checks that each caller gets an answer.
func testCoalesceCalls(t *testing.T, b *backend) {
	r := newRig(t, b)
	for kind, want := range map[string]string{rules.CoalesceLatest: "a[call 4]", rules.CoalesceOnce: "a[1 call]"} {
		r.rule(PushRules{Push: rules.Push{Coalesce: kind}})
		call := job("a", "call")
		call.ReplyTo = envelope.Address("token_1", time.Minute, r.c.DB().Keys.Replies("c"))
		r.push(job("a", "1"))
		r.push(call)
		r.push(job("a", "3"))
		r.push(job("a", "4"))
		eq(t, kind, show(r.drain()...), want)
	}
}

// testCoalesceAgain repeats a push whose answer was lost. Its stored payload keeps its place beside calls, and a
// payload that it replaced does not come back (I3).
func testCoalesceAgain(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}})
	calls := func(from, n int) (jobs []lowkiq.Push) {
		for i := range n {
			call := job("a", fmt.Sprint("call", from+i))
			call.ReplyTo = envelope.Address(fmt.Sprint("token_", from+i), time.Minute, r.c.DB().Keys.Replies("c"))
			jobs = append(jobs, call)
		}
		return jobs
	}
	join := slices.Concat[[]lowkiq.Push]
	one := func(payload string) []lowkiq.Push { return []lowkiq.Push{job("a", payload)} }
	scored := func(payload string, at float64) []lowkiq.Push { return []lowkiq.Push{job("a", payload, score(at))} }
	for _, c := range []struct {
		name string
		push []lowkiq.Push
		want string
	}{
		{"before a call", join(one("1"), calls(0, 1)), "1 call0"},
		{"that took another's place", join(one("1"), one("2"), calls(0, 1)), "2 call0"},
		{"between calls", join(one("1"), calls(0, 1), one("2"), calls(1, 1)), "call0 2 call1"},
		{"of one score", join(scored("1", 5), scored("2", 5), scored("3", 4)), "2"},
		{"before a crowd of calls", join(one("1"), one("2"), calls(0, 40)), "2 " + strings.Trim(fmt.Sprint(payloadsOf(calls(0, 40))), "[]")},
		{"in a crowd of calls", join(one("1"), calls(0, 40), one("2"), one("3")), "1 " + strings.Trim(fmt.Sprint(payloadsOf(calls(0, 40))), "[]") + " 2 3"},
	} {
		r.push(c.push...)
		r.push(c.push...)
		eq(t, c.name, show(r.drain()...), "a["+c.want+"]")
	}
}

func payloadsOf(jobs []lowkiq.Push) (all []string) {
	for _, job := range jobs {
		all = append(all, string(job.Payload))
	}
	return all
}

// testCoalesceLast checks that a run that sees the last push of an id begins after it, for all pushes, pops, answers
// and changes of the owner. It sees the pushed payload or, with once, a payload that no earlier run has begun.
func testCoalesceLast(t *testing.T, b *backend) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 5))
		kind := []string{rules.CoalesceLatest, rules.CoalesceOnce}[seed%2]
		r := newRig(t, b)
		d := rules.Debounce{}
		if seed%3 == 0 {
			d = rules.Debounce{Quiet: time.Millisecond, Most: 5 * time.Millisecond}
		}
		r.rule(PushRules{Push: rules.Push{Coalesce: kind, Debounce: d}})
		last, saw, step := map[string]int{}, map[string]int{}, 0 // by id: the last push; the last one that a run saw, or began after
		type flight struct {
			number int64
			jobs   []lowkiq.Job
			began  int
		}
		var open []flight
		pop := func() {
			if p := r.pop(1 + rng.IntN(3)); len(p.Jobs) > 0 {
				open = append(open, flight{p.Flight, p.Jobs, step})
			}
		}
		done := func(f flight) {
			for _, j := range f.jobs {
				for _, p := range j.Payloads {
					n := 0
					_, _ = fmt.Sscan(string(p.Data), &n)
					saw[j.ID] = max(saw[j.ID], n)
				}
				if kind == rules.CoalesceOnce {
					saw[j.ID] = max(saw[j.ID], f.began)
				}
				r.ack(f.number, j.ID)
			}
		}
		for step = 1; step < 150; step++ {
			switch k := rng.IntN(10); {
			case k < 5:
				id := string(rune('a' + rng.IntN(3)))
				r.push(job(id, fmt.Sprint(step)))
				last[id] = step
			case k < 7:
				pop()
			case k < 9 && len(open) > 0:
				i := rng.IntN(len(open))
				f := open[i]
				open = slices.Delete(open, i, i+1)
				if rng.IntN(3) > 0 {
					done(f)
					break
				}
				for _, j := range f.jobs {
					r.nack(f.number, j.ID, []NackKind{Retry, Postpone, Return}[rng.IntN(3)], 0, time.Duration(rng.IntN(3))*time.Millisecond)
				}
			case k == 9:
				open = nil
				_, err := r.claim.Release(r.ctx)
				r.noErr(err)
				r.own(Fresh)
			}
		}
		for end := time.Now().Add(patience); ; step++ {
			pop()
			for _, f := range open {
				done(f)
			}
			open = nil
			stats, err := r.q.Stats(r.ctx)
			r.noErr(err)
			if stats.Jobs.Total() == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("seed %d: %+v are left", seed, stats.Jobs)
			}
		}
		for id, n := range last {
			if saw[id] < n {
				t.Errorf("seed %d, %s: the last push of %s was %d, the last one that a run saw %d", seed, kind, id, n, saw[id])
			}
		}
	}
}

// testDebounce checks that each push puts waiting jobs off, up to the longest time. It does not put off jobs that have
// failed, are held, or have a time of their own.
func testDebounce(t *testing.T, b *backend) {
	r := newRig(t, b)
	const quiet, most = time.Hour, 90 * time.Minute
	r.rule(PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: quiet, Most: most}}})
	due := func(id string) time.Time { return r.find(id, browse.StateScheduled).PerformAt }
	r.push(job("a", "1"))
	first := due("a")
	near(t, "after the first push", first, quiet)
	r.back(r.s, "a", 20*time.Minute)
	r.push(job("a", "2"))
	near(t, "after another one", due("a"), quiet)
	r.back(r.s, "a", 20*time.Minute)
	r.push(job("a", "3"))
	near(t, "at the latest", due("a"), 50*time.Minute)
	r.push(job("own", "1", in(5*time.Hour)))
	r.push(job("own", "2"))
	near(t, "of its own", due("own"), 5*time.Hour)
	r.push(job("crowd", "0"))
	r.back(r.s, "crowd", 10*time.Minute)
	var many []lowkiq.Push
	for i := range 50 {
		many = append(many, job("crowd", fmt.Sprint(i)))
	}
	r.push(many...)
	near(t, "of many", due("crowd"), quiet)
	r.back(r.s, "a", 60*time.Minute)
	j, flight := r.popOne("a")
	eq(t, "all of them", show(j), "a[1 2 3]")
	r.push(job("a", "4"))
	r.ack(flight, "a")
	near(t, "pushed during the flight", due("a"), quiet)
	r.back(r.s, "a", 2*time.Hour)
	_, flight = r.popOne("a")
	r.nack(flight, "a", Retry, 0, 3*time.Hour)
	r.push(job("a", "5"))
	near(t, "failed", r.find("a", browse.StateRetry).PerformAt, 3*time.Hour)
	debounced := func(id string) (flight int64) {
		r.push(job(id, "1"))
		r.back(r.s, id, time.Hour)
		_, flight = r.popOne(id)
		return flight
	}
	r.nack(debounced("later"), "later", Postpone, 0, 3*time.Hour)
	r.push(job("later", "2"))
	near(t, "postponed by its handler", due("later"), 3*time.Hour)
	flight = debounced("later too")
	r.push(job("later too", "2"))
	r.nack(flight, "later too", Postpone, 0, 10*time.Minute)
	r.push(job("later too", "3"))
	near(t, "postponed with what was pushed meanwhile", due("later too"), 10*time.Minute)
	r.ack(debounced("again"), "again")
	r.push(job("again", "2", in(5*time.Hour)))
	r.push(job("again", "3"))
	near(t, "of its own, after a job that was put off", due("again"), 5*time.Hour)
}

// testDebounceForward checks that no push makes an id due earlier than it is, whoever has set that time. It may be a
// producer that does not know the rule yet, a delivery, or a push with a shorter time of quiet.
func testDebounceForward(t *testing.T, b *backend) {
	r := newRig(t, b)
	by := PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Second, Most: 10 * time.Second}}}
	putOff := func(id string) {
		r.rule(by)
		r.push(job(id, "1"))
		r.back(r.s, id, time.Second)
		_, flight := r.popOne(id)
		r.ack(flight, id)
	}
	due := func(id string) time.Time { return r.find(id, browse.StateScheduled).PerformAt }
	putOff("a")
	r.rule(PushRules{})
	r.push(job("a", "2", in(5*time.Hour)))
	r.rule(by)
	r.push(job("a", "3"))
	near(t, "pushed with a time of its own by another producer", due("a"), 5*time.Hour)
	putOff("b")
	_, err := r.q.Deliver(r.ctx, Delivery{"source", 1}, job("b", "2", in(5*time.Hour)))
	r.noErr(err)
	r.push(job("b", "3"))
	near(t, "delivered with a time of its own", due("b"), 5*time.Hour)
	putOff("c")
	r.push(job("c", "2"))
	r.back(r.s, "c", time.Second)
	_, flight := r.popOne("c")
	r.rule(PushRules{})
	r.push(job("c", "3", in(5*time.Hour)))
	r.rule(by)
	r.push(job("c", "4"))
	r.ack(flight, "c")
	near(t, "pushed during a flight with a time of its own", due("c"), 5*time.Hour)
	r.rule(PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Hour, Most: 2 * time.Hour}}})
	r.push(job("d", "1"))
	r.rule(by)
	r.push(job("d", "2"))
	near(t, "put off by a longer time of quiet", due("d"), time.Hour)
}

// back lets time go by since the pushes of an id.
func (r *rig) back(s *Shard, id string, d time.Duration) {
	r.t.Helper()
	db, k := r.c.DB().ForTests(), s.Keys()
	for _, key := range []string{k.Due, k.Since} {
		us, err := db.ZScore(r.ctx, key, id).Result()
		r.noErr(err)
		r.noErr(db.ZAdd(r.ctx, key, redis.Z{Score: us - float64(d.Microseconds()), Member: id}).Err())
	}
	record := []byte(db.HGet(r.ctx, k.Jobs, id).Val())
	fields := strings.SplitN(string(record), " ", 3)
	at := int64(0)
	_, err := fmt.Sscan(fields[1], &at)
	r.noErr(err)
	fields[1] = fmt.Sprint(at - d.Microseconds())
	r.noErr(db.HSet(r.ctx, k.Jobs, id, strings.Join(fields, " ")).Err())
}

// testDebounceForgets checks that the time of an id's first push is not kept longer than needed.
func testDebounceForgets(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.rule(PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Second, Most: time.Minute}}})
	db, k := r.c.DB().ForTests(), r.s.Keys()
	for i := range 100 {
		r.noErr(db.ZAdd(r.ctx, k.Since, redis.Z{Score: float64(i + 1), Member: fmt.Sprint("old", i)}).Err())
	}
	for range 6 {
		r.push(job("a", "1"))
	}
	eq(t, "ids", fmt.Sprint(db.ZRange(r.ctx, k.Since, 0, -1).Val()), "[a]")
}
