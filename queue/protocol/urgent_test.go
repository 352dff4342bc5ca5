package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

var urgentTests = []testCase{
	{"Urgent_GoesFirst", testUrgentGoesFirst},
	{"Urgent_InEachState", testUrgentInEachState},
	{"Urgent_ByTheEndOfAFlight", testUrgentByEnd},
	{"Urgent_CrowdedIDGoesOn", testUrgentCrowd},
	{"Urgent_LeavesOneEntry", testUrgentLeavesOneEntry},
	{"Urgent_LagIsTrue", testUrgentLag},
	{"Urgent_IsSeen", testUrgentIsSeen},
	{"Urgent_Pages", testUrgentPages},
	{"Urgent_Rules", testUrgentRules},
	{"Urgent_Wakes", testUrgentWakes},
	{"Urgent_Audit", testUrgentAudit},
	{"Urgent_WhileBusy", testUrgentBusy},
}

func urgent(p *lowkiq.Push) { p.Urgent = true }

// order pops and acks all due jobs one by one, and returns their ids.
func (r *rig) order() string {
	r.t.Helper()
	var ids []string
	for {
		p := r.pop(1)
		if len(p.Jobs) == 0 {
			return strings.Join(ids, " ")
		}
		ids = append(ids, p.Jobs[0].ID)
		r.ack(p.Flight, p.Jobs[0].ID)
	}
}

func testUrgentGoesFirst(t *testing.T, b *backend) {
	r := newRig(t, b)
	var crowd []lowkiq.Push
	for i := range 10_000 {
		crowd = append(crowd, job(fmt.Sprint("id", i), "1"))
	}
	r.push(crowd...)
	r.push(job("b", "1", urgent), job("plain", "1"), job("a", "1", urgent), job("b", "2"))
	r.push(job("id5000", "0", urgent), job("id5000", "2", urgent), job("c", "1", urgent))
	eq(t, "merged", r.push(job("id7000", "1", urgent))[0].Merged, true)
	p := r.pop(7)
	eq(t, "popped", show(p.Jobs...), "id5000[1 0 2] id7000[1] b[1 2] a[1] c[1] id0[1] id1[1]")
	eq(t, "ready", p.Ready, 10_001-2) // with the entries that id5000 and id7000 have left

	r.push(job("b", "3", urgent)) // it is in flight
	var all []string
	for _, j := range p.Jobs {
		all = append(all, j.ID)
	}
	r.ack(p.Flight, all...)
	var many []lowkiq.Push
	for i := range 300 {
		many = append(many, job(fmt.Sprint("u", 299-i), "1", urgent))
	}
	r.push(many...)
	p = r.pop(400)
	eq(t, "popped", show(p.Jobs[:3]...), "b[3] u299[1] u298[1]")
	p = r.pop(400)
	eq(t, "the next pop begins with", p.Jobs[0].ID, "u50")
	eq(t, "all others follow", len(r.drain()), 10_001-4-(400-51))
}

