package protocol_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

var quarantineTests = []testCase{
	{"Quarantine_OnlyASeizure", testQuarantineCauses},
	{"Quarantine_OneAtATime", testQuarantineOneAtATime},
	{"Quarantine_SlotAfterACrash", testQuarantineSlot},
	{"Quarantine_AnswerClearsBoth", testQuarantineAnswer},
	{"Quarantine_LimitsDoNotEndIt", testQuarantineLimits},
	{"Quarantine_PeopleDoNotEndIt", testQuarantinePeople},
	{"Quarantine_MaxCrashes", testQuarantineMaxCrashes},
	{"Quarantine_PoisonAmongNeighbours", testQuarantinePoison},
	{"Quarantine_LoweredLimit", testQuarantineLoweredLimit},
}

func (r *rig) quarantine() (suspects []string, crashes map[string]int) {
	r.t.Helper()
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	return st.suspects, st.crashes
}

func testQuarantineCauses(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	r.pop(2)
	r.own(Self)
	r.pop(2)
	_, err := r.claim.Release(r.ctx)
	r.noErr(err)
	r.own(Fresh)
	suspects, crashes := r.quarantine()
	eq(t, "after self and release", fmt.Sprint(suspects, crashes), "[] map[]")
	r.pop(2)
	r.own(Seize)
	suspects, crashes = r.quarantine()
	eq(t, "after a seizure", fmt.Sprint(suspects, crashes), "[a b] map[a:0 b:0]")
	r.own(Seize) // nothing in flight: nothing is counted
	_, crashes = r.quarantine()
	eq(t, "after another", fmt.Sprint(crashes), "map[a:0 b:0]")
}

func testQuarantineOneAtATime(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	r.pop(2)
	r.own(Seize)
	r.push(job("c", "1"), job("d", "1"))
	first := r.pop(10)
	eq(t, "first", show(first.Jobs...), "a[1]")
	eq(t, "quarantine", first.Quarantine, QuarantineTaken)
	for range 2 { // also when the runner forgot about it
		p := r.pop(10)
		eq(t, "beside it", show(p.Jobs...), "")
		eq(t, "quarantine", p.Quarantine, QuarantineWait)
	}
	r.ack(first.Flight, "a")
	r.own(Self)
	second := r.pop(10)
	eq(t, "second", show(second.Jobs...), "b[1]")
	// The answer to that pop was lost. The repeated pop gets the same answer.
	again := r.s.Adopt(r.claim.Instance, r.claim.Fence)
	again.WithLastPop(second.Flight - 1)
	p, err := again.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1})
	r.noErr(err)
	eq(t, "repeated", show(p.Jobs...), "b[1]")
	eq(t, "repeated quarantine", p.Quarantine, QuarantineTaken)
	r.ack(second.Flight, "b")
	eq(t, "the rest", show(r.drain()...), "c[1] d[1]")
}

func testQuarantineSlot(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	r.pop(1)
	r.own(Seize)
	r.popOne("a")
	r.own(Seize) // alone: it counts
	_, crashes := r.quarantine()
	eq(t, "crashes", crashes["a"], 1)
	r.push(job("c", "1"))
	p := r.pop(10)
	eq(t, "without the slot", show(p.Jobs...), "c[1]")
	eq(t, "quarantine", p.Quarantine, QuarantineSlot)
	r.ack(p.Flight, "c")
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1, MaxCrashes: 3, Slot: true})
	r.noErr(err)
	eq(t, "with the slot", show(p.Jobs...), "a[1]")
	r.own(Self) // no crash
	_, crashes = r.quarantine()
	eq(t, "crashes", crashes["a"], 1)
}

func testQuarantineAnswer(t *testing.T, b *backend) {
	answers := map[string]func(r *rig, flight int64){
		"ack":      func(r *rig, f int64) { r.ack(f, "a") },
		"retry":    func(r *rig, f int64) { r.nack(f, "a", Retry, 0, time.Hour) },
		"postpone": func(r *rig, f int64) { r.nack(f, "a", Postpone, 0, time.Hour) },
		"skip":     func(r *rig, f int64) { r.bury(f, "a", Skip) },
		"block":    func(r *rig, f int64) { r.bury(f, "a", Block) },
	}
	for name, answer := range answers {
		r := newRig(t, b)
		r.push(job("a", "1"))
		r.pop(1)
		r.own(Seize)
		_, flight := r.popOne("a")
		answer(r, flight)
		suspects, crashes := r.quarantine()
		eq(t, "after "+name, fmt.Sprint(suspects, crashes), "[] map[]")
	}
	r := newRig(t, b)
	r.push(job("a", "1"))
	r.pop(1)
	r.own(Seize)
	_, flight := r.popOne("a")
	r.nack(flight, "a", Return, 0, 0) // no handler saw it
	suspects, _ := r.quarantine()
	eq(t, "after return", suspects, []string{"a"})
}

