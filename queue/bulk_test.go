package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

var bulkTests = []testCase{{"Bulk", bulkActions}, {"BulkInSteps", bulkInSteps}, {"BulkAsOfStart", bulkAsOfStart}, {"BulkOfFailed", bulkOfFailed}, {"BulkRefuses", bulkRefuses}, {"Errors", errorGroups}}

// allSteps goes on until the action has no next step.
func allSteps(t *testing.T, q *Queue, action *Action, query Query) (sum Step, steps int) {
	t.Helper()
	for steps = 1; steps < 1000; steps++ {
		step, err := q.Bulk(t.Context(), action, query)
		if err != nil {
			t.Fatal(err)
		}
		if query.Limit > 0 && step.Changed+step.Skipped > query.Limit {
			t.Fatalf("got %+v, want at most %d jobs in a step", step, query.Limit)
		}
		if (step.Next == "") != (step.Left == 0) {
			t.Errorf("got %+v, want none left exactly at the end", step)
		}
		sum.Changed, sum.Skipped, sum.Examined = sum.Changed+step.Changed, sum.Skipped+step.Skipped, sum.Examined+step.Examined
		if step.Next == "" {
			return sum, steps
		}
		query.Cursor = step.Next
	}
	t.Fatalf("%s of %s: got 1,000 steps, want an end", action.Name, query.State)
	return sum, steps
}

func bulkActions(t *testing.T, b *backend) {
	for _, c := range []struct {
		action  *Action
		query   Query
		changed int
		want    Query
		after   string
	}{
		{RunNow, Query{}, 4, Query{By: ByID, State: Ready}, "f1:ready f2:ready f3:ready later:ready ready1:ready ready2:ready"},
		{RunNow, Query{State: Retrying}, 3, Query{State: Scheduled}, "later:scheduled"},
		{RunNow, Query{State: Retrying, Range: Range{MinRetry: 3, MaxRetry: 9}}, 1, Query{State: Retrying}, "f3:retry f2:retry"},
		{RunNow, Query{State: Retrying, Kind: "bang"}, 0, Query{State: Ready}, "ready1:ready ready2:ready"},
		{Kill, Query{Kind: NoKind}, 3, Query{}, "f1:retry f3:retry f2:retry"},
		{Kill, Query{}, 6, Query{By: ByID}, "blocked:blocked fly1:in_flight fly2:in_flight fly3:in_flight"},
		{Kill, Query{State: Ready}, 2, Query{}, "later:scheduled f1:retry f3:retry f2:retry"},
		{BuryBlocked, Query{State: Waiting}, 1, Query{State: Dead, By: ByID}, "blocked:morgue dead1:morgue dead2:morgue"},
		{Delete, Query{State: Scheduled}, 1, Query{}, "ready1:ready ready2:ready f1:retry f3:retry f2:retry"},
		{Delete, Query{State: Retrying, Range: Range{MinID: "f2"}}, 2, Query{State: Retrying}, "f1:retry"},
		{DeleteDead, Query{State: Dead}, 2, Query{State: Dead}, ""},
		{DeleteDead, Query{State: Dead, Kind: "exhausted"}, 2, Query{State: Dead}, ""},
		{Requeue, Query{State: Dead, Range: Range{MinID: "dead2"}}, 1, Query{State: Dead}, "dead1:morgue"},
		{Unblock, Query{State: Waiting}, 1, Query{State: Ready, By: ByID}, "blocked:ready ready1:ready ready2:ready"},
		{SkipOldest, Query{State: Waiting}, 1, Query{State: Waiting}, ""},
	} {
		for _, limit := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s %s %s limit %d", c.action.Name, c.query.State, c.query.Kind, limit), func(t *testing.T) {
				q := everywhere(t, b)
				c.query.Limit = limit
				step, _ := allSteps(t, q, c.action, c.query)
				eq(t, "changed", step.Changed, c.changed)
				eq(t, "then", brief(whole(t, q, c.want)), c.after)
				again, _ := allSteps(t, q, c.action, c.query)
				if c.query.State != Ready && c.action != Kill && again.Changed != 0 {
					t.Errorf("once more: got %d changed, want none", again.Changed)
				}
			})
		}
	}
}

