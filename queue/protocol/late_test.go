package protocol_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
)

// lateTests: a job that has failed counts as failed when its turn comes, in every figure.
var lateTests = []testCase{
	{"Late_IsFailed", testLateIsFailed},
	{"Late_InEveryLine", testLateInEveryLine},
	{"Late_ManyAtOnce", testLateMany},
}

// wantFailed compares the figures with each other, and with the list of failed jobs.
func (r *rig) wantFailed(what string, ready, failed int) {
	r.t.Helper()
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(r.t, what+": ready, failed", fmt.Sprint(stats.Jobs.Ready, stats.Jobs.Failed), fmt.Sprint(ready, failed))
	eq(r.t, what+": listed as failed", len(whole(r.t, r.q, browse.Query{State: browse.StateFailed})), failed)
	_, err = readState(r.s, r.ctx)
	r.noErr(err)
}

// testLateIsFailed lets three jobs fail, and puts their turn behind a job that is not done.
func testLateIsFailed(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	p := r.pop(3)
	for _, id := range []string{"a", "b", "c"} {
		r.nack(p.Flight, id, Retry, 0, time.Hour)
	}
	r.wantFailed("waiting for their time", 0, 3)
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
	r.push(job("first", "1"), job("fresh", "1"))
	got, err := r.claim.Pop(r.ctx, PopRequest{IDs: 3, Bytes: 1})
	r.noErr(err)
	eq(t, "popped", show(got.Jobs...), "first[1]")
	r.wantFailed("due", 4, 3)
	r.wantLag("due", time.Hour)
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "each is counted once", stats.Jobs.Total(), 5)
	again := r.s.Adopt(r.claim.Instance, r.claim.Fence)
	_, err = again.Pop(r.ctx, PopRequest{IDs: 3, Bytes: 1})
	r.noErr(err)
	r.wantFailed("the pop came twice", 4, 3)
	r.push(job("a", "2"))
	r.wantFailed("pushed to", 4, 3)
	r.ack(got.Flight, "first")
	eq(t, "drained", show(r.drain()...), "fresh[1] a[1 2] b[1] c[1]")
	r.wantFailed("done", 0, 0)
	eq(t, "nothing is left of them", r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Late).Val(), 0)
}

// testLateInEveryLine moves failed jobs into the lines of due jobs, and out of them, in many ways.
func testLateInEveryLine(t *testing.T, b *backend) {
	r := newRig(t, b)
	fail := func(delay time.Duration, ids ...string) {
		t.Helper()
		for _, id := range ids {
			r.push(job(id, "1"))
			_, flight := r.popOne(id)
			r.nack(flight, id, Retry, 0, delay)
		}
	}
	fail(time.Hour, "a", "b", "c", "d", "e", "f")
	n, err := browse.Of(r.q).RunNow(r.ctx, "a", "b", "c", "d", "e", "f")
	eq(t, "run now", fmt.Sprint(n, err), "6 <nil>")
	r.wantFailed("run now", 6, 6)
	p := r.pop(3)
	r.wantFailed("in flight", 3, 3)
	r.nack(p.Flight, "a", Return, 0, 0)
	r.wantFailed("returned", 4, 4)
	r.nack(p.Flight, "b", Retry, 1, 0)
	r.wantFailed("failed again, due at once", 5, 5)
	_, err = r.claim.Release(r.ctx)
	r.noErr(err)
	r.wantFailed("released", 6, 6)
	r.own(Fresh)
	p = r.pop(1)
	r.bury(p.Flight, p.Jobs[0].ID, Bury)
	n, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, p.Jobs[0].ID)
	eq(t, "requeued", fmt.Sprint(n, err), "1 <nil>")
	r.wantFailed("requeued", 6, 5)
	for _, step := range []struct {
		what string
		do   func(id string) (int, error)
	}{
		{"deleted", func(id string) (int, error) { return browse.Of(r.q).Delete(r.ctx, browse.StateFailed, id) }},
		{"killed", func(id string) (int, error) { return browse.Of(r.q).Bury(r.ctx, browse.StateReady, id) }},
	} {
		id := whole(t, r.q, browse.Query{State: browse.StateFailed})[0].ID
		n, err := step.do(id)
		eq(t, step.what, fmt.Sprint(n, err), "1 <nil>")
		r.push(job(id, "fresh"))
	}
	r.wantFailed("two are fresh", 6, 3)
	n, err = browse.Of(r.q).Bury(r.ctx, browse.Anywhere, p.Jobs[0].ID)
	eq(t, "killed", fmt.Sprint(n, err), "1 <nil>")
	r.popAll()
	r.own(Seize)
	r.wantFailed("in quarantine", 5, 3)
	r.popOneOf(t)
	r.wantFailed("one on trial", 4, 3)
	r.own(Self)
	r.wantFailed("and back", 5, 3)
	lateOnTrial(r)
	for _, one := range whole(t, r.q, browse.Query{State: browse.StateFailed}) {
		n, err := browse.Of(r.q).Delete(r.ctx, browse.StateFailed, one.ID)
		eq(t, "deleted", fmt.Sprint(n, err), "1 <nil>")
	}
	r.wantFailed("deleted", 0, 0)
	r.drain()
	fail(0, "g")
	n, err = browse.Of(r.q).Bury(r.ctx, browse.StateFailed, "g")
	eq(t, "killed", fmt.Sprint(n, err), "1 <nil>")
	fail(0, "g")
	r.wantFailed("in the morgue, and failed", 1, 1)
	n, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "g")
	eq(t, "requeued", fmt.Sprint(n, err), "1 <nil>")
	r.wantFailed("merged into a fresh one", 1, 0)
}

