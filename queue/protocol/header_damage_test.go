package protocol_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

var headerDamageTests = []testCase{
	{"Header_CutShortIsNamed", testHeaderCutShort},
	{"Header_CutShortInTheSpill", testHeaderCutShortInTheSpill},
	{"Header_KeyOfAnother", testHeaderKeyOfAnother},
	{"Header_OnPages", testHeaderOnPages},
	{"Header_ShortMember", testHeaderShortMember},
}

// cutEnvelope begins as a payload with headers and ends early.
const cutEnvelope = "\x00L\x00\x05{}"

// looseRig returns a rig whose state is damaged by hand, without the check at the end.
func looseRig(t *testing.T, b *backend) *rig {
	c := b.open(t)
	q := newQueue(t, c, 1)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)}
	takeLeases(t, c, "n/1", "n/2", "n/3")
	r.own(Fresh)
	return r
}

// testHeaderCutShort checks that the audit names a record whose payload is cut within its headers, in every form. A pop
// and a repair move it aside, unchanged.
func testHeaderCutShort(t *testing.T, b *backend) {
	for form, record := range map[string]string{
		"a": "a1234567\x00\x00" + cutEnvelope, "e": "e1234567" + "\x40\x00\x00\x00\x00\x00\x00\x00" + cutEnvelope, "j": "j-1 1 1 6 0 2\n1 6:" + cutEnvelope,
	} {
		for _, popped := range []bool{false, true} {
			r := looseRig(t, b)
			r.push(job("bad", "1"), job("good", "1"))
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "bad", record).Err())
			eq(t, form+": check", strings.Contains(linesOf(r.audit()), "its record in jobs cannot be read"), true)
			page, err := browse.Of(r.q).Page(r.ctx, browse.Query{State: browse.StateReady})
			r.noErr(err)
			eq(t, form+": jobs of the page", len(page.Jobs), 2)
			for _, one := range page.Jobs {
				eq(t, form+": damaged", one.Damaged, one.ID == "bad")
			}
			if popped {
				eq(t, form+": set aside", fmt.Sprint(r.pop(2).Damaged), "[bad]")
			} else {
				r.mend()
			}
			kept, err := r.c.DB().ForTests().HVals(r.ctx, r.s.Keys().Aside).Result()
			r.noErr(err)
			eq(t, form+": kept aside", fmt.Sprintf("%q", kept), fmt.Sprintf("%q", []string{record}))
		}
	}
}

// testHeaderCutShortInTheSpill checks that the audit names and shows such a payload of a crowded id. Two of them are
// equal only if all their bytes are.
func testHeaderCutShortInTheSpill(t *testing.T, b *backend) {
	r := looseRig(t, b)
	r.crowd("s", 40)
	k, db := r.s.Keys(), r.c.DB().ForTests()
	for i, data := range []string{cutEnvelope, cutEnvelope + "x"} {
		key := "\xbf\xf0\x00\x00\x00\x00\x00\x00" + fmt.Sprintf("%012d", 500000000900+i)
		r.noErr(db.ZAdd(r.ctx, k.Spill, redis.Z{Member: "w1:s:" + key + data}).Err())
		r.noErr(db.HSet(r.ctx, k.Spillx, "w1:s:"+data, key).Err())
	}
	eq(t, "check", strings.Contains(linesOf(r.audit()), "a payload in the spill cannot be read"), true)
	one, ok, err := browse.Of(r.q).Job(r.ctx, "s")
	if err != nil || !ok || len(one.Payloads) != 42 {
		t.Fatalf("got %d payloads, %v, %v, want 42", len(one.Payloads), ok, err)
	}
	eq(t, "set aside", fmt.Sprint(r.pop(1).Damaged), "[s]")
	left, err := db.HLen(r.ctx, k.Spillx).Result()
	r.noErr(err)
	eq(t, "fields left", left, 0)
	kept, err := db.HVals(r.ctx, k.Aside).Result()
	r.noErr(err)
	eq(t, "kept", strings.Count(strings.Join(kept, ""), cutEnvelope), 2)
}