// bulkOfFailed: a job has failed also when its turn has come; one that is blocked, in flight or
// fresh is none of them.
func bulkOfFailed(t *testing.T, b *backend) {
	for action, after := range map[*Action]string{Kill: "dead1:morgue dead2:morgue f1:morgue f2:morgue f3:morgue", Delete: "dead1:morgue dead2:morgue"} {
		q := everywhere(t, b)
		n, err := q.RunNow(t.Context(), "f1", "later")
		eq(t, "run now", fmt.Sprint(n, err), "2 <nil>")
		failed := whole(t, q, Query{State: Failed, By: ByID})
		eq(t, "failed", brief(failed), "f1:ready f2:retry f3:retry")
		eq(t, "failed, as they are stored", brief(whole(t, q, Query{State: Failed})), "f1:ready f3:retry f2:retry")
		eq(t, "failed, by retries", brief(whole(t, q, Query{State: Failed, By: ByRetries, Range: Range{Reverse: true}})), "f1:ready f2:retry f3:retry")
		step, _ := allSteps(t, q, action, Query{State: Failed, Range: Range{Limit: 1}})
		eq(t, "changed", step.Changed, 3)
		eq(t, "the morgue", brief(whole(t, q, Query{State: Dead, By: ByID})), after)
		eq(t, "the others", brief(whole(t, q, Query{By: ByID})), "blocked:blocked fly1:in_flight fly2:in_flight fly3:in_flight later:ready ready1:ready ready2:ready")
	}
}