// lateOnTrial pops the ids in quarantine one after the other, and releases the first that has failed.
func lateOnTrial(r *rig) {
	r.t.Helper()
	for {
		p := r.pop(1)
		if len(p.Jobs) != 1 || p.Quarantine != QuarantineTaken {
			r.t.Fatalf("pop: got %s, %q, want one in quarantine", show(p.Jobs...), p.Quarantine)
		}
		if p.Jobs[0].RetryCount >= 0 {
			r.wantFailed("on trial", 2, 2)
			r.nack(p.Flight, p.Jobs[0].ID, Return, 0, 0)
			r.wantFailed("back in quarantine", 3, 3)
			return
		}
		r.ack(p.Flight, p.Jobs[0].ID)
	}
}

// popAll pops all due jobs in one flight.
func (r *rig) popAll() Popped {
	r.t.Helper()
	return r.pop(1000)
}

// popOneOf pops the job whose turn in quarantine it is.
func (r *rig) popOneOf(t *testing.T) {
	t.Helper()
	if p := r.pop(1); len(p.Jobs) != 1 || p.Quarantine != QuarantineTaken {
		t.Fatalf("pop: got %s, %q, want one in quarantine", show(p.Jobs...), p.Quarantine)
	}
}

// testLateMany has as many failed jobs as one pop makes due.
func testLateMany(t *testing.T, b *backend) {
	r := newRig(t, b)
	n := 1500
	if b.mini {
		n = 300
	}
	ids := idsOf("id", n)
	for part := range slices.Chunk(ids, 1000) {
		for _, id := range part {
			r.push(job(id, "1"))
		}
		p := r.popAll()
		var nacks []Nack
		for _, j := range p.Jobs {
			nacks = append(nacks, Nack{Flight: p.Flight, ID: j.ID, Kind: Retry, Delay: time.Hour, Error: "boom"})
		}
		_, err := r.claim.Nack(r.ctx, nacks...)
		r.noErr(err)
	}
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1000, Bytes: 1})
	r.noErr(err)
	eq(t, "popped", len(p.Jobs), 1)
	r.wantFailed("due", min(n, 1000)-1, n-1)
	r.ack(p.Flight, p.Jobs[0].ID)
	eq(t, "drained", len(r.drain()), n-1)
	r.wantFailed("done", 0, 0)
}