// testQuarantineLimits checks that an id in quarantine stays there with its crashes if no handler saw it, because its
// group was at its limit, or because some of its payloads had expired. A group that its handler stopped has its answer.
func testQuarantineLimits(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("a", "2"), job("b", "1"))
	r.pop(2)
	r.own(Seize)
	r.popOne("a")
	r.own(Seize) // alone: it counts
	pop := func(slot, none bool) Popped {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1 << 20, MaxCrashes: 3, Slot: slot, NoSuspect: none})
		r.noErr(err)
		return p
	}
	bury := func(burial Burial) {
		_, err := r.claim.Bury(r.ctx, burial)
		r.noErr(err)
	}
	in := func(when, want string) {
		t.Helper()
		suspects, crashes := r.quarantine()
		eq(t, when, fmt.Sprint(suspects, crashes), want)
	}
	limited := Nack{ID: "a", Kind: Postpone, Delay: time.Hour, Limited: true}
	limited.Flight = pop(true, false).Flight
	_, err := r.claim.Nack(r.ctx, limited)
	r.noErr(err)
	in("after its group refused it", "[b a] map[a:1 b:0]")

	r.push(job("c", "1"))
	p := pop(true, true)
	eq(t, "without ids in quarantine", show(p.Jobs...), "c[1]")
	eq(t, "without ids in quarantine", p.Quarantine, NotQuarantined)
	r.ack(p.Flight, "c")

	_, flight := r.popOne("b")
	n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: "b", Kind: Postpone, Delay: time.Hour, Group: true})
	r.noErr(err)
	eq(t, "put off by its handler", n, 1)
	in("after its handler stopped its group", "[a] map[a:1]")

	p = pop(true, false)
	eq(t, "the next", show(p.Jobs...), "a[1 2]")
	bury(Burial{Flight: p.Flight, ID: "a", Policy: Drop, Expired: 1, Places: []int{0}})
	in("after one of two payloads expired", "[a] map[a:1]")
	p = pop(true, false)
	eq(t, "the rest", show(p.Jobs...), "a[2]")
	bury(Burial{Flight: p.Flight, ID: "a", Policy: Drop, Expired: 1, Places: []int{0}})
	in("after all of them expired", "[] map[]")
}

func testQuarantinePeople(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "dead"))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Bury)
	r.push(job("a", "1"), job("a", "2"), job("b", "1"))
	r.pop(2)
	r.own(Seize)
	_, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	n, err := browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, "a")
	eq(t, "skipped", fmt.Sprint(n, err), "0 <nil>")
	_, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "b")
	r.noErr(err)
	suspects, crashes := r.quarantine()
	eq(t, "quarantine", fmt.Sprint(suspects, crashes), "[a] map[a:0]")
	eq(t, "drained", show(r.drain()...), "a[dead 1 2]")
}

func testQuarantineMaxCrashes(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("a", "2"))
	for range 3 {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 2, Slot: true})
		r.noErr(err)
		eq(t, "popped", show(p.Jobs...), "a[1 2]")
		r.push(job("a", "3", in(time.Hour)))
		r.own(Seize)
		if r.claim.Buried > 0 {
			break
		}
		_, err = browse.Of(r.q).BuryOldest(r.ctx, "retry", "none") // a stranger's id changes nothing
		r.noErr(err)
		r.takeBack("a", "3")
	}
	eq(t, "payloads buried", r.claim.Buried, 2)
	dead := whole(t, r.q, browse.Query{State: browse.StateMorgue})
	eq(t, "morgue", show(dead[0].Job), "a[1 2]")
	if !strings.HasPrefix(dead[0].Error, "crash") {
		t.Errorf("error: got %q, want a crash", dead[0].Error)
	}
	near(t, "what was parked", r.find("a", browse.StateScheduled).PerformAt, time.Hour)
	suspects, crashes := r.quarantine()
	eq(t, "quarantine", fmt.Sprint(suspects, crashes), "[] map[]")
}

// takeBack removes a payload that a recovery merged into a waiting job.
func (r *rig) takeBack(id, payload string) {
	r.t.Helper()
	record, err := r.c.DB().ForTests().HGet(r.ctx, r.s.Keys().Jobs, id).Result()
	r.noErr(err)
	job, err := newSpill(nil, nil).job("w", id, record)
	r.noErr(err)
	var b strings.Builder
	n, size := 0, 0
	for _, p := range job.Payloads {
		if p.Data != payload {
			fmt.Fprintf(&b, "%.17g %d:%s", p.Score, len(p.Data), p.Data)
			n, size = n+1, size+len(p.Data)
		}
	}
	record = fmt.Sprintf("j%d %d %d %d 0 %d\n%s", job.Retry, job.At, n, size, n+1, b.String())
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, id, record).Err())
}

// testQuarantinePoison pushes a payload that kills each process that handles it. Its neighbours are all handled and
// none is buried. It ends in the morgue.
func testQuarantinePoison(t *testing.T, b *backend) {
	r := newRig(t, b)
	for i := range 8 {
		r.push(job(fmt.Sprint("n", i), "1"))
	}
	r.push(job("poison", "1"))
	for i := range 4 {
		r.push(job(fmt.Sprint("m", i), "1"))
	}
	var done []string
	buried := 0
	for range 100 {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 5, Bytes: 1 << 20, MaxCrashes: 3, Slot: true})
		r.noErr(err)
		if len(p.Jobs) == 0 {
			break
		}
		if slices.ContainsFunc(p.Jobs, func(j lowkiq.Job) bool { return j.ID == "poison" }) {
			r.own(Seize)
			buried += r.claim.Buried
			continue
		}
		for _, j := range p.Jobs {
			r.ack(p.Flight, j.ID)
			done = append(done, j.ID)
		}
	}
	slices.Sort(done)
	eq(t, "neighbours", done, []string{"m0", "m1", "m2", "m3", "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"})
	eq(t, "buried", buried, 1)
	eq(t, "poison", r.find("poison", browse.StateMorgue).RetryCount, -1)
}

// testQuarantineLoweredLimit checks that a lowered limit counts earlier crashes, and says how many there were.
func testQuarantineLoweredLimit(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	for _, most := range []int{3, 3, 3, 2} {
		_, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: most, Slot: true})
		r.noErr(err)
		r.own(Seize)
	}
	eq(t, "buried", r.claim.Buried, 1)
	eq(t, "error", r.find("a", browse.StateMorgue).Error, "crash: its worker died 3 times while it ran alone")
}
