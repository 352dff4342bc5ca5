package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
)

var bulkTests = []testCase{{"Bulk", testBulkActions}, {"BulkInSteps", testBulkInSteps}, {"BulkAsOfStart", testBulkAsOfStart}, {"BulkOfFailed", testBulkOfFailed}, {"BulkRefuses", testBulkRefuses}, {"Errors", testErrorGroups}}

// allSteps repeats the action until there is no next step.
func allSteps(t *testing.T, q *Queue, action *browse.Action, query browse.Query) (sum browse.Step, steps int) {
	t.Helper()
	for steps = 1; steps < 1000; steps++ {
		step, err := browse.Of(q).Bulk(t.Context(), action, query)
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

func testBulkActions(t *testing.T, b *backend) {
	for _, c := range []struct {
		action  *browse.Action
		query   browse.Query
		changed int
		want    browse.Query
		after   string
	}{
		{browse.RunNow, browse.Query{}, 4, browse.Query{By: browse.ByID, State: browse.StateReady}, "f1:ready f2:ready f3:ready later:ready ready1:ready ready2:ready"},
		{browse.RunNow, browse.Query{State: browse.StateRetry}, 3, browse.Query{State: browse.StateScheduled}, "later:scheduled"},
		{browse.RunNow, browse.Query{State: browse.StateRetry, Range: browse.Range{MinRetry: 3, MaxRetry: 9}}, 1, browse.Query{State: browse.StateRetry}, "f3:retry f2:retry"},
		{browse.RunNow, browse.Query{State: browse.StateRetry, Kind: "bang"}, 0, browse.Query{State: browse.StateReady}, "ready1:ready ready2:ready"},
		{browse.Kill, browse.Query{Kind: browse.NoKind}, 3, browse.Query{}, "f1:retry f3:retry f2:retry"},
		{browse.Kill, browse.Query{}, 6, browse.Query{By: browse.ByID}, "blocked:blocked fly1:in_flight fly2:in_flight fly3:in_flight"},
		{browse.Kill, browse.Query{State: browse.StateReady}, 2, browse.Query{}, "later:scheduled f1:retry f3:retry f2:retry"},
		{browse.BuryBlocked, browse.Query{State: browse.StateBlocked}, 1, browse.Query{State: browse.StateMorgue, By: browse.ByID}, "blocked:morgue dead1:morgue dead2:morgue"},
		{browse.Delete, browse.Query{State: browse.StateScheduled}, 1, browse.Query{}, "ready1:ready ready2:ready f1:retry f3:retry f2:retry"},
		{browse.Delete, browse.Query{State: browse.StateRetry, Range: browse.Range{MinID: "f2"}}, 2, browse.Query{State: browse.StateRetry}, "f1:retry"},
		{browse.DeleteBuried, browse.Query{State: browse.StateMorgue}, 2, browse.Query{State: browse.StateMorgue}, ""},
		{browse.DeleteBuried, browse.Query{State: browse.StateMorgue, Kind: "exhausted"}, 2, browse.Query{State: browse.StateMorgue}, ""},
		{browse.Requeue, browse.Query{State: browse.StateMorgue, Range: browse.Range{MinID: "dead2"}}, 1, browse.Query{State: browse.StateMorgue}, "dead1:morgue"},
		{browse.RequeueBlocked, browse.Query{State: browse.StateBlocked}, 1, browse.Query{State: browse.StateReady, By: browse.ByID}, "blocked:ready ready1:ready ready2:ready"},
		{browse.BuryOldest, browse.Query{State: browse.StateBlocked}, 1, browse.Query{State: browse.StateBlocked}, ""},
	} {
		for _, limit := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s %s %s limit %d", c.action.Name, c.query.State, c.query.Kind, limit), func(t *testing.T) {
				q := everywhere(t, b)
				c.query.Limit = limit
				step, _ := allSteps(t, q, c.action, c.query)
				eq(t, "changed", step.Changed, c.changed)
				eq(t, "then", brief(whole(t, q, c.want)), c.after)
				again, _ := allSteps(t, q, c.action, c.query)
				if c.query.State != browse.StateReady && c.action != browse.Kill && again.Changed != 0 {
					t.Errorf("once more: got %d changed, want none", again.Changed)
				}
			})
		}
	}
}

