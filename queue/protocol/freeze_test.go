package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

var freezeTests = []testCase{
	{"Freeze_RefusesEveryScript", testFreezeRefuses},
	{"Take_OpensAShard", testTakeOpens},
}

// values returns the values of a shard's keys, by their names in its list.
func (r *rig) values(s *Shard, name func(key string) string) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	rdb := r.c.DB().ForTests()
	for _, key := range s.Keys().List() {
		if key.Freeze != redisdb.Moves {
			continue
		}
		var value any
		var err error
		switch k := name(key.Name); key.Type {
		case "hash":
			value, err = rdb.HGetAll(r.ctx, k).Result()
		case "list":
			value, err = rdb.LRange(r.ctx, k, 0, -1).Result()
		default:
			value, err = rdb.ZRangeWithScores(r.ctx, k, 0, -1).Result()
		}
		r.noErr(err)
		all[key.Name] = fmt.Sprint(value)
	}
	return all
}

// testFreezeRefuses checks that no request changes the contents of a frozen shard, or leaves a key that a thaw would
// overwrite. Then a thaw gives the contents back.
func testFreezeRefuses(t *testing.T, b *backend) {
	r := newRig(t, b)
	s := r.s
	for _, id := range []string{"ready", "later", "dead", "blocked", "state", "held"} {
		r.push(job(id, "1"))
	}
	p := r.pop(6)
	for _, popped := range p.Jobs {
		switch id := popped.ID; id {
		case "later":
			r.nack(p.Flight, id, Retry, 1, time.Hour)
		case "dead":
			r.bury(p.Flight, id, Bury)
		case "blocked":
			r.bury(p.Flight, id, Block)
		case "held":
			r.nack(p.Flight, id, Hold, 0, 0)
		case "state":
			r.ackAll(Acks{Flight: p.Flight, IDs: []string{id}, Answers: []Answer{{ID: id, SetState: true, State: []byte("s")}}})
		default:
			r.nack(p.Flight, id, Return, 0, 0)
		}
	}
	live := func(name string) string { return s.Keys().Tag + name }
	before := r.values(s, live)
	reply, err := s.Run(r.ctx, r.c.DB().Scripts.Freeze, "freeze", MovedMark(2), "quiet", "")
	r.noErr(err)
	frozen, err := ReadFrozen(redisdb.List(reply))
	r.noErr(err)
	if frozen.IDs != 4 || frozen.BuriedIDs != 1 || frozen.Buried != 1 || frozen.States != 1 || frozen.Fence != r.claim.Fence {
		t.Errorf("got %+v, want 4 ids, a buried payload, a state and the fence %d", frozen, r.claim.Fence)
	}
	old := r.values(s, s.Keys().Old)
	eq(t, "frozen", old, before)
	// The rest of the test asks for everything. The entry of the queue would allow a thaw, so nobody looks at it.
	run := func(script *redisdb.Script, args ...any) { _, _ = s.Run(r.ctx, script, args...) }
	scripts, fence := r.c.DB().Scripts, fmt.Sprint(r.claim.Fence)
	owner := []any{r.claim.Instance, fence}
	run(scripts.Push, "a", 10, 1000, s.Keys().Wake, "ready", "002")
	run(scripts.PushUrgent, "m all 0 0", 10, 1000, s.Keys().Wake, "ready", "2", "", "u")
	run(scripts.Coalesce, "m latest 0 0", 10, 1000, s.Keys().Wake, "ready", "2", "", "")
	run(scripts.Deliver, "m", 10, 1000, s.Keys().Wake, "ready", "2", "", "", "source", 1)
	run(scripts.Import, 10, 1000, s.Keys().Wake, "import/x", "ready", 1, "12345678payload")
	run(scripts.Claim, "n/2", "seize", "0", "")
	for _, script := range []*redisdb.Script{scripts.Pop, scripts.Ack, scripts.Complete, scripts.Nack, scripts.Bury, scripts.Note, scripts.Resume, scripts.Release, scripts.Aside, scripts.Regroup} {
		run(script, append(owner, "1", "1", "ready", "1", "1", "1", "1", "1", "1", "1", "1", "1")...)
	}
	_, _ = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1 << 20})
	_, _ = r.claim.Release(r.ctx)
	jobs := browse.Of(r.q)
	for _, id := range []string{"ready", "later", "dead", "blocked", "state", "held", "fresh"} {
		_, _ = jobs.Delete(r.ctx, browse.Anywhere, id)
		_, _ = jobs.Delete(r.ctx, browse.StateMorgue, id)
		_, _ = jobs.Bury(r.ctx, browse.Anywhere, id)
		_, _ = jobs.RunNow(r.ctx, id)
		_, _ = jobs.Requeue(r.ctx, browse.StateMorgue, id)
		_, _ = jobs.Requeue(r.ctx, browse.Anywhere, id)
		_, _, _ = jobs.Job(r.ctx, id)
	}
	for _, query := range []browse.Query{{}, {State: browse.StateMorgue}, {State: browse.StateFailed}} {
		_, _ = jobs.Bulk(r.ctx, browse.DeleteBuried, query)
		_, _ = jobs.Page(r.ctx, query)
	}
	run(scripts.MorgueTrim, 0, 0, 100)
	_ = transfer.Seal(r.ctx, r.q, "old")
	if _, err := r.c.Stats(r.ctx, s); err != nil {
		t.Errorf("stats of a frozen shard: %v", err)
	}
	if _, err := r.c.Check(r.ctx, false); err != nil {
		t.Errorf("check: %v", err)
	}
	eq(t, "after all scripts", r.values(s, s.Keys().Old), old)
	for name, value := range r.values(s, live) {
		if name != "count" && value != "map[]" && value != "[]" {
			t.Errorf("a script has made the key %s of a frozen shard: %s", name, value)
		}
	}
	run(scripts.Freeze, "thaw", MovedMark(3))
	eq(t, "thawed by another number", r.values(s, s.Keys().Old), old)
	run(scripts.Freeze, "thaw", MovedMark(2))
	eq(t, "thawed", r.values(s, live), before)
}