// testUrgentInEachState checks that an urgent push changes no due time and no state, and the id goes first when it is
// due.
func testUrgentInEachState(t *testing.T, b *backend) {
	for name, c := range map[string]struct{ prepare, due func(r *rig) }{
		"scheduled": {func(r *rig) { r.push(job("x", "1", in(time.Hour))) }, func(r *rig) { r.later() }},
		"run now": {func(r *rig) { r.push(job("x", "1", in(time.Hour))) }, func(r *rig) {
			r.noErr(second(browse.Of(r.q).RunNow(r.ctx, "x")))
		}},
		"retry": {func(r *rig) {
			r.push(job("x", "1"))
			_, flight := r.popOne("x")
			r.nack(flight, "x", Retry, 0, time.Hour)
		}, func(r *rig) { r.later() }},
		"postponed": {func(r *rig) {
			r.push(job("x", "1"))
			_, flight := r.popOne("x")
			r.nack(flight, "x", Postpone, -1, time.Hour)
		}, func(r *rig) { r.later() }},
		"held": {func(r *rig) {
			r.push(job("x", "1"))
			_, flight := r.popOne("x")
			r.nack(flight, "x", Hold, -1, 0)
		}, func(r *rig) {
			r.noErr(second(r.claim.ReleaseHeld(r.ctx, func(string) bool { return false })))
		}},
		"blocked": {func(r *rig) {
			r.push(job("x", "1"))
			_, flight := r.popOne("x")
			r.bury(flight, "x", Block)
		}, func(r *rig) {
			r.noErr(second(browse.Of(r.q).Requeue(r.ctx, browse.StateBlocked, "x")))
		}},
	} {
		r := newRig(t, b)
		c.prepare(r)
		before, _, _ := browse.Of(r.q).Job(r.ctx, "x")
		r.push(job("x", "2", urgent))
		after, _, _ := browse.Of(r.q).Job(r.ctx, "x")
		eq(t, name+": state and due time", fmt.Sprint(after.State, after.PerformAt), fmt.Sprint(before.State, before.PerformAt))
		r.push(job("a", "1"), job("b", "1"))
		eq(t, name+": popped meanwhile", show(r.pop(1).Jobs...), "a[1]")
		c.due(r)
		p := r.pop(1)
		eq(t, name+": popped when it is due", show(p.Jobs...), "x[1 2]")
		r.push(job("x", "3"))
		r.ack(p.Flight, "x")
		eq(t, name+": popped after that", r.order(), "b x")
	}
	r := newRig(t, b)
	r.push(job("a", "1"), job("x", "1", in(time.Hour), urgent), job("b", "1"))
	eq(t, "popped before the time", show(r.pop(1).Jobs...), "a[1]")
	r.later()
	eq(t, "popped at its time", r.order(), "x b")
}

// testUrgentByEnd checks the place of an urgent id after each end of its flight.
func testUrgentByEnd(t *testing.T, b *backend) {
	for name, c := range map[string]struct {
		end  func(r *rig, flight int64)
		want string
	}{
		"done":                           {func(r *rig, f int64) { r.ack(f, "x") }, "a b"},
		"done, more was pushed":          {func(r *rig, f int64) { r.push(job("x", "2")); r.ack(f, "x") }, "a b x"},
		"done, more was pushed urgently": {func(r *rig, f int64) { r.push(job("x", "2", urgent)); r.ack(f, "x") }, "x a b"},
		"done, what was pushed urgently is deleted": {func(r *rig, f int64) {
			r.push(job("x", "2", urgent))
			r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "x")))
			r.push(job("x", "3"))
			r.ack(f, "x")
		}, "a b x"},
		"returned": {func(r *rig, f int64) { r.push(job("y", "1", urgent)); r.nack(f, "x", Return, -1, 0) }, "x y a b"},
		"failed":   {func(r *rig, f int64) { r.nack(f, "x", Retry, 0, 0) }, "x a b"},
		"buried":   {func(r *rig, f int64) { r.bury(f, "x", Bury) }, "a b"},
		"buried and requeued": {func(r *rig, f int64) {
			r.bury(f, "x", Bury)
			r.noErr(second(browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "x")))
		}, "a b x"},
		"buried, more was pushed urgently": {func(r *rig, f int64) { r.push(job("x", "2", urgent)); r.bury(f, "x", Bury) }, "x a b"},
		"skipped":                          {func(r *rig, f int64) { r.push(job("x", "2")); r.bury(f, "x", Skip) }, "a b x"},
		"released":                         {func(r *rig, f int64) { r.noErr(second(r.claim.Release(r.ctx))); r.own(Fresh) }, "x a b"},
		"seized":                           {func(r *rig, f int64) { r.own(Seize) }, "x a b"},
		"seized, and returned by the next owner": {func(r *rig, f int64) {
			r.own(Seize)
			p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 3, Slot: true})
			r.noErr(err)
			r.nack(p.Flight, "x", Retry, 0, 0)
		}, "x a b"},
	} {
		for _, moved := range []bool{false, true} { // whether it leaves an entry in ready
			r := newRig(t, b)
			if moved {
				r.push(job("x0", "1"), job("x", "0"))
				_, flight := r.popOne("x0")
				r.ack(flight, "x0")
			}
			r.push(job("x", "1", urgent))
			_, flight := r.popOne("x")
			r.push(job("a", "1"), job("b", "1"))
			c.end(r, flight)
			want := c.want
			if moved && strings.HasSuffix(want, " x") { // its entry is before the others
				want = "x a b"
			}
			eq(t, fmt.Sprintf("%s, moved %t", name, moved), r.order(), want)
			eq(t, name+": urgent ids left", r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Urgent, r.s.Keys().Stale, r.s.Keys().Ready).Val(), 0)
		}
	}
}