// testBulkOfFailed checks that a job counts as failed also when its turn has come. A job that is blocked, in flight or
// fresh does not.
func testBulkOfFailed(t *testing.T, b *backend) {
	for action, after := range map[*browse.Action]string{browse.Kill: "dead1:morgue dead2:morgue f1:morgue f2:morgue f3:morgue", browse.Delete: "dead1:morgue dead2:morgue"} {
		q := everywhere(t, b)
		n, err := browse.Of(q).RunNow(t.Context(), "f1", "later")
		eq(t, "run now", fmt.Sprint(n, err), "2 <nil>")
		failed := whole(t, q, browse.Query{State: browse.StateFailed, By: browse.ByID})
		eq(t, "failed", brief(failed), "f1:ready f2:retry f3:retry")
		eq(t, "failed, as they are stored", brief(whole(t, q, browse.Query{State: browse.StateFailed})), "f1:ready f3:retry f2:retry")
		eq(t, "failed, by retries", brief(whole(t, q, browse.Query{State: browse.StateFailed, By: browse.ByRetries, Range: browse.Range{Reverse: true}})), "f1:ready f2:retry f3:retry")
		step, _ := allSteps(t, q, action, browse.Query{State: browse.StateFailed, Range: browse.Range{Limit: 1}})
		eq(t, "changed", step.Changed, 3)
		eq(t, "the morgue", brief(whole(t, q, browse.Query{State: browse.StateMorgue, By: browse.ByID})), after)
		eq(t, "the others", brief(whole(t, q, browse.Query{By: browse.ByID})), "blocked:blocked fly1:in_flight fly2:in_flight fly3:in_flight later:ready ready1:ready ready2:ready")
	}
}

