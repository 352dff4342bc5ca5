package protocol_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

// staleTests: ids were deleted while they were ready, and pushed again for later. Their entries in the
// ready list are stale.
var staleTests = []testCase{
	{"Stale_IsPassedOver", testStaleIsPassedOver},
	{"Stale_ServesTheNextDueJob", testStaleServes},
	{"Stale_EndsAsATombstone", testStaleEndsAsATombstone},
	{"Stale_IsShownOnce", testStaleIsShownOnce},
	{"Stale_Many", testStaleMany},
	{"Stale_InQuarantine", testStaleInQuarantine},
}

// newStale returns a rig with a, b and c in the ready list. Of these b is scheduled.
func newStale(t *testing.T, b *backend) *rig {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "old"), job("c", "1"))
	r.delete("b")
	r.push(job("b", "1", in(time.Hour)))
	return r
}

func (r *rig) delete(id string) {
	r.t.Helper()
	n, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)
	eq(r.t, "deleted", fmt.Sprint(n, err), "1 <nil>")
}

// later lets two hours go by.
func (r *rig) later() {
	r.t.Helper()
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
}

// line returns the ready list.
func (r *rig) line() []string {
	r.t.Helper()
	return r.c.DB().ForTests().LRange(r.ctx, r.s.Keys().Ready, 0, -1).Val()
}

func testStaleIsPassedOver(t *testing.T, b *backend) {
	r := newStale(t, b)
	p := r.pop(10)
	eq(t, "popped", show(p.Jobs...), "a[1] c[1]")
	eq(t, "ready", p.Ready, 0)
	near(t, "next", p.Next, time.Hour)
	r.ack(p.Flight, "a", "c")
	r.find("b", browse.StateScheduled)
	eq(t, "stale", r.c.DB().ForTests().HLen(r.ctx, r.s.Keys().Stale).Val(), 0)
	r.later()
	eq(t, "when it is due", show(r.drain()...), "b[1]")
}

func testStaleServes(t *testing.T, b *backend) {
	for name, due := range map[string]func(*rig){
		"its time comes": func(r *rig) { r.later() },
		"run now":        func(r *rig) { r.noErr(second(browse.Of(r.q).RunNow(r.ctx, "b"))) },
		"all but the oldest payload": func(r *rig) {
			r.push(job("b", "0", score(0)))
			n, err := browse.Of(r.q).BuryOldest(r.ctx, browse.StateScheduled, "b")
			eq(t, "skipped", fmt.Sprint(n, err), "1 <nil>")
		},
		"requeue": func(r *rig) {
			r.noErr(second(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "b")))
			r.noErr(second(browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "b")))
		},
		"requeue into what waits": func(r *rig) {
			r.noErr(second(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "b")))
			r.push(job("b", "1", in(time.Hour)))
			r.noErr(second(browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "b")))
		},
	} {
		r := newStale(t, b)
		due(r)
		eq(t, name+": in line", r.line(), []string{"a", "b", "c"})
		eq(t, name+": popped", show(r.drain()...), "a[1] b[1] c[1]")
		eq(t, name+": left in line", r.line(), nil)
	}
}

func testStaleEndsAsATombstone(t *testing.T, b *backend) {
	r := newStale(t, b)
	r.delete("b")
	r.gone("b")
	r.push(job("b", "2"))
	eq(t, "in line", r.line(), []string{"a", "b", "c"})
	r.delete("b")
	r.push(job("b", "3", in(time.Hour)))
	r.delete("b")
	eq(t, "popped", show(r.drain()...), "a[1] c[1]")
	eq(t, "records", r.c.DB().ForTests().HLen(r.ctx, r.s.Keys().Jobs).Val(), 1) // see the end of lua/claim.lua
}

func testStaleIsShownOnce(t *testing.T, b *backend) {
	r := newStale(t, b)
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "stats", stats.Jobs, Counts{Ready: 2, Scheduled: 1})
	for state, want := range map[browse.State]string{browse.StateReady: "a c", browse.StateScheduled: "b", "": "a c b"} {
		page, err := browse.Of(r.q).Page(r.ctx, browse.Query{State: state})
		r.noErr(err)
		got := ""
		for _, job := range page.Jobs {
			got += " " + job.ID
		}
		eq(t, fmt.Sprintf("page of %q", state), got, " "+want)
	}
	standing, err := browse.Of(r.q).Position(r.ctx, "b")
	r.noErr(err)
	eq(t, "ahead", standing.Ahead, -1)
	r.later() // due, and no pop has seen it
	p := r.pop(1)
	eq(t, "popped", show(p.Jobs...), "a[1]")
	standing, err = browse.Of(r.q).Position(r.ctx, "b")
	r.noErr(err)
	eq(t, "ahead of it when it is due", standing.Ahead, 0)
}

// testStaleMany has more stale entries than one pop takes, one script pushes, and one script passes over.
func testStaleMany(t *testing.T, b *backend) {
	for name, due := range map[string]func(*rig){
		"passed over": func(r *rig) {
			p := r.pop(10)
			eq(t, "popped", show(p.Jobs...), "live[1]")
			eq(t, "passed over in several pops", p.Flight > 1, true)
			eq(t, "in line", r.line(), nil)
			r.later()
		},
		"due before that": func(r *rig) { r.later() },
	} {
		r := newRig(t, b)
		var jobs, again []lowkiq.Push
		var ids []string
		for i := range 1500 {
			ids = append(ids, fmt.Sprint("id", i))
			jobs = append(jobs, job(ids[i], "old"))
			again = append(again, job(ids[i], "new", in(time.Hour)))
		}
		r.push(append(jobs, job("live", "1"))...)
		n, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...)
		eq(t, name+": deleted", fmt.Sprint(n, err), "1500 <nil>")
		r.push(again...)
		eq(t, name+": in line", len(r.line()), 1501)
		due(r)
		handled := map[string]int{}
		for _, j := range r.drain() {
			handled[show(j)]++
		}
		delete(handled, "live[1]")
		eq(t, name+": handled", len(handled), 1500)
		for job, n := range handled {
			if n > 1 {
				t.Errorf("%s: %s: handled %d times", name, job, n)
			}
		}
	}
}

// testStaleInQuarantine lets a pop pass over the stale entry of a failed urgent id in quarantine. The id keeps its marks.
func testStaleInQuarantine(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "old"), job("c", "1"))
	r.delete("b")
	r.push(job("b", "1", urgent))
	_, flight := r.popOne("b")
	r.nack(flight, "b", Retry, 0, 0)
	r.popOne("b")
	r.own(Seize)
	r.wantFailed("in quarantine", 3, 1)
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1 << 20, MaxCrashes: 3, NoSuspect: true})
	r.noErr(err)
	eq(t, "popped", show(p.Jobs...), "a[1] c[1]")
	r.wantFailed("after the pop", 1, 1)
}