// testUrgentCrowd checks that all payloads of a crowded id are urgent, and keep their order.
func testUrgentCrowd(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("other", "1"))
	var crowd []lowkiq.Push
	for i := range 4500 {
		crowd = append(crowd, job("x", fmt.Sprint(i)))
	}
	r.push(crowd...)
	r.push(job("x", "last", urgent))
	next := 0
	for range 3 {
		p := r.pop(1)
		eq(t, "popped", p.Jobs[0].ID, "x")
		for _, payload := range p.Jobs[0].Payloads {
			if want := fmt.Sprint(next); string(payload.Data) != want && next < 4500 {
				t.Fatalf("payload %d: got %s", next, payload.Data)
			}
			next++
		}
		r.ack(p.Flight, "x")
	}
	eq(t, "payloads", next, 4501)
	eq(t, "then", r.order(), "other")
}

// testUrgentLeavesOneEntry checks that a shard does not grow if an id is made urgent again and again, also if no other
// id gets a turn.
func testUrgentLeavesOneEntry(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	keys := r.s.Keys()
	for i := range 300 {
		r.push(job("x", "1"))
		r.push(job("x", "1", urgent))
		r.push(job("x", "1", urgent), job("x", "2", urgent))
		_, flight := r.popOne("x")
		switch i % 5 {
		case 0:
			r.push(job("x", "3"))
		case 1:
			r.push(job("x", "3", urgent))
		case 2:
			r.nack(flight, "x", Return, -1, 0)
			_, flight = r.popOne("x")
		case 3:
			r.nack(flight, "x", Retry, 0, 0)
			_, flight = r.popOne("x")
		}
		r.ack(flight, "x")
		if i%5 == 4 {
			r.push(job("x", "4", urgent))
			r.delete("x")
		}
		if i%5 < 2 {
			r.push(job("x", "5", urgent))
			_, flight = r.popOne("x")
			r.ack(flight, "x")
		}
	}
	db := r.c.DB().ForTests()
	sizes := []int64{db.LLen(r.ctx, keys.Ready).Val(), db.ZCard(r.ctx, keys.Urgent).Val(), db.HLen(r.ctx, keys.Stale).Val(), db.HLen(r.ctx, keys.Jobs).Val()}
	for i, most := range []int64{3, 0, 0, 4} { // a, b and the tombstone of x; see the end of lua/claim.lua
		if sizes[i] > most {
			t.Errorf("sizes of ready, urgent, stale and jobs: got %v, want at most [3 0 0 4]", sizes)
		}
	}
	eq(t, "popped", r.order(), "a b")
}

// testUrgentLag checks that neither urgent ids nor the entries that they left hide a job that waits.
func testUrgentLag(t *testing.T, b *backend) {
	r := newRig(t, b)
	crowd := func(prefix string, n int, options ...func(*lowkiq.Push)) {
		var jobs []lowkiq.Push
		for i := range n {
			jobs = append(jobs, job(fmt.Sprint(prefix, i), "1", options...))
		}
		r.push(jobs...)
	}
	r.push(job("old", "1", in(-time.Hour)))
	crowd("new", 40)
	crowd("urgent", 40, urgent)
	r.wantLag("an old job behind urgent ids", time.Hour)
	r.push(job("old", "1", urgent))
	r.wantLag("an old job that is urgent", time.Hour)
	_, flight := r.popOne("old")
	r.wantLag("it is in flight", 0)
	r.push(job("old", "2", in(-2*time.Hour), urgent))
	r.wantLag("it waits for its flight", 2*time.Hour)
	r.ack(flight, "old")
	r.wantLag("it waits again", 2*time.Hour)
	crowd("new", 40, urgent)
	r.wantLag("behind the entries of others", 2*time.Hour)
	r.popOne("old")
	r.push(job("older", "1", in(-3*time.Hour)))
	for range 4 {
		crowd("new", 40, urgent)
	}
	r.wantLag("behind the entries that urgent ids have left", 3*time.Hour)

	r = newRig(t, b)
	crowd("x", 20)
	crowd("old", 3, in(-time.Hour))
	crowd("x", 20, urgent)
	p := r.pop(20)
	crowd("x", 20)
	for _, j := range p.Jobs {
		r.ack(p.Flight, j.ID)
	}
	eq(t, "the line", r.line()[:2], []string{"x0", "x1"})
	r.wantLag("behind ids that wait again at the entries that they left", time.Hour)
}