// testBulkInSteps checks that steps are bounded, continue where the last step ended, and do no harm when repeated.
func testBulkInSteps(t *testing.T, b *backend) {
	q := crowd(t, b, 50)
	query := browse.Query{State: browse.StateScheduled, Range: browse.Range{Limit: 30}}
	first, err := browse.Of(q).Bulk(t.Context(), browse.Kill, query)
	if err != nil || first.Changed != 30 || first.Left != 70 {
		t.Fatalf("got %+v, %v, want 30 of 100", first, err)
	}
	query.Cursor = first.Next
	for i, changed := range []int{30, 30} { // the same step twice: the second time, the next thirty
		step, err := browse.Of(q).Bulk(t.Context(), browse.Kill, query)
		if err != nil || step.Changed != changed || step.Left != 40 {
			t.Errorf("time %d: got %+v, %v, want %d changed", i, step, err, changed)
		}
	}
	sum, _ := allSteps(t, q, browse.Kill, query)
	eq(t, "the rest", sum.Changed, 10)
	eq(t, "scheduled", len(whole(t, q, browse.Query{State: browse.StateScheduled})), 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if step, err := browse.Of(q).Bulk(ctx, browse.Kill, browse.Query{State: browse.StateReady}); err == nil || step.Changed != 0 {
		t.Errorf("cancelled: got %+v, %v, want an error", step, err)
	}
}

// testBulkAsOfStart checks that jobs that come while the action runs do not prolong it.
func testBulkAsOfStart(t *testing.T, b *backend) {
	q := crowd(t, b, 20)
	for _, c := range []struct {
		action *browse.Action
		query  browse.Query
		comes  func(i int)
	}{
		{browse.Requeue, browse.Query{State: browse.StateMorgue}, func(i int) {
			id := fmt.Sprint("young", i)
			if _, err := q.Push(t.Context(), job(id, "1")); err != nil {
				t.Fatal(err)
			}
			if n, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, id); err != nil || n != 1 {
				t.Fatal(n, err)
			}
		}},
		{browse.RunNow, browse.Query{State: browse.StateScheduled}, func(i int) {
			if _, err := q.Push(t.Context(), job(fmt.Sprint("soon", i), "1", in(time.Duration(i+1)*time.Minute)), job(fmt.Sprint("late", i), "1", in(100*time.Hour))); err != nil {
				t.Fatal(err)
			}
		}},
		{browse.Delete, browse.Query{State: browse.StateReady}, func(i int) {
			if _, err := q.Push(t.Context(), job(fmt.Sprint("now", i), "1")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.action.Name, func(t *testing.T) {
			query := c.query
			query.Limit = 1
			stats, err := q.Stats(t.Context())
			there := browse.Count(stats, query.State)
			for _, s := range q.All() { // entries of deleted jobs are examined, too
				tombs, _ := s.DB().ForTests().HGet(t.Context(), s.Keys().Count, "tombs").Int()
				there += tombs
			}
			if err != nil {
				t.Fatal(err)
			}
			examined := 0
			for i := 0; ; i++ {
				step, err := browse.Of(q).Bulk(t.Context(), c.action, query)
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

func testBulkRefuses(t *testing.T, b *backend) {
	q := everywhere(t, b)
	step, err := browse.Of(q).Bulk(t.Context(), browse.Kill, browse.Query{Range: browse.Range{Limit: 1}})
	if err != nil || step.Next == "" {
		t.Fatalf("got %+v, %v, want a next step", step, err)
	}
	page, err := browse.Of(q).Page(t.Context(), browse.Query{Range: browse.Range{Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		action *browse.Action
		query  browse.Query
	}{
		"action":             {browse.Requeue, browse.Query{State: browse.StateBlocked}},
		"run now the morgue": {browse.RunNow, browse.Query{State: browse.StateMorgue}},
		"requeue waiting":    {browse.Requeue, browse.Query{State: browse.StateRetry}},
		"skip waiting":       {browse.BuryOldest, browse.Query{}},
		"kill a flight":      {browse.Kill, browse.Query{State: browse.StateInFlight}},
		"limit":              {browse.Kill, browse.Query{Range: browse.Range{Limit: 10_001}}},
		"other action":       {browse.Delete, browse.Query{Cursor: step.Next}},
		"other state":        {browse.Kill, browse.Query{State: browse.StateReady, Cursor: step.Next}},
		"a damaged cursor":   {browse.Kill, browse.Query{Cursor: forge(t, step.Next, func(place map[string]any) { delete(place, "w"); place["a"] = map[string]any{"i": ""} })}},
		"a page's cursor":    {browse.Kill, browse.Query{Cursor: page.Next}},
	} {
		if _, err := browse.Of(q).Bulk(t.Context(), c.action, c.query); !errors.Is(err, browse.ErrQuery) {
			t.Errorf("%s: got %v, want ErrQuery", name, err)
		}
	}
}

func testErrorGroups(t *testing.T, b *backend) {
	r := newRig(t, b)
	for i, message := range []string{"no account 17", "no account 4", `bad "x"`, `bad "y"`, `bad "z"`} {
		id := fmt.Sprint("id", i)
		r.push(job(id, "1"), job(id, "2"))
		_, flight := r.popOne(id)
		n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry, Delay: time.Duration(i+1) * time.Hour, Error: message})
		r.noErr(err)
		eq(t, "nacked", n, 1)
	}
	got, err := browse.Of(r.q).Errors(r.ctx, browse.StateRetry)
	r.noErr(err)
	eq(t, "examined", fmt.Sprint(got.Examined, got.All, len(got.Groups)), "5 true 2")
	bad := got.Groups[0]
	eq(t, "most", fmt.Sprintf("%s, %d jobs, %d payloads, %s %s", bad.Kind, bad.Jobs, bad.Payloads, bad.Example, bad.Error), `bad #, 3 jobs, 6 payloads, id4 bad "z"`)
	near(t, "newest", bad.Newest, 5*time.Hour)
	eq(t, "of the kind", brief(whole(t, r.q, browse.Query{State: browse.StateRetry, Kind: got.Groups[1].Kind})), "id0:retry id1:retry")
	step, _ := allSteps(t, r.q, browse.Kill, browse.Query{State: browse.StateRetry, Kind: bad.Kind})
	eq(t, "killed", step.Changed, 3)
	dead, err := browse.Of(r.q).Errors(r.ctx, browse.StateMorgue)
	r.noErr(err)
	eq(t, "dead", fmt.Sprint(len(dead.Groups), dead.Groups[0].Jobs, dead.Groups[0].Payloads), "1 3 6")
	if _, err := browse.Of(r.q).Errors(r.ctx, browse.StateReady); !errors.Is(err, browse.ErrQuery) {
		t.Errorf("ready: got %v, want ErrQuery", err)
	}
}
