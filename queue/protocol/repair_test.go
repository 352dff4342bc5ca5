package protocol_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq/internal/store/packed"
)

var repairTests = []testCase{
	{"Repair_Faults", testRepairFaults},
	{"Repair_LooksAgain", testRepairLooksAgain},
	{"Repair_KeepsThePlace", testRepairKeepsThePlace},
	{"Repair_MergesParkedPayloads", testRepairMergesParkedPayloads},
	{"Repair_OfATombCounts", testRepairOfATombCounts},
	{"Repair_LeavesTheOnlyPlace", testRepairLeavesTheOnlyPlace},
	{"Repair_OfADamagedFlight", testRepairOfADamagedFlight},
	{"Repair_Anything", testRepairAnything},
	{"Repair_EndsQuarantine", testRepairEndsQuarantine},
	{"Repair_OfAnEmptyFlight", testRepairOfAnEmptyFlight},
	{"Repair_OfAFence", testRepairOfAFence},
	{"Repair_OfFollowUps", testRepairOfFollowUps},
	{"Audit_Busy", testAuditBusy},
}

// mend repairs the faults that the audit finds, until it finds no more to repair.
func (r *rig) mend() audit.Report {
	r.t.Helper()
	for range 5 {
		found := r.audit()
		done := false
		for _, f := range found.Faults {
			one, err := audit.Repair(r.ctx, r.c, f)
			r.noErr(err)
			done = done || one
		}
		if !done {
			return found
		}
	}
	r.t.Fatal("repairs found something to do five times")
	return audit.Report{}
}

func testRepairFaults(t *testing.T, b *backend) {
	for _, one := range corruptions() {
		t.Run(strings.ReplaceAll(one.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := corrupted(t, b, one)
			before := r.payloads()
			left := r.mend()
			if one.left != (len(left.Faults) > 0) {
				t.Errorf("after the repair: got these faults, want some: %t\n%s", one.left, linesOf(left))
			}
			if lost := missing(before, r.payloads()); len(lost) > 0 && !one.left {
				t.Errorf("lost payloads: %q (I2)", lost)
			}
			if one.want == audit.DamagedRecord || one.want == audit.FollowUpDamaged {
				eq(t, "moved aside", left.Aside, 1)
			}
			if _, err := readState(r.s, r.ctx); err != nil && !one.left {
				t.Errorf("the suite's own check: %v", err)
			}
		})
	}
}

// payloads returns all payloads that Redis has of the shard, wherever they are: "id payload", or the record
// if it cannot be read.
func (r *rig) payloads() map[string]bool {
	r.t.Helper()
	all := map[string]bool{}
	k := r.s.Keys()
	for _, hash := range []string{k.Jobs, k.Parked, k.Morgue, k.Aside} {
		records, err := r.c.DB().ForTests().HGetAll(r.ctx, hash).Result()
		if err != nil {
			continue // of another type: the payloads are elsewhere
		}
		for id, record := range records {
			if id == "" || record == "x" {
				continue
			}
			if _, _, err := packed.Decode(id, record, nil); err != nil {
				all[record] = true
				continue
			}
			if record[0] == 's' {
				continue
			}
			list, err := inPushOrder(record)
			r.noErr(err)
			for _, p := range list {
				all[id+" "+bareOf(p.Data)] = true
			}
		}
	}
	fields, err := r.c.DB().ForTests().HKeys(r.ctx, k.Spillx).Result()
	r.noErr(err)
	for _, field := range fields {
		if e, ok := packed.ParseSpill(field, false); ok {
			all[e.ID+" "+e.Payload] = true
		}
	}
	return all
}

func missing(before, after map[string]bool) (lost []string) {
	for p := range before {
		if !after[p] {
			lost = append(lost, p)
		}
	}
	return lost
}