func testUrgentIsSeen(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	r.push(job("b", "2", urgent), job("u", "1", urgent), job("later", "1", in(time.Hour), urgent))
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "stats", stats.Jobs, Counts{Ready: 4, Scheduled: 1})
	for id, want := range map[string]string{"b": "0 true", "u": "1 true", "a": "2 false", "later": "-1 true"} {
		p, err := browse.Of(r.q).Position(r.ctx, id)
		r.noErr(err)
		eq(t, "ahead of "+id, fmt.Sprint(p.Ahead, p.Urgent), want)
	}
	eq(t, "popped", r.order(), "b u a c")

	peek := func() Due {
		due, err := r.c.PeekDue(r.ctx, r.s)
		r.noErr(err)
		return due[0]
	}
	eq(t, "due with a scheduled urgent id", peek().Ready, false)
	r.delete("later")
	r.push(job("u", "1", urgent))
	eq(t, "due with an urgent id alone", peek().Ready, true)
	_, flight := r.popOne("u")
	eq(t, "due with an urgent id in flight", peek().Ready, false)
	r.ack(flight, "u")
	eq(t, "entries", r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Urgent).Val(), 0)
}

// testUrgentPages checks that lists have urgent ids first, each id once, in both directions and in parts.
func testUrgentPages(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"), job("d", "1"))
	r.push(job("c", "1", urgent), job("u", "1", urgent), job("a", "1", urgent))
	list := func(reverse bool, limit int, between func(n int)) string {
		ids := ""
		query := browse.Query{State: browse.StateReady, Range: browse.Range{Reverse: reverse, Limit: limit}}
		for n := range 100 {
			page, err := browse.Of(r.q).Page(r.ctx, query)
			r.noErr(err)
			for _, one := range page.Jobs {
				ids += " " + one.ID
			}
			if query.Cursor = page.Next; page.Next == "" {
				return ids
			}
			if between != nil {
				between(n)
			}
		}
		return ids + " without an end"
	}
	for _, limit := range []int{1, 2, 3, 100} {
		eq(t, fmt.Sprintf("in parts of %d", limit), list(false, limit, nil), " c a u b d")
		eq(t, fmt.Sprintf("last first, in parts of %d", limit), list(true, limit, nil), " d b u a c")
	}
	got := list(false, 1, func(n int) {
		if n == 3 { // the last part ended with b
			r.push(job("b", "2", urgent))
		}
	})
	eq(t, "behind an id that became urgent", got, " c a u b d")
	got = list(false, 1, func(n int) {
		if n == 0 {
			r.popOne("b")
		}
	})
	eq(t, "behind a popped id", got, " b c a u d")
}

func testUrgentRules(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	r.rule(PushRules{Push: rules.Push{Payloads: 1}})
	r.push(job("x", "1"))
	if _, err := r.q.Push(r.ctx, job("x", "2", urgent)); err == nil {
		t.Error("a push beyond the limit: got no error")
	}
	eq(t, "a refused push makes nothing urgent", r.order(), "a x")

	r.rule(PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Hour, Most: 2 * time.Hour}, Coalesce: rules.CoalesceLatest}})
	r.push(job("d", "1"), job("x", "1", urgent))
	eq(t, "an urgent push is not put off", r.order(), "x")
	r.push(job("d", "2", urgent))
	r.find("d", browse.StateScheduled)
	r.push(job("x", "1", urgent), job("x", "2", urgent))
	eq(t, "the latest", show(r.drain()...), "x[2]")
	r.rule(PushRules{})

	_, err := r.q.Deliver(r.ctx, Delivery{Source: "s", Number: 1}, job("a", "1", urgent))
	if err == nil || !strings.Contains(err.Error(), "must not be urgent") {
		t.Errorf("delivery: got %v", err)
	}
}

func testUrgentWakes(t *testing.T, b *backend) {
	r := newRig(t, b)
	sub := r.c.DB().ForTests().(redis.UniversalClient).Subscribe(r.ctx, r.s.Keys().Wake)
	defer sub.Close()
	r.noErr(second(sub.Receive(r.ctx)))
	r.push(job("a", "1", urgent))
	message, err := r.receive(sub)
	r.noErr(err)
	eq(t, "message", message.Payload, "0")
	_, flight := r.popOne("a")
	r.push(job("a", "2", urgent))
	message, err = r.receive(sub)
	r.noErr(err)
	eq(t, "message during the flight", message.Payload, "-1")
	r.ack(flight, "a")
}