// testTakeOpens checks that a closed shard takes pushes and no claim. It takes each entry once, however often it comes,
// and opens after the last entry of the last parent.
func testTakeOpens(t *testing.T, b *backend) {
	r := newRig(t, b)
	_, entry, err := r.c.Registry().Stored(r.ctx, r.q.Name)
	r.noErr(err)
	q := r.c.Registry().InLayout(r.q.Name, entry, 1, 2)
	s := q.Shard(0)
	take := func(want string, args ...any) {
		t.Helper()
		for range 2 { // each request comes twice
			reply, err := s.Run(r.ctx, r.c.DB().Scripts.Take, args...)
			r.noErr(err)
			if got := strings.TrimSpace(strings.Trim(fmt.Sprint(redisdb.List(reply)), "[]")); got != want {
				t.Errorf("%v: got %q, want %q", args, got, want)
			}
		}
	}
	wake := s.Keys().Wake
	take("UNPREPARED", "take", "p", 5, 1, wake, "a", "x", "")
	take("OK 0", "prepare", 2)
	take("OK 0", "floor", "9000000000000000", int64(9_000_000_000_000), "5000000", "alerts")
	if _, err := s.Claim(r.ctx, "n/1", Fresh, Owner{Fence: 9_000_000_000_000}); !errors.Is(err, ErrMoving) {
		t.Errorf("claim of a closed shard: got %v, want ErrMoving", err)
	}
	stats, err := r.c.Stats(r.ctx, s)
	r.noErr(err)
	if stats[0].Lag < 24*time.Hour {
		t.Errorf("the lag is %s, want that of the jobs that are coming", stats[0].Lag)
	}
	take("GAP 0", "take", "p", 5, 2, wake, "a", "x", "")
	take("OK 2", "take", "p", 5, 1, wake, "a", "r", "a\x00\x05\xaf\x31\x07\xa4\x00\x00\x001", "b", "d9000000000000", "a\x00\x08\x2f\x79\xcd\x90\x00\x00\x002")
	take("GAP 2", "over", "p", 5, 3, 7, 1, wake)
	take("OLD", "take", "p", 4, 1, wake, "a", "r", "x")
	take("OK 1", "over", "p", 5, 2, 7, 1, wake)
	text, entry, err := r.c.Registry().Stored(r.ctx, r.q.Name)
	r.noErr(err)
	entry.Layout = 2
	_, _, err = r.c.Registry().Swap(r.ctx, r.q.Name, text, entry)
	r.noErr(err)
	if q, err = r.c.Queue(r.ctx, r.q.Name); err == nil {
		_, err = q.Push(r.ctx, lowkiq.Push{ID: "a", Payload: []byte("2")})
	}
	if err != nil {
		t.Fatalf("push to a closed shard: %v", err)
	}
	take("OK 0", "over", "p2", 5, 0, 1, 0, wake)
	take("OK 0", "prepare", 2)
	claim, err := s.Claim(r.ctx, "n/1", Fresh, Owner{Fence: 9_000_000_000_000})
	r.noErr(err)
	if claim.Fence <= 9_000_000_000_000 {
		t.Errorf("the fence is %d, want it above the floor", claim.Fence)
	}
	p, err := claim.Pop(r.ctx, PopRequest{IDs: 5, Bytes: 1 << 20})
	r.noErr(err)
	eq(t, "popped", show(p.Jobs...), "a[1 2] b[2]")
	if stats, err = r.c.Stats(r.ctx, s); err != nil || stats[0].Processed != 8 || stats[0].Failed != 1 {
		t.Errorf("got %+v, %v; want 8 processed and 1 failed", stats, err)
	}
}