// Steps are bounded, go on where the last one ended, and do no harm when repeated.
func bulkInSteps(t *testing.T, b *backend) {
	q := crowd(t, b, 50)
	query := Query{State: Scheduled, Range: Range{Limit: 30}}
	first, err := q.Bulk(t.Context(), Kill, query)
	if err != nil || first.Changed != 30 || first.Left != 70 {
		t.Fatalf("got %+v, %v, want 30 of 100", first, err)
	}
	query.Cursor = first.Next
	for i, changed := range []int{30, 30} { // the same step twice: the second time, the next thirty
		step, err := q.Bulk(t.Context(), Kill, query)
		if err != nil || step.Changed != changed || step.Left != 40 {
			t.Errorf("time %d: got %+v, %v, want %d changed", i, step, err, changed)
		}
	}
	sum, _ := allSteps(t, q, Kill, query)
	eq(t, "the rest", sum.Changed, 10)
	eq(t, "scheduled", len(whole(t, q, Query{State: Scheduled})), 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if step, err := q.Bulk(ctx, Kill, Query{State: Ready}); err == nil || step.Changed != 0 {
		t.Errorf("cancelled: got %+v, %v, want an error", step, err)
	}
}

// Jobs that come while the action goes on cannot keep it going.
func bulkAsOfStart(t *testing.T, b *backend) {
	q := crowd(t, b, 20)
	for _, c := range []struct {
		action *Action
		query  Query
		comes  func(i int)
	}{
		{Requeue, Query{State: Dead}, func(i int) {
			id := fmt.Sprint("young", i)
			if _, err := q.Push(t.Context(), job(id, "1")); err != nil {
				t.Fatal(err)
			}
			if n, err := q.Kill(t.Context(), Anywhere, id); err != nil || n != 1 {
				t.Fatal(n, err)
			}
		}},
		{RunNow, Query{State: Scheduled}, func(i int) {
			if _, err := q.Push(t.Context(), job(fmt.Sprint("soon", i), "1", in(time.Duration(i+1)*time.Minute)), job(fmt.Sprint("late", i), "1", in(100*time.Hour))); err != nil {
				t.Fatal(err)
			}
		}},
		{Delete, Query{State: Ready}, func(i int) {
			if _, err := q.Push(t.Context(), job(fmt.Sprint("now", i), "1")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.action.Name, func(t *testing.T) {
			query := c.query
			query.Limit = 1
			there, err := q.size(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			examined := 0
			for i := 0; ; i++ {
				step, err := q.Bulk(t.Context(), c.action, query)
				if err != nil {
					t.Fatal(err)
				}
				if examined += step.Examined; examined > there {
					t.Fatalf("got %d examined, want no more than %d", examined, there)
				}
				if step.Next == "" {
					break
				}
				c.comes(i)
				query.Cursor = step.Next
			}
			if n := len(whole(t, q, c.query)); n < 15 {
				t.Errorf("got %d jobs left, want those that came", n)
			}
		})
	}
}

func bulkRefuses(t *testing.T, b *backend) {
	q := everywhere(t, b)
	step, err := q.Bulk(t.Context(), Kill, Query{Range: Range{Limit: 1}})
	if err != nil || step.Next == "" {
		t.Fatalf("got %+v, %v, want a next step", step, err)
	}
	page, err := q.Page(t.Context(), Query{Range: Range{Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		action *Action
		query  Query
	}{
		"action":             {Requeue, Query{State: Waiting}},
		"run now the morgue": {RunNow, Query{State: Dead}},
		"requeue waiting":    {Requeue, Query{State: Retrying}},
		"skip waiting":       {SkipOldest, Query{}},
		"kill a flight":      {Kill, Query{State: InFlight}},
		"limit":              {Kill, Query{Range: Range{Limit: 10_001}}},
		"other action":       {Delete, Query{Cursor: step.Next}},
		"other state":        {Kill, Query{State: Ready, Cursor: step.Next}},
		"a damaged cursor":   {Kill, Query{Cursor: cursor{Shape: Query{By: ByDue}.shape("kill", q), After: &sortKey{}, Bulk: &bulk{}}.String()}},
		"a page's cursor":    {Kill, Query{Cursor: page.Next}},
	} {
		if _, err := q.Bulk(t.Context(), c.action, c.query); !errors.Is(err, ErrQuery) {
			t.Errorf("%s: got %v, want ErrQuery", name, err)
		}
	}
}

func errorGroups(t *testing.T, b *backend) {
	r := newRig(t, b)
	for i, message := range []string{"no account 17", "no account 4", `bad "x"`, `bad "y"`, `bad "z"`} {
		id := fmt.Sprint("id", i)
		r.push(job(id, "1"), job(id, "2"))
		_, flight := r.popOne(id)
		n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry, Delay: time.Duration(i+1) * time.Hour, Error: message})
		r.no(err)
		eq(t, "nacked", n, 1)
	}
	got, err := r.q.Errors(r.ctx, Retrying)
	r.no(err)
	eq(t, "examined", fmt.Sprint(got.Examined, got.All, len(got.Groups)), "5 true 2")
	bad := got.Groups[0]
	eq(t, "most", fmt.Sprintf("%s, %d jobs, %d payloads, %s %s", bad.Kind, bad.Jobs, bad.Payloads, bad.Example, bad.Error), `bad #, 3 jobs, 6 payloads, id4 bad "z"`)
	near(t, "newest", bad.Newest, 5*time.Hour)
	eq(t, "of the kind", brief(whole(t, r.q, Query{State: Retrying, Kind: got.Groups[1].Kind})), "id0:retry id1:retry")
	step, _ := allSteps(t, r.q, Kill, Query{State: Retrying, Kind: bad.Kind})
	eq(t, "killed", step.Changed, 3)
	dead, err := r.q.Errors(r.ctx, Dead)
	r.no(err)
	eq(t, "dead", fmt.Sprint(len(dead.Groups), dead.Groups[0].Jobs, dead.Groups[0].Payloads), "1 3 6")
	if _, err := r.q.Errors(r.ctx, Ready); !errors.Is(err, ErrQuery) {
		t.Errorf("ready: got %v, want ErrQuery", err)
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ message, want string }{
		{"", ""},
		{"boom", "boom"},
		{"no account 17", "no account #"},
		{"\n  first\nsecond 5", "first"},
		{"Traceback (most recent call last):\n  File \"h.py\", line 3\nKeyError: 'a17'\n", "KeyError: #"},
		{"dial tcp 10.0.0.1:6379: connection refused", "dial tcp #.#.#.#:#: connection refused"},
		{`unknown "a \" b" here`, "unknown # here"},
		{"unknown 'a' and `b`", "unknown # and #"},
		{"can't find what isn't there", "can't find what isn't there"},
		{"order-17 is late", "order-# is late"},
		{"user42x is late", "user#x is late"},
		{"panic at 0xc000123456", "panic at #"},
		{"job 01M7XRQV0E0NPZHKN663FK0FVC gone", "job # gone"},
		{"id 6f1e3a2b-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "id #"},
		{"commit deadbee1 is bad", "commit # is bad"},
		{"HTTP  503\tfrom   shop", "HTTP 503 from shop"},
		{"post http://shop/orders: 404 Not Found: \"x\"", "post http://shop/orders: 404 Not Found: #"},
		{"post http://shop/orders: 502 Bad Gateway: \"x\"", "post http://shop/orders: 502 Bad Gateway: #"},
		{"requests.exceptions.HTTPError: 404 Client Error: gone", "requests.exceptions.HTTPError: 404 Client Error: gone"},
		{"status=502, try 3", "status=502, try #"},
		{"status code: 404", "status code: 404"},
		{"404 jobs of code 4040", "# jobs of code #"},
		{"\xff\xfe 1", "? #"},
		{"\x1b[1mno account\u202e\u200b 17\x00", "?[#mno account?? #?"},
		{"no\u00a0account\u2028of \\shop", "no account of \\shop"},
	} {
		if got := KindOf(c.message); got != c.want {
			t.Errorf("%q: got %q, want %q", c.message, got, c.want)
		}
	}
	long := KindOf("é" + fmt.Sprintf("%0*s", 5000, "é"))
	if len(long) > kindBytes || KindOf(KindOf("no account 17")) != "no account #" {
		t.Errorf("got %d bytes, want at most %d", len(long), kindBytes)
	}
}

func BenchmarkKindOf(b *testing.B) {
	for b.Loop() {
		KindOf(`POST "http://shop:9000/orders": dial tcp 10.0.0.1:9000: connection refused (order 4711, try 3)`)
	}
}