// testUrgentAudit checks that sound shards have no faults, and that faults are repaired.
func testUrgentAudit(t *testing.T, b *backend) {
	r := newRig(t, b)
	found := func() []audit.Fault {
		// The owner of this shard has no lease.
		return slices.DeleteFunc(r.audit().Faults, func(f audit.Fault) bool { return f.Kind == audit.ClaimUnknown })
	}
	faults := func(what string, want ...audit.FaultKind) {
		t.Helper()
		var kinds []audit.FaultKind
		for _, f := range found() {
			kinds = append(kinds, f.Kind)
			done, err := audit.Repair(r.ctx, r.c, f)
			eq(t, what+": repaired", fmt.Sprint(done, err), "true <nil>")
		}
		eq(t, what, kinds, want)
		eq(t, what+": left", len(found()), 0)
	}
	db, keys := r.c.DB().ForTests(), r.s.Keys()
	r.push(job("a", "1"), job("b", "1"), job("c", "1"), job("e", "1"))
	r.push(job("b", "1", urgent), job("u", "1", urgent), job("later", "1", in(time.Hour), urgent))
	_, flight := r.popOne("b")
	r.push(job("b", "2", urgent))
	faults("sound")
	r.ack(flight, "b")
	faults("after the ack")
	db.ZAdd(r.ctx, keys.Urgent, redis.Z{Score: -1, Member: "nobody"})
	faults("a mark without a job", audit.UrgentMark)
	db.ZAdd(r.ctx, keys.Urgent, redis.Z{Score: 5, Member: "nobody"})
	faults("an entry without a job", audit.NoRecord)
	db.ZAdd(r.ctx, keys.Urgent, redis.Z{Score: 5, Member: "a"})
	faults("in two places", audit.TwoPlaces)
	db.HSet(r.ctx, keys.Stale, "c", 1)
	faults("a wrong mark", audit.StaleMark)
	db.ZRem(r.ctx, keys.Urgent, "u")
	faults("an id that is nowhere", audit.NoEntry)
	eq(t, "popped", r.order(), "a b c e u")
}

// testUrgentBusy pushes numbers to ids, urgently or not, while a worker acks, fails and returns them, and is replaced.
// Each number is acked once, in order.
func testUrgentBusy(t *testing.T, b *backend) {
	r := newRig(t, b)
	const numbers = 150
	ids := []string{"a", "b", "c", "d", "e", "f"}
	var producers sync.WaitGroup
	defer producers.Wait()
	for i, id := range ids {
		producers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for n := 0; n < numbers; {
				var jobs []lowkiq.Push
				for ; n < numbers && len(jobs) < 1+random.IntN(3); n++ {
					jobs = append(jobs, lowkiq.Push{ID: id, Payload: []byte(strconv.Itoa(n)), Urgent: random.IntN(2) == 0})
				}
				if _, err := r.q.Push(r.ctx, jobs...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := map[string]int{}
	random := rand.New(rand.NewPCG(1, 2))
	for done := 0; done < numbers*len(ids) && !t.Failed(); {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1 + random.IntN(5), Bytes: 1 << 20, MaxCrashes: 0, Slot: true})
		r.noErr(err)
		for _, j := range p.Jobs {
			for i, payload := range j.Payloads {
				if want := strconv.Itoa(next[j.ID] + i); string(payload.Data) != want {
					t.Fatalf("id %s: got %s of it, want %s", j.ID, payload.Data, want)
				}
			}
			switch random.IntN(6) {
			case 0:
				r.nack(p.Flight, j.ID, Retry, 0, 0)
			case 1:
				r.nack(p.Flight, j.ID, Return, j.RetryCount, 0)
			default:
				r.ack(p.Flight, j.ID)
				next[j.ID] += len(j.Payloads)
				done += len(j.Payloads)
			}
		}
		if random.IntN(50) == 0 {
			r.own(Seize)
		}
	}
	producers.Wait()
	eq(t, "left", r.order(), "")
	eq(t, "urgent ids left", r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Urgent, r.s.Keys().Stale).Val(), 0)
}