// testRepairLooksAgain checks that a repair changes nothing if another process has mended the fault meanwhile.
func testRepairLooksAgain(t *testing.T, b *backend) {
	for _, one := range corruptions() {
		if one.left || one.fly || one.id == "" {
			continue
		}
		r := corrupted(t, b, one)
		stale := r.audit().Faults[0]
		r.mend()
		before, err := readRaw(r.s, r.ctx)
		r.noErr(err)
		mended, err := audit.Repair(r.ctx, r.c, stale)
		r.noErr(err)
		after, err := readRaw(r.s, r.ctx)
		r.noErr(err)
		if was, is := fmt.Sprint(before.jobs.Val(), before.ready.Val()), fmt.Sprint(after.jobs.Val(), after.ready.Val()); mended || was != is {
			t.Errorf("%s: repaired twice (%t): got %s, want %s", one.name, mended, is, was)
		}
	}
	r := corrupted(t, b, corruptions()[0])
	for _, f := range []audit.Fault{{Kind: audit.OrphanKey}, {Kind: "nonsense"}} {
		if mended, err := audit.Repair(r.ctx, r.c, f); mended || err != nil {
			t.Errorf("%s: got %t, %v, want nothing done", f.Kind, mended, err)
		}
	}
	if _, err := audit.Repair(r.ctx, r.c, audit.Fault{Kind: audit.NoEntry, Queue: r.q.Name, Shard: 7}); err == nil {
		t.Error("a shard that is not there: got nil, want an error")
	}
}

// testRepairKeepsThePlace checks that of two places a repair keeps the right one.
func testRepairKeepsThePlace(t *testing.T, b *backend) {
	for name, want := range map[string]browse.State{
		"entry to pass over lost": browse.StateScheduled, "ready and to be passed over": browse.StateReady, "entry to pass over not marked": browse.StateScheduled,
		"to be passed over, twice ready": browse.StateScheduled,
		"ready and due":                  browse.StateScheduled, "ready and blocked": browse.StateBlocked, "ready and suspect": browse.StateReady, "flying and ready": browse.StateInFlight,
		"ready entry lost": browse.StateReady, "retry entry lost": browse.StateRetry, "failed among the fresh": browse.StateRetry,
	} {
		all := corruptions()
		one := all[slices.IndexFunc(all, func(c corruption) bool { return c.name == name })]
		r := corrupted(t, b, one)
		r.mend()
		r.find(one.id, want)
	}
}

func testRepairMergesParkedPayloads(t *testing.T, b *backend) {
	all := corruptions()
	r := corrupted(t, b, all[slices.IndexFunc(all, func(c corruption) bool { return c.name == "parked without a flight" })])
	r.mend()
	job := r.find("r", browse.StateReady)
	eq(t, "payloads", fmt.Sprintf("%q", dataOf(job.Payloads)), `["new" "r"]`)
}

// testRepairEndsQuarantine checks that an id that leaves quarantine by a repair does not count any more. Otherwise the
// shard would wait for it.
func testRepairEndsQuarantine(t *testing.T, b *backend) {
	for name, do := range map[string]func(*rig) error{
		"record lost": func(r *rig) error { return r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Jobs, "a").Err() },
		"deleted":     func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "a", "x").Err() },
		"damaged":     func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "a", "damaged").Err() },
	} {
		c := b.open(t)
		r := rigOn(t, c)
		takeLeases(t, c, "n/1", "n/2")
		r.own(Fresh)
		r.push(job("a", "1"), job("b", "1"))
		r.popOne("a")
		r.own(Seize)
		r.noErr(do(r))
		for _, f := range r.audit().Faults { // once: what a repair breaks is not mended
			_, err := audit.Repair(r.ctx, r.c, f)
			r.noErr(err)
		}
		if left := linesOf(r.audit()); left != "" {
			t.Errorf("%s: left after the repair:\n%s", name, left)
		}
		r.popOne("b")
	}
}

// testRepairOfAnEmptyFlight repairs a shard without an owner whose claim counts empty flights.
func testRepairOfAnEmptyFlight(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "fence", 7, "#3", 1, "@3", 5).Err())
	found := r.audit().Faults
	eq(t, "faults", len(found), 1)
	for _, want := range []bool{true, false} {
		mended, err := audit.Repair(r.ctx, r.c, found[0])
		r.noErr(err)
		eq(t, "mended", mended, want)
	}
	eq(t, "left", linesOf(r.audit()), "")
}

