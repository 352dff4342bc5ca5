package protocol_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

var cpuRule = regexp.MustCompile(`used_cpu_(?:sys|user):([\d.]+)`)

// work returns the CPU time that Redis has used, in us. A busy machine does not stretch it, unlike the time
// on the clock.
func (r *rig) work() (us int) {
	r.t.Helper()
	text, err := r.c.DB().ForTests().Info(r.ctx, "cpu").Result()
	r.noErr(err)
	for _, found := range cpuRule.FindAllStringSubmatch(text, -1) {
		seconds, _ := strconv.ParseFloat(found[1], 64)
		us += int(seconds * 1e6)
	}
	return us
}

// TestCrowdIsLinear checks that each payload of an id costs Redis the same, for up to 10,000 waiting payloads. This
// holds also for duplicates, after a failure, and while in flight.
func TestCrowdIsLinear(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server := redistest.Start(t)
	for name, prepare := range map[string]func(*rig){
		"waiting": func(*rig) {},
		"parked":  func(r *rig) { r.push(job("a", "flying")); r.popOne("a") },
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the figures
			r := newRig(t, &backend{url: server.URL()}, func(c *Config) { c.Cluster = name })
			prepare(r)
			const n = 10_000
			cost := make([]int, 0, n/1000)
			some := func(from int) (jobs []lowkiq.Push) {
				for i := range 1000 {
					jobs = append(jobs, job("a", fmt.Sprintf("payload %d", from+i)))
				}
				return jobs
			}
			thousand := func(from int) int {
				before := r.work()
				for _, one := range some(from) {
					r.push(one)
				}
				return r.work() - before
			}
			for from := 0; from < n; from += 1000 {
				if from%4000 == 0 || from == n-1000 {
					cost = append(cost, thousand(from))
				} else {
					r.push(some(from)...) // what waits between those that are measured
				}
			}
			again := thousand(0)
			if name == "waiting" {
				_, flight := r.popOne("a")
				r.nack(flight, "a", Retry, 0, 0)
				cost = append(cost, again, thousand(0))
			}
			for i, c := range cost {
				if c > 6*cost[0] {
					t.Errorf("measure %d of a thousand: got %d us of Redis, want at most six times that of the first, %d", i, c, cost[0])
				}
			}
			if _, err := r.q.Push(r.ctx, job("a", "one more")); !errors.Is(err, ErrTooManyPayloads) {
				t.Errorf("payload %d: got %v, want %v", n+1, err, ErrTooManyPayloads)
			}
			r.push(job("b", "1"))
		})
	}
}

// TestPushOverTombsIsBounded checks that pushes for later of deleted ids cost the same for every length of the ready
// list with their tombstones.
func TestPushOverTombsIsBounded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server := redistest.Start(t)
	cost := map[int]int{}
	for _, long := range []int{0, 100_000} { // one after the other: they share the figures
		r := newRig(t, &backend{url: server.URL()}, func(c *Config) { c.Cluster = fmt.Sprint("of-", long) })
		ahead, old, again := make([]lowkiq.Push, long), make([]lowkiq.Push, 1000), make([]lowkiq.Push, 1000)
		ids := make([]string, len(old))
		for i := range ahead {
			ahead[i] = job(fmt.Sprint("ready", i), "1")
		}
		for i := range ids {
			ids[i] = fmt.Sprint("id", i)
			old[i], again[i] = job(ids[i], "old"), job(ids[i], "new", in(time.Hour))
		}
		r.push(ahead...)
		r.push(old...)
		r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...)))
		before := r.work()
		r.push(again...)
		cost[long] = r.work() - before
	}
	if cost[100_000] > 10*cost[0]+20_000 {
		t.Errorf("1,000 pushes over tombs beside 100,000 ready ids: got %d us of Redis, want about %d, as beside none", cost[100_000], cost[0])
	}
}

// addEntry adds an entry of runs to the journal, without the queue's own code.
func addEntry(r *rig, runs int, lines string) error {
	return r.c.DB().ForTests().XAdd(r.ctx, &redis.XAddArgs{Stream: r.s.Keys().Journal, Values: []any{"i", "n/1", "n", runs, "l", lines}}).Err()
}

func TestStateCheckFindsFaults(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for name, break_ := range map[string]func(*rig) error{
		"stranded":            func(r *rig) error { return r.c.DB().ForTests().LRem(r.ctx, r.s.Keys().Ready, 1, "ready").Err() },
		"in two places":       func(r *rig) error { return r.c.DB().ForTests().RPush(r.ctx, r.s.Keys().Ready, "ready").Err() },
		"entry, no record":    func(r *rig) error { return r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Jobs, "ready").Err() },
		"flight, no record":   func(r *rig) error { return r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Jobs, "fly").Err() },
		"wrong flight count":  func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "#1", 7).Err() },
		"flight without time": func(r *rig) error { return r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Claim, "@1").Err() },
		"time without flight": func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "@7", 7).Err() },
		"run unreadable":      func(r *rig) error { return addEntry(r, 1, "x") },
		"miscounted entry":    func(r *rig) error { return addEntry(r, 2, "f 0 1 0 0 0 1 0 0 0\na") },
		"uncounted run":       func(r *rig) error { return addEntry(r, 1, "f 0 1 0 0 0 1 0 0 0\na") },
		"parked, not flying": func(r *rig) error {
			return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Parked, "ready", "a1234567890").Err()
		},
		"uncounted tomb": func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "ready", "x").Err() },
		"morgue count":   func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Count, "morgue", 3).Err() },
		"spill without owner": func(r *rig) error {
			return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Spillx, "w1:z:p", "000000000001 1").Err()
		},
		"due, wrong time":     func(r *rig) error { return r.c.DB().ForTests().ZIncrBy(r.ctx, r.s.Keys().Due, 5, "later").Err() },
		"retry among due":     func(r *rig) error { return r.c.DB().ForTests().Rename(r.ctx, r.s.Keys().Due, r.s.Keys().Retry).Err() },
		"stale, not later":    func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Stale, "ready", 1).Err() },
		"stale, not ready":    func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Stale, "later", 1).Err() },
		"fresh, marked late":  func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Late, "ready", 1).Err() },
		"flying, marked late": func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Late, "fly", 1).Err() },
		"nobody marked late":  func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Late, "new", 1).Err() },
		"failed, not marked": func(r *rig) error {
			return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "ready", "j0 5 1 1 0 2\n7 1:x").Err()
		},
		"crash of a stranger": func(r *rig) error { return r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Crashes, "ready", 1).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t: t, ctx: t.Context(), c: b.open(t)}
			r.q = newQueue(t, r.c, 1)
			r.s = r.q.Shard(0)
			r.own(Fresh)
			r.push(job("fly", "1"))
			r.pop(1)
			r.push(job("ready", "1"), job("later", "1", in(3600e9)))
			_, err := readState(r.s, r.ctx)
			r.noErr(err)
			r.noErr(break_(r))
			if _, err := readState(r.s, r.ctx); err == nil {
				t.Error("got nil, want an objection")
			}
		})
	}
}
