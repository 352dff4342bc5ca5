package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

var adminTests = []testCase{
	{"ManyCrowdedIDs", testManyCrowdedIDs}, {"LargeRecords", testLargeRecords}, {"MorgueOfACrowd", testMorgueOfACrowd}, {"RequeueKeepsTheOrder", testRequeueKeepsTheOrder},
}

// testManyCrowdedIDs checks that a script changes ids of about 2,000 payloads, however many ids it gets, because an id
// may have 10,000.
func testManyCrowdedIDs(t *testing.T, b *backend) {
	r := newRig(t, b)
	const each = 300
	ids := make([]string, 12)
	for i := range ids {
		ids[i] = fmt.Sprint("id", i)
		jobs := make([]lowkiq.Push, each)
		for k := range jobs {
			jobs[k] = job(ids[i], fmt.Sprint(k))
		}
		r.push(jobs...)
	}
	first := func(script *redisdb.Script, keys []string, args ...any) {
		t.Helper()
		reply, err := r.c.Run(r.ctx, script, keys, append(args, anyOf(ids)...)...)
		r.noErr(err)
		eq(t, script.Name, fmt.Sprint(reply), "[7 7 0]")
	}
	all := func(what string, n int, err error) {
		t.Helper()
		r.noErr(err)
		eq(t, what, n, len(ids))
	}
	k := r.s.Keys()
	first(r.c.DB().Scripts.Kill, k.For(r.c.DB().Scripts.Kill), 0, "", "all", k.Wake)
	n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...)
	all("the rest killed", n+7, err)
	first(r.c.DB().Scripts.Requeue, k.For(r.c.DB().Scripts.Requeue), 0, "morgue", k.Wake)
	n, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, ids...)
	all("the rest requeued", n+7, err)
	first(r.c.DB().Scripts.Delete, k.For(r.c.DB().Scripts.Delete), 0, "")
	n, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids[7:]...)
	all("the rest deleted", n+7, err)
	for _, id := range ids {
		r.push(job(id, "1"), job(id, "2"))
	}
	n, err = browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...)
	all("small ones killed", n, err)
	n, err = browse.Of(r.q).Delete(r.ctx, browse.StateMorgue, ids...)
	all("forgotten", n, err)
}

// testLargeRecords checks that a payload of a megabyte counts like many small payloads.
func testLargeRecords(t *testing.T, b *backend) {
	r := newRig(t, b)
	var ids []string
	for i := range 6 {
		ids = append(ids, fmt.Sprint("id", i))
		r.push(job(ids[i], strings.Repeat("x", 1<<20)))
	}
	k := r.s.Keys()
	reply, err := r.c.Run(r.ctx, r.c.DB().Scripts.Kill, k.For(r.c.DB().Scripts.Kill), append([]any{0, "", "all", k.Wake}, anyOf(ids)...)...)
	r.noErr(err)
	eq(t, "kill", fmt.Sprint(reply), "[1 1 0]")
	reply, err = r.c.Run(r.ctx, r.c.DB().Scripts.Delete, k.For(r.c.DB().Scripts.Delete), append([]any{0, ""}, anyOf(ids)...)...)
	r.noErr(err)
	eq(t, "delete", fmt.Sprint(reply), "[1 2 0]")
	n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...)
	r.noErr(err)
	eq(t, "killed", n, 4)
	n, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, ids...)
	r.noErr(err)
	eq(t, "requeued", n, 5)
}

// testMorgueOfACrowd checks that payloads of an id that are buried join those that were buried before, in bulk.
func testMorgueOfACrowd(t *testing.T, b *backend) {
	r := newRig(t, b)
	push := func(from, to int, s float64) {
		for i := from; i < to; i++ {
			r.push(job("a", fmt.Sprint(i), score(s+float64(i))))
		}
	}
	kill := func() {
		t.Helper()
		n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a")
		r.noErr(err)
		eq(t, "killed", n, 1)
	}
	push(0, 5, 1000)
	kill()
	push(3, 40, 2000) // 5 few ones meet many
	kill()
	push(30, 90, -1000) // many meet many
	push(0, 1, 9000)
	kill()
	push(2, 3, -5000) // one meets many
	kill()
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "payloads in the morgue", stats.Morgue, 90)
	if _, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a"); err != nil {
		t.Fatal(err)
	}
	scores := map[string]float64{}
	for _, p := range r.find("a", browse.StateReady).Payloads {
		scores[string(p.Data)] = p.Score
	}
	for i := range 90 {
		want := float64(i)
		switch {
		case i == 2:
			want -= 5000
		case i < 5:
			want += 1000
		case i < 30:
			want += 2000
		default:
			want -= 1000
		}
		eq(t, fmt.Sprint("score of ", i), scores[fmt.Sprint(i)], want)
	}
}

// testRequeueKeepsTheOrder checks that buried payloads come before waiting payloads of equal scores, because they were
// pushed before (I3).
func testRequeueKeepsTheOrder(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1", score(7)), job("a", "2", score(7)))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Skip)
	r.push(job("a", "3", score(7)))
	_, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	eq(t, "after skip", show(r.find("a", browse.StateReady).Job), "a[1 2 3]")
	_, flight = r.popOne("a")
	r.bury(flight, "a", Bury)
	r.push(job("a", "4", score(7)))
	r.popOne("a")
	r.push(job("a", "5", score(7)))
	_, err = browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	r.own(Self)
	eq(t, "beside a flight", show(r.find("a", browse.StateReady).Job), "a[4 1 2 3 5]")
}