// testRepairOfAFence checks that a fence that is no number keeps every node out. A repair waits until its holder is
// gone.
func testRepairOfAFence(t *testing.T, b *backend) {
	for _, fence := range []string{"soon", "", "9007199254740993"} {
		c := b.open(t)
		r := rigOn(t, c)
		held, err := c.Leases().Take(r.ctx, "n/1", []byte("i"), []byte("v"), time.Hour)
		r.noErr(err)
		r.own(Fresh)
		r.push(job("a", "1"), job("b", "1"))
		r.popOne("a")
		r.push(job("a", "2"))
		r.noErr(c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "fence", fence).Err())
		repair := func(want bool) {
			t.Helper()
			found := r.audit().Faults
			if len(found) == 0 || found[0].Kind != audit.ClaimDamaged {
				t.Fatalf("fence %q: got faults %v, want %s", fence, found, audit.ClaimDamaged)
			}
			mended, err := audit.Repair(r.ctx, c, found[0])
			r.noErr(err)
			eq(t, fmt.Sprintf("fence %q: mended", fence), mended, want)
		}
		repair(false)
		r.noErr(held.Drop(r.ctx))
		repair(true)
		takeLeases(t, c, "n/2")
		r.own(Fresh)
		eq(t, "popped", show(r.pop(5).Jobs...), "a[1 2] b[1]")
		// A shard without owner can be stuck in the same way.
		_, err = r.claim.Release(r.ctx)
		r.noErr(err)
		r.noErr(c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "fence", fence).Err())
		repair(true)
		r.own(Fresh)
	}
}

// testRepairOfFollowUps checks that a damaged follow-up is moved aside as it is, and its neighbours stay.
func testRepairOfFollowUps(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	for _, values := range [][]string{
		{"5-0", "q", "mail", "i", "u7", "p", "first", "s", "1.5", "a", "7", "e", "buried\nfailed"},
		{"6-0", "q", "a b", "i", "u7", "p", "\x00\xff", "s", "", "a", "", "e", ""},
		{"7-0", "q", "mail", "i", "u7", "p", "", "s", "", "a", "", "e", "expired"},
	} {
		r.noErr(sendOn(values[0], values[1:]...)(r.ctx, r.c.DB().ForTests(), r.s.Keys()))
	}
	eq(t, "left", linesOf(r.mend()), "")
	aside, err := r.c.DB().ForTests().HGetAll(r.ctx, r.s.Keys().Aside).Result()
	r.noErr(err)
	want := `follow-up 6-0, which waits, cannot be delivered: queue name "a b": use letters, digits, '.', '_' and '-', beginning with a letter or digit` +
		"\n1:q 3:a b 1:i 2:u7 1:p 2:\x00\xff 1:s 0: 1:a 0: 1:e 0:"
	eq(t, "aside", fmt.Sprintf("%q", aside), fmt.Sprintf("%q", map[string]string{"out:6-0": want}))
	var numbers []int64
	for _, o := range r.outgoing() {
		numbers = append(numbers, o.Number)
	}
	eq(t, "follow-ups that wait", fmt.Sprint(numbers), "[5 7]")
	eq(t, "the last number", r.c.DB().ForTests().HGet(r.ctx, r.s.Keys().Count, "out").Val(), "7")
}

// testRepairAnything breaks a random shard in several mendable ways at once. Afterwards the audit finds no
// fault and no payload is lost.
func testRepairAnything(t *testing.T, b *backend) {
	client := b.open(t)
	rapid.Check(t, func(rt *rapid.T) {
		if b.mini && rapid.Uint64().Draw(rt, "embedded")%8 != 0 {
			return // as in testModel
		}
		m := newMachine(rt, t.Context(), Rename(rt, client, b.name()))
		steps := map[string]func(*rapid.T){
			"push": m.push, "pop": m.popNext, "ack": m.ack, "nack": m.nack, "note": m.note, "bury": m.bury, "admin": m.admin, "recover": m.recover,
		}
		names := slices.Sorted(maps.Keys(steps))
		for range rapid.IntRange(3, 25).Draw(rt, "steps") {
			steps[rapid.SampledFrom(names).Draw(rt, "step")](rt)
			m.compare(rt)
		}
		for n := range m.instances {
			takeLeases(t, ClientOf(m.q), fmt.Sprint("n/", n+1))
		}
		r := &rig{t: t, ctx: m.ctx, c: ClientOf(m.q), q: m.q, s: m.q.Shard(0)}
		if got := r.audit(); len(got.Faults) > 0 {
			rt.Fatalf("before it is broken:\n%s", linesOf(got))
		}
		for range rapid.IntRange(1, 6).Draw(rt, "breaks") {
			m.smash(rt)
		}
		before := r.payloads()
		if got := r.mend(); len(got.Faults) > 0 {
			rt.Fatalf("after the repair:\n%s", linesOf(got))
		}
		if lost := missing(before, r.payloads()); len(lost) > 0 {
			rt.Fatalf("lost payloads: %q (I2)", lost)
		}
		if _, err := readState(r.s, m.ctx); err != nil {
			rt.Fatalf("the suite's own check: %v", err)
		}
	})
}