// testHeaderKeyOfAnother checks that the field of a payload names the place of another payload, or none. A push and a
// return of the payload must succeed and must not cost the other payload.
func testHeaderKeyOfAnother(t *testing.T, b *backend) {
	for _, what := range []string{"push", "return"} {
		r := looseRig(t, b)
		r.crowd("s", 60)
		var p Popped
		if what == "return" {
			p = r.pop(1)
			r.crowd("s", 60)
		}
		k, db := r.s.Keys(), r.c.DB().ForTests()
		for _, damaged := range []string{"p1", "p3"} {
			was := db.HGet(r.ctx, k.Spillx, "w1:s:"+damaged).Val()
			other := db.HGet(r.ctx, k.Spillx, "w1:s:p5"+damaged[1:]).Val()
			r.noErr(db.HSet(r.ctx, k.Spillx, "w1:s:"+damaged, other).Err())
			member := "w1:s:" + was + "\x00L\x00\x09{\"h\":\"1\"}\x00" + damaged
			eq(t, what+": members", db.ZRem(r.ctx, k.Spill, member).Val(), 1)
		}
		eq(t, what+": check", strings.Contains(linesOf(r.audit()), "a score and no place"), true)
		r.noErr(db.HSet(r.ctx, k.Spillx, "w1:s:p7", "cut").Err())
		if what == "return" {
			r.nack(p.Flight, "s", Retry, 0, time.Hour)
		} else {
			r.push(job("s", "p1", score(-5)), job("s", "p3", score(-5), header("h", "2")), job("s", "p7", score(-5)))
		}
		one, _, err := browse.Of(r.q).Job(r.ctx, "s")
		r.noErr(err)
		have := map[string]bool{}
		for _, p := range one.Payloads {
			have[string(p.Data)] = true
		}
		for i := range 60 {
			if name := fmt.Sprint("p", i); !have[name] {
				t.Errorf("%s: %s is lost", what, name)
			}
		}
	}
}

// testHeaderOnPages checks that a page cuts payloads, and says so only of those that it has cut.
func testHeaderOnPages(t *testing.T, b *backend) {
	r := newRig(t, b)
	for id, options := range map[string][]func(*lowkiq.Push){"a": nil, "e": {score(1)}} {
		with := func(more ...func(*lowkiq.Push)) []func(*lowkiq.Push) { return append(slices.Clone(options), more...) }
		r.push(job(id+"-small", "data", with(header("h", "1"))...))
		r.push(job(id+"-alike", "\x00Ldata", options...))
		r.push(job(id+"-cut", strings.Repeat("x", 5000), with(header("h", "1"))...))
		r.push(job(id+"-within", "data", with(header("h", strings.Repeat("v", 4096-len(`{"h":""}`))))...))
	}
	r.push(job("j-small", "data", header("h", "1")), job("j-small", "more"))
	r.push(job("s-within", "data", header("h", strings.Repeat("v", 4096-len(`{"h":""}`)))), job("s-within", "more"))
	page, err := browse.Of(r.q).Page(r.ctx, browse.Query{State: browse.StateReady})
	r.noErr(err)
	eq(t, "jobs", len(page.Jobs), 10)
	for _, one := range page.Jobs {
		_, kind, _ := strings.Cut(one.ID, "-")
		eq(t, one.ID+": damaged", one.Damaged, false)
		eq(t, one.ID+": cut", one.Cut, kind == "cut" || kind == "within")
		if len(one.Payloads) == 0 {
			t.Fatalf("%s: got no payload", one.ID)
		}
		p := one.Payloads[0]
		switch kind {
		case "small":
			eq(t, one.ID, string(p.Header)+string(p.Data), `{"h":"1"}data`)
		case "alike":
			eq(t, one.ID, string(p.Data), "\x00Ldata")
		case "cut":
			eq(t, one.ID, string(p.Header)+strings.Trim(string(p.Data), "x"), `{"h":"1"}`)
		case "within":
			eq(t, one.ID, string(p.Header)+string(p.Data), "")
		}
	}
}

// testHeaderShortMember checks that an entry of the spill that is too short to have a key hides no other.
func testHeaderShortMember(t *testing.T, b *backend) {
	r := looseRig(t, b)
	r.crowd("s", 40)
	r.noErr(r.c.DB().ForTests().ZAdd(r.ctx, r.s.Keys().Spill, redis.Z{Member: "w1:s:short"}).Err())
	one, ok, err := browse.Of(r.q).Job(r.ctx, "s")
	if err != nil || !ok || len(one.Payloads) != 40 {
		t.Fatalf("got %d payloads, %v, %v, want 40", len(one.Payloads), ok, err)
	}
	eq(t, "check", strings.Contains(linesOf(r.audit()), "an entry that cannot be read"), true)
}