// smash breaks the first shard in a way that a repair can mend.
func (m *machine) smash(t *rapid.T) {
	s := m.q.Shard(0)
	id := drawID.Draw(t, "id")
	busy := s.DB().ForTests().LPos(m.ctx, s.Keys().Flight, id, lposAny).Err() == nil
	key := rapid.SampledFrom([]string{s.Keys().Due, s.Keys().Retry, s.Keys().Blocked, s.Keys().Dead}).Draw(t, "set")
	ways := map[string]func() error{
		"entry":   func() error { return s.DB().ForTests().RPush(m.ctx, s.Keys().Ready, id).Err() },
		"head":    func() error { return s.DB().ForTests().LPush(m.ctx, s.Keys().Ready, id).Err() },
		"lost":    func() error { return s.DB().ForTests().LRem(m.ctx, s.Keys().Ready, 0, id).Err() },
		"unset":   func() error { return s.DB().ForTests().ZRem(m.ctx, key, id).Err() },
		"set":     func() error { return s.DB().ForTests().ZAdd(m.ctx, key, zAt(id)).Err() },
		"crash":   func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().Crashes, id, 2).Err() },
		"excuse":  func() error { return s.DB().ForTests().HDel(m.ctx, s.Keys().Crashes, id).Err() },
		"suspect": func() error { return s.DB().ForTests().RPush(m.ctx, s.Keys().Suspects, id).Err() },
		"mark":    func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().Stale, id, 1).Err() },
		"unmark":  func() error { return s.DB().ForTests().HDel(m.ctx, s.Keys().Stale, id).Err() },
		"late":    func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().Late, id, 1).Err() },
		"unlate":  func() error { return s.DB().ForTests().HDel(m.ctx, s.Keys().Late, id).Err() },
		"off":     func() error { return s.DB().ForTests().ZAdd(m.ctx, s.Keys().Postponed, zAt(id)).Err() },
		"not off": func() error { return s.DB().ForTests().ZRem(m.ctx, s.Keys().Postponed, id).Err() },
		"state":   func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().States, id, "s").Err() },
		"undate":  func() error { return s.DB().ForTests().ZRem(m.ctx, s.Keys().Statesx, id).Err() },
		"date":    func() error { return s.DB().ForTests().ZAdd(m.ctx, s.Keys().Statesx, zAt(id)).Err() },
		"note":    func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().Progress, id, "5 1\n").Err() },
		"counts":  func() error { return s.DB().ForTests().HSet(m.ctx, s.Keys().Count, "tombs", 9, "morgue", 9).Err() },
		"park": func() error {
			if record := s.DB().ForTests().HGet(m.ctx, s.Keys().Jobs, id).Val(); busy || strings.HasPrefix(record, "s") {
				return nil
			}
			return s.DB().ForTests().HSet(m.ctx, s.Keys().Parked, id, "j-1 5 1 4 0 2\n7 4:left").Err()
		},
		"record": func() error {
			if record := s.DB().ForTests().HGet(m.ctx, s.Keys().Jobs, id).Val(); busy || strings.HasPrefix(record, "s") {
				return nil // its payloads would be of nobody
			}
			return s.DB().ForTests().HSet(m.ctx, s.Keys().Jobs, id, "damaged").Err()
		},
	}
	if err := ways[rapid.SampledFrom(slices.Sorted(maps.Keys(ways))).Draw(t, "way")](); err != nil {
		t.Fatal(err)
	}
}

// lposAny looks for one entry.
var lposAny = redis.LPosArgs{}

// zAt returns an id for a sorted set, at a time that is in no record.
func zAt(id string) redis.Z { return redis.Z{Score: 12345, Member: id} }
