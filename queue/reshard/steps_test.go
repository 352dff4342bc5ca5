package reshard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rig is a queue whose shards are changed.
type rig struct {
	*testing.T
	ctx context.Context
	c   *protocol.Client
	rdb redisdb.Client
	q   *protocol.Queue // in its present layout

	report  func(int)
	copied  *protocol.Shard
	mayFail func(error) bool // the copy is repeated after such an error
}

func newRig(t *testing.T, url string, shards int) *rig {
	t.Helper()
	c, err := protocol.Open(protocol.Config{Redis: url, Cluster: "c", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	q, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{T: t, ctx: t.Context(), c: c, rdb: c.DB().ForTests(), q: q}
}

func (r *rig) noErr(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// next returns the queue in the next layout.
func (r *rig) next(shards int) *protocol.Queue {
	r.Helper()
	_, entry, err := r.c.Registry().Stored(r.ctx, "q")
	r.noErr(err)
	return r.c.Registry().InLayout("q", entry, shards, r.q.Layout()+1)
}

// prepare takes the steps before the flip.
func (r *rig) prepare(shards int) (to *protocol.Queue, frozen []Frozen) {
	r.Helper()
	to = r.next(shards)
	r.noErr(prepareShards(r.ctx, to, r.q))
	frozen, err := freezeShards(r.ctx, r.q, to.Layout())
	r.noErr(err)
	r.noErr(setFloors(r.ctx, to, r.q, frozen))
	return to, frozen
}

// flip makes the next layout the layout of the queue, and returns the queue as a producer finds it.
func (r *rig) flip(to *protocol.Queue) *protocol.Queue {
	r.Helper()
	text, entry, err := r.c.Registry().Stored(r.ctx, "q")
	r.noErr(err)
	next := entry
	next.Was = []protocol.Former{{Shards: entry.Shards, Layout: entry.Layout, At: time.Now().UnixMilli(), Copying: true}}
	next.Shards, next.Layout = to.Shards, to.Layout()
	if _, swapped, err := r.c.Registry().Swap(r.ctx, "q", text, next); err != nil || !swapped {
		r.Fatalf("flip: %t, %v", swapped, err)
	}
	q, err := r.c.Queue(r.ctx, "q")
	r.noErr(err)
	return q
}

// finish takes the steps after the flip.
func (r *rig) finish(to *protocol.Queue, frozen []Frozen) {
	r.Helper()
	for i, s := range r.q.All() {
		r.copied = s
		err := copyShard(r.ctx, r.q, i, frozen[i], to, r.report)
		for again := 0; err != nil && r.mayFail != nil && r.mayFail(err) && again < 10_000; again++ {
			err = copyShard(r.ctx, r.q, i, frozen[i], to, r.report)
		}
		r.noErr(err)
		have, err := readPassed(r.ctx, r.q, to, r.frozenAt())
		r.noErr(err)
		if !have[s.Index].over {
			r.Errorf("shard %s is copied and not over", s)
		}
	}
	_, open, err := countOpen(r.ctx, to)
	r.noErr(err)
	if open != to.Shards {
		r.Fatalf("%d of %d shards are open", open, to.Shards)
	}
	at := r.frozenAt()
	for i, s := range r.q.All() {
		r.noErr(dropShard(r.ctx, s, to.Layout(), at[i]))
	}
	r.q = to
}

// frozenAt returns when the shards were frozen.
func (r *rig) frozenAt() []int64 {
	r.Helper()
	old, err := readOld(r.ctx, r.c.DB(), r.q, time.Now())
	r.noErr(err)
	var f facts
	f.countOld(old, 0, func(string) bool { return false })
	return f.at
}

func (r *rig) reshard(shards int) {
	r.Helper()
	to, frozen := r.prepare(shards)
	r.finish(to, frozen)
}

func (r *rig) push(jobs ...lowkiq.Push) {
	r.Helper()
	_, err := r.q.Push(r.ctx, jobs...)
	r.noErr(err)
}

// own claims all shards.
func (r *rig) own(cause protocol.Cause) (all []*protocol.Claim) {
	r.Helper()
	for _, s := range r.q.All() {
		seen, err := s.Owner(r.ctx)
		r.noErr(err)
		claim, err := s.Claim(r.ctx, fmt.Sprint("n/", rand.Uint32()), cause, seen)
		r.noErr(err)
		all = append(all, claim)
	}
	return all
}

// end ends the run of an id, as its name says. It reports whether the id stays in flight.
func (r *rig) end(claim *protocol.Claim, flight int64, id string) (stays bool) {
	r.Helper()
	var err error
	n := protocol.Nack{Flight: flight, ID: id, Kind: protocol.Retry, RetryCount: 2, Error: "failed", Delay: time.Hour}
	switch kind, _, _ := strings.Cut(id, "-"); kind {
	case "suspect":
		return true
	case "state":
		_, err = claim.Ack(r.ctx, protocol.Acks{Flight: flight, IDs: []string{id}, Answers: []protocol.Answer{{ID: id, SetState: true, State: []byte("s of " + id)}}})
	case "bury", "crowdbury":
		_, err = claim.Bury(r.ctx, protocol.Burial{Flight: flight, ID: id, Policy: protocol.Bury, Error: "why"})
	case "block":
		_, err = claim.Bury(r.ctx, protocol.Burial{Flight: flight, ID: id, Policy: protocol.Block, RetryCount: 3, Error: "why"})
	case "hold":
		n.Kind = protocol.Hold
		_, err = claim.Nack(r.ctx, n)
	case "postpone":
		n.Kind = protocol.Postpone
		_, err = claim.Nack(r.ctx, n)
	case "late":
		n.Delay = 0
		fallthrough
	default:
		_, err = claim.Nack(r.ctx, n)
	}
	r.noErr(err)
	return false
}

// fill stores some of everything that a shard has, and leaves no flight.
func (r *rig) fill() {
	r.Helper()
	ids := func(kind string, n int, change func(*lowkiq.Push)) (jobs []lowkiq.Push) {
		for i := range n {
			p := lowkiq.Push{ID: fmt.Sprint(kind, "-", i), Payload: fmt.Append(nil, kind, i)}
			if change != nil {
				change(&p)
			}
			jobs = append(jobs, p)
		}
		return jobs
	}
	for _, kind := range []string{"retry", "late", "block", "bury", "hold", "postpone", "state", "suspect", "crowdbury"} {
		r.push(ids(kind, 30, nil)...)
	}
	for i := range 5 {
		var many []lowkiq.Push
		for k := range 100 {
			many = append(many, lowkiq.Push{ID: fmt.Sprint("crowdbury-", i), Payload: fmt.Appendf(nil, "%d %d", i, k)})
		}
		r.push(many...)
	}
	claims := r.own(protocol.Fresh)
	left := map[*protocol.Claim]bool{}
	for _, claim := range claims {
		var popped []protocol.Popped
		for {
			p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 100, Bytes: 1 << 30, MaxCrashes: 3})
			r.noErr(err)
			if len(p.Jobs) == 0 {
				break
			}
			popped = append(popped, p)
		}
		for _, p := range popped {
			for _, job := range p.Jobs {
				left[claim] = r.end(claim, p.Flight, job.ID) || left[claim]
			}
		}
	}
	claims = r.own(protocol.Seize) // what is left in flight is in quarantine
	if len(left) == 0 {
		r.Fatal("no shard has suspects")
	}
	r.push(ids("ready", 60, nil)...)
	one := 1.5
	r.push(ids("scored", 20, func(p *lowkiq.Push) { p.Score = &one })...)
	r.push(ids("later", 30, func(p *lowkiq.Push) { p.PerformAt = time.Now().Add(time.Hour) })...)
	r.push(ids("urgent", 10, func(p *lowkiq.Push) { p.Urgent = true })...)
	r.push(ids("later", 10, func(p *lowkiq.Push) { p.Urgent = true })...)
	r.push(ids("ready", 5, func(p *lowkiq.Push) { p.Urgent = true })...) // leaves stale entries
	for i := range 3 {
		var many []lowkiq.Push
		for k := range []int{5000, 600, 40}[i] {
			score := float64((k * 7) % 100)
			many = append(many, lowkiq.Push{ID: fmt.Sprint("crowd-", i), Payload: fmt.Appendf(nil, "%d", k), Score: &score})
		}
		r.push(many...)
	}
	r.noErr(r.c.SetRules("q", protocol.PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Minute}}}))
	r.push(ids("debounced", 10, nil)...)
	r.noErr(r.c.SetRules("q", protocol.PushRules{}))
	_, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "ready-50", "ready-51", "later-29")
	r.noErr(err)
	s := r.q.Of("aside")
	r.noErr(r.rdb.HSet(r.ctx, s.Keys().Aside, "jobs:aside", "s what is this").Err())
	for _, claim := range claims {
		_, err := claim.Release(r.ctx)
		r.noErr(err)
	}
}

// contents returns everything that the shards of a queue keep about ids, in a form that does not depend on the number of shards.
func (r *rig) contents(q *protocol.Queue) map[string]string {
	r.Helper()
	all := map[string]string{}
	put := func(id, what, value string) {
		key := what + " " + id
		if had, ok := all[key]; ok {
			r.Errorf("%s comes twice: %q and %q", key, had, value)
		}
		all[key] = value
	}
	processed, failed, tombs, morgue := int64(0), int64(0), int64(0), int64(0)
	for _, s := range q.All() {
		k := s.Keys()
		owns := func(id string) {
			if q.Of(id) != s && !strings.Contains(id, "aside") {
				r.Errorf("id %s is in shard %s", id, s)
			}
		}
		hash := func(key string) map[string]string {
			m, err := r.rdb.HGetAll(r.ctx, key).Result()
			r.noErr(err)
			return m
		}
		spilled := func(space, id, record string) string {
			words := strings.Fields(record)
			prefix := fmt.Sprintf("%s%d:%s:", space, len(id), id)
			members, err := r.rdb.ZRangeByLex(r.ctx, k.Spill, &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix[:len(prefix)-1] + ";"}).Result()
			r.noErr(err)
			b := strings.Builder{}
			fmt.Fprint(&b, words[0], words[1], words[2], words[3])
			for _, m := range members {
				fmt.Fprintf(&b, " %x=%s", m[len(prefix):len(prefix)+8], m[len(prefix)+20:])
				at, err := r.rdb.HGet(r.ctx, k.Spillx, prefix+m[len(prefix)+20:]).Result()
				if err != nil || at != m[len(prefix):len(prefix)+20] {
					r.Errorf("spillx of %s in %s: got %q, %v", m, s, at, err)
				}
			}
			return b.String()
		}
		stale := hash(k.Stale)
		jobs := hash(k.Jobs)
		delete(jobs, "")
		for id, record := range jobs {
			owns(id)
			switch {
			case record == "x":
				tombs++
				continue
			case record[0] == 's':
				record = spilled("w", id, record)
			}
			put(id, "job", record)
		}
		ready, err := r.rdb.LRange(r.ctx, k.Ready, 0, -1).Result()
		r.noErr(err)
		for _, id := range ready {
			if jobs[id] != "x" && stale[id] == "" {
				put(id, "ready", "")
			}
		}
		suspects, err := r.rdb.LRange(r.ctx, k.Suspects, 0, -1).Result()
		r.noErr(err)
		for _, id := range suspects {
			put(id, "suspects", "")
		}
		for name, key := range map[string]string{"due": k.Due, "retry": k.Retry, "blocked": k.Blocked, "urgent": k.Urgent, "postponed": k.Postponed, "dead": k.Dead, "statesx": k.Statesx, "since": k.Since} {
			zs, err := r.rdb.ZRangeWithScores(r.ctx, key, 0, -1).Result()
			r.noErr(err)
			for _, z := range zs {
				put(z.Member.(string), name, fmt.Sprintf("%.0f", z.Score))
			}
		}
		for name, key := range map[string]string{"late": k.Late, "crashes": k.Crashes, "states": k.States, "aside": k.Aside} {
			for id, value := range hash(key) {
				put(id, name, value)
			}
		}
		for id, record := range hash(k.Morgue) {
			owns(id)
			if record[0] == 's' {
				record = spilled("m", id, record)
			}
			put(id, "morgue", record)
		}
		count := hash(k.Count)
		processed, failed = processed+redisdb.Int(count["processed"]), failed+redisdb.Int(count["failed"])
		morgue += redisdb.Int(count["morgue"])
		if got, want := redisdb.Int(count["tombs"]), tombsOf(jobs); got != int64(want) {
			r.Errorf("shard %s counts %d tombs, and has %d", s, got, want)
		}
	}
	all["processed"], all["failed"], all["payloads in the morgue"] = fmt.Sprint(processed), fmt.Sprint(failed), fmt.Sprint(morgue)
	return all
}

func tombsOf(jobs map[string]string) (n int) {
	for _, record := range jobs {
		if record == "x" {
			n++
		}
	}
	return n
}

func (r *rig) same(what string, got, want map[string]string) {
	r.Helper()
	n := 0
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[key]; !ok || g != want[key] {
			if n++; n < 10 {
				r.Errorf("%s: %s: got %.200q (%t), want %.200q", what, key, g, ok, want[key])
			}
		}
	}
	for key, value := range got {
		if _, ok := want[key]; !ok {
			if n++; n < 10 {
				r.Errorf("%s: got %s: %.200q, want nothing", what, key, value)
			}
		}
	}
	if n >= 10 {
		r.Errorf("%s: %d differences", what, n)
	}
}

// keysOf returns the names of the keys of a queue's shards, without their tags.
func (r *rig) keysOf(q *protocol.Queue) (names []string) {
	r.Helper()
	for _, s := range q.All() {
		for key := range s.Keys().Types() {
			n, err := r.rdb.Exists(r.ctx, key).Result()
			r.noErr(err)
			if n > 0 {
				names = append(names, key[len(s.Keys().Tag):])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// backends runs a test on each kind of Redis.
func backends(t *testing.T, run func(t *testing.T, url string)) {
	t.Run("single", func(t *testing.T) { t.Parallel(); run(t, redistest.Start(t).URL()) })
	t.Run("embedded", func(t *testing.T) { tier.All(t); t.Parallel(); run(t, redistest.StartMini(t).URL()) })
	t.Run("cluster", func(t *testing.T) { tier.All(t); t.Parallel(); run(t, redistest.StartCluster(t, 3).URL()) })
}

// TestReshardCarries checks that everything in a shard gets to the new shards, field by field, and back again.
func TestReshardCarries(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, url string) {
		r := newRig(t, url, 5)
		r.fill()
		before := r.contents(r.q)
		for _, kind := range []string{"ready", "urgent", "due", "retry", "blocked", "suspects", "crashes", "late", "postponed", "morgue", "dead", "states", "statesx", "since", "aside", "processed", "failed"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(key string) bool { return strings.HasPrefix(key, kind) }) {
				t.Errorf("no id has %s", kind)
			}
		}
		for _, shards := range []int{7, 5, 1, 64, 5} {
			old := r.q
			r.reshard(shards)
			r.same(fmt.Sprint("with ", shards, " shards"), r.contents(r.q), before)
			if left := r.keysOf(old); slices.ContainsFunc(left, func(name string) bool {
				return !slices.Contains([]string{"count", "from", "journal", "journalx"}, name)
			}) {
				t.Errorf("left in the former layout: %q", left)
			}
		}
		// The new shards work, with higher fences and scores.
		jobs := 0
		for i, claim := range r.own(protocol.Fresh) {
			p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1000, Bytes: 1 << 30, MaxCrashes: 3, Slot: true})
			r.noErr(err)
			jobs += len(p.Jobs)
			if i == 0 && claim.Fence == 0 {
				t.Error("the fence is 0")
			}
		}
		if jobs == 0 {
			t.Error("no job can be popped")
		}
	})
}

// TestRelated checks that the ids of a shard are in its relatives, and that each relative may have ids of it.
func TestRelated(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{1, 1}, {1, 7}, {5, 7}, {7, 5}, {16, 64}, {64, 20}, {1000, 1001}, {lowkiq.MaxShards, 3}, {3, lowkiq.MaxShards}} {
		edges := 0
		for i := range min(c[0], 2000) {
			first, last := relatives(i, c[0], c[1])
			back, _ := relatives(first, c[1], c[0])
			if edges += last - first + 1; first > last || back > i {
				t.Fatalf("%v: shard %d is related to %d-%d, and %d is to %d", c, i, first, last, first, back)
			}
		}
		for range 20000 {
			id := fmt.Sprint(rand.Uint64())
			p := lowkiq.ShardOf(id, c[0])
			if first, last := relatives(p, c[0], c[1]); lowkiq.ShardOf(id, c[1]) < first || lowkiq.ShardOf(id, c[1]) > last {
				t.Fatalf("%v: id %s goes from %d to %d, want %d-%d", c, id, p, lowkiq.ShardOf(id, c[1]), first, last)
			}
		}
		if c[0] <= 2000 && edges > c[0]+c[1] {
			t.Errorf("%v: %d relations, want at most %d", c, edges, c[0]+c[1])
		}
	}
}

// TestCarriedByNamesAllKeys checks that a new key of a shard gets to a new layout, or that the list of keys says that
// it need not.
func TestCarriedByNamesAllKeys(t *testing.T) {
	t.Parallel()
	named := maps.Clone(carriedBy)
	for _, key := range new(redisdb.ShardKeys).List() {
		if _, ok := named[key.Name]; ok != (key.Freeze == redisdb.Moves) {
			t.Errorf("key %s: freeze is %q, and carriedBy has it: %t", key.Name, key.Freeze, ok)
		}
		delete(named, key.Name)
	}
	if len(named) > 0 {
		t.Errorf("there are no keys %q", slices.Collect(maps.Keys(named)))
	}
}

// TestThawGivesBack checks that a thaw gives shards back, byte for byte, and that another number gives nothing back.
func TestThawGivesBack(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, url string) {
		r := newRig(t, url, 5)
		r.fill()
		before := r.dump(r.q)
		to := r.next(7)
		first, err := freezeShards(r.ctx, r.q, to.Layout())
		r.noErr(err)
		again, err := freezeShards(r.ctx, r.q, to.Layout())
		r.noErr(err)
		if !slices.Equal(first, again) {
			t.Errorf("frozen again: got %v, want %v", again, first)
		}
		var other *otherMarkError
		if _, err := freezeShards(r.ctx, r.q, 9); !errors.As(err, &other) || other.layout != to.Layout() {
			t.Errorf("frozen by another attempt: got %v", err)
		}
		frozen := r.dump(r.q)
		at := r.frozenAt()
		dropNothing := func(why string, layout int, at int64) {
			t.Helper()
			before := r.dump(r.q)
			if err := dropShard(r.ctx, r.q.Shard(0), layout, at); err == nil || !maps.Equal(r.dump(r.q), before) {
				t.Errorf("a drop of a shard %s: got %v, want that it is refused and changes nothing", why, err)
			}
		}
		dropNothing("with the mark of another layout", 9, at[0])
		dropNothing("that was frozen again", to.Layout(), at[0]-1)
		r.noErr(thawShards(r.ctx, r.q, 9))
		if !maps.Equal(r.dump(r.q), frozen) {
			t.Error("a thaw by another number has changed something")
		}
		r.noErr(thawShards(r.ctx, r.q, to.Layout()))
		r.noErr(thawShards(r.ctx, r.q, to.Layout()))
		dropNothing("without a mark", to.Layout(), at[0])
		if got := r.dump(r.q); !maps.Equal(got, before) {
			for key := range before {
				if got[key] != before[key] {
					t.Errorf("key %s is not as before", key)
				}
			}
			t.Errorf("got %d keys, want %d", len(got), len(before))
		}
	})
}

// dump returns the values of all keys of a queue.
func (r *rig) dump(q *protocol.Queue) map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, s := range q.All() {
		for key, kind := range s.Keys().Types() {
			var value any
			var err error
			switch kind {
			case "hash":
				value, err = r.rdb.HGetAll(r.ctx, key).Result() // printed in the order of fields
			case "list":
				value, err = r.rdb.LRange(r.ctx, key, 0, -1).Result()
			case "zset":
				value, err = r.rdb.ZRangeWithScores(r.ctx, key, 0, -1).Result()
			case "stream":
				value, err = r.rdb.XRange(r.ctx, key, "-", "+").Result()
			}
			r.noErr(err)
			if n, err := r.rdb.Exists(r.ctx, key).Result(); err != nil || n > 0 {
				all[key] = fmt.Sprint(value, err)
			}
		}
	}
	return all
}

// TestFreezeRefusesABusyShard checks that a shard with an id in flight, or with payloads that a flight has left behind,
// is not frozen.
func TestFreezeRefusesABusyShard(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 1)
	r.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	claim := r.own(protocol.Fresh)[0]
	p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1, Bytes: 1 << 20})
	r.noErr(err)
	before := r.dump(r.q)
	var busy *busyError
	if _, err := freezeShards(r.ctx, r.q, 2); !errors.As(err, &busy) || !slices.Equal(busy.ids, []string{"a"}) {
		t.Fatalf("got %v, want that a is in flight", err)
	}
	if !maps.Equal(r.dump(r.q), before) {
		t.Error("a refused freeze has changed something")
	}
	_, err = claim.Ack(r.ctx, protocol.Acks{Flight: p.Flight, IDs: []string{"a"}})
	r.noErr(err)
	r.noErr(r.rdb.HSet(r.ctx, r.q.Shard(0).Keys().Parked, "left", "x").Err())
	if _, err := freezeShards(r.ctx, r.q, 2); !errors.As(err, &busy) || !strings.Contains(err.Error(), "left") {
		t.Fatalf("got %v, want that a payload is parked", err)
	}
	r.noErr(r.rdb.Del(r.ctx, r.q.Shard(0).Keys().Parked).Err())
	// An import or an export that begins after the reshard is refused by the shard itself.
	for _, field := range []string{"import/old", "export"} {
		r.noErr(r.rdb.HSet(r.ctx, r.q.Shard(0).Keys().From, field, 7).Err())
		if _, err := freezeShards(r.ctx, r.q, 2); !errors.As(err, &busy) || !slices.Equal(busy.ids, []string{field}) {
			t.Fatalf("got %v, want that %s is under way", err, field)
		}
		r.noErr(r.rdb.HDel(r.ctx, r.q.Shard(0).Keys().From, field).Err())
	}
	r.noErr(r.rdb.HSet(r.ctx, r.q.Shard(0).Keys().From, "import/ended", "x 7", "import/ended\x00a", "1 0 0 0").Err())
	_, err = freezeShards(r.ctx, r.q, 2)
	r.noErr(err)
	if _, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1, Bytes: 1 << 20}); !errors.Is(err, lowkiq.ErrFenced) {
		t.Errorf("pop of a frozen shard: got %v, want ErrFenced", err)
	}
}

// faults repeats requests and loses answers of scripts.
type faults struct {
	is     func(sha string) bool
	before func() (after func()) // a script with an odd number of calls
	lose   bool
	calls  int
}

var errLost = errors.New("the answer is lost")

func (f *faults) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return f.run([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (f *faults) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return f.run(cmds, func() error { return next(ctx, cmds) })
	}
}

func (f *faults) run(cmds []redis.Cmder, next func() error) error {
	if args := cmds[0].Args(); cmds[0].Name() != "evalsha" || len(args) < 2 || !f.is(fmt.Sprint(args[1])) {
		return next()
	}
	if f.calls++; f.before != nil && f.calls%2 == 1 {
		defer f.before()()
		return next()
	}
	err := next()
	if f.before == nil && err == nil {
		err = next() // it comes twice
	}
	if f.lose && f.calls%7 == 1 {
		for _, cmd := range cmds {
			cmd.SetErr(errLost)
		}
		return errLost
	}
	return err
}

// withFaults runs a reshard with faults of the scripts freeze and take, and compares what the new shards have.
func withFaults(t *testing.T, r *rig, f *faults, mayFail func(error) bool) {
	t.Helper()
	r.fill()
	before := r.contents(r.q)
	scripts := r.c.DB().Scripts
	r.noErr(r.c.DB().Load(r.ctx))
	to, frozen := r.prepare(7)
	on := true
	f.is = func(sha string) bool { return on && (sha == scripts.Freeze.SHA() || sha == scripts.Take.SHA()) }
	r.rdb.AddHook(f)
	r.mayFail = mayFail
	steps := func() error {
		if err := prepareShards(r.ctx, to, r.q); err != nil {
			return err
		}
		_, err := freezeShards(r.ctx, r.q, to.Layout())
		if err != nil {
			return err
		}
		return setFloors(r.ctx, to, r.q, frozen)
	}
	succeeds := func(step func() error) {
		const tries = 500
		for range tries {
			err := step()
			if err == nil {
				return
			}
			if !mayFail(err) {
				r.Fatal(err)
			}
		}
		r.Fatalf("a step has failed %d times", tries)
	}
	succeeds(steps)
	old := r.q
	for i := range old.All() { // all but the end, which drops
		succeeds(func() error { return copyShard(r.ctx, old, i, frozen[i], to, nil) })
	}
	on = false
	r.finish(to, frozen)
	r.same("with faults", r.contents(r.q), before)
	if f.calls < 10 {
		t.Errorf("%d calls of the scripts, want more", f.calls)
	}
}

// TestReshardTakesOnce checks that repeated requests, and requests sent again after lost answers, store everything
// once.
func TestReshardTakesOnce(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, url string) {
		withFaults(t, newRig(t, url, 5), &faults{lose: true}, func(err error) bool { return errors.Is(err, errLost) })
	})
}

// TestReshardOutOfMemory checks that a full Redis refuses a request as a whole, and that the copy goes on when there is
// room.
func TestReshardOutOfMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t, "--maxmemory-policy", "noeviction").URL(), 5)
	refused := 0
	f := &faults{before: func() func() {
		r.rdb.ConfigSet(r.ctx, "maxmemory", "1")
		return func() { r.rdb.ConfigSet(r.ctx, "maxmemory", "0") }
	}}
	withFaults(t, r, f, func(err error) bool {
		refused++
		return strings.Contains(err.Error(), "out of memory") || strings.Contains(err.Error(), "OOM")
	})
	if refused == 0 {
		t.Error("no request was refused")
	}
}

// TestReshardForgotten makes Redis forget what a new shard has taken, that it was prepared, and that an old shard is
// frozen.
func TestReshardForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 5)
	r.fill()
	before := r.contents(r.q)
	to, frozen := r.prepare(7)
	reports := 0
	r.report = func(int) {
		switch reports++; reports {
		case 1: // as if a failover had promoted a replica that had nothing yet
			for _, s := range to.All() {
				for key := range s.Keys().Types() {
					r.rdb.Unlink(r.ctx, key)
				}
			}
		case 12:
			_, err := r.copied.Run(r.ctx, r.c.DB().Scripts.Freeze, "thaw", protocol.MovedMark(to.Layout()))
			r.noErr(err)
		}
	}
	r.finish(to, frozen)
	got := r.contents(r.q)
	delete(got, "aside jobs:aside+") // set aside by each freeze
	delete(got, "processed")         // added by each freeze
	delete(got, "failed")
	delete(before, "processed")
	delete(before, "failed")
	for _, contents := range []map[string]string{got, before} {
		for key, value := range contents {
			if strings.HasPrefix(key, "job ") { // in another form, if it was united with itself
				contents[key] = fmt.Sprint(payloads(value))
			}
		}
	}
	r.same("after all", got, before)
	if reports < 13 {
		t.Errorf("%d reports, want more", reports)
	}
}

// TestReshardForgetsTheLast makes a failover forget the last requests that new shards have answered, in the middle of
// the copy or at its end. The new shards take the lost jobs again, and nothing is left out.
func TestReshardForgetsTheLast(t *testing.T) {
	t.Parallel()
	for _, at := range []int{4, 8} { // each of two shards gets four calls
		r := newRig(t, redistest.Start(t).URL(), 1)
		var jobs []lowkiq.Push
		for i := range 7 * callItems {
			jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint("id-", i), Payload: []byte("1")})
		}
		r.push(jobs...)
		before := r.contents(r.q)
		to, frozen := r.prepare(2)
		saved, reports := map[string]string{}, 0
		r.report = func(int) {
			reports++
			for _, s := range to.All() {
				for key := range s.Keys().Types() {
					switch reports {
					case at - 2:
						saved[key] = r.rdb.Dump(r.ctx, key).Val()
					case at:
						if r.rdb.Unlink(r.ctx, key); saved[key] != "" {
							r.noErr(r.rdb.RestoreReplace(r.ctx, key, 0, saved[key]).Err())
						}
					}
				}
			}
		}
		r.finish(to, frozen)
		r.same(fmt.Sprint("after call ", at), r.contents(r.q), before)
		if reports <= 8 {
			t.Errorf("%d requests were sent, want those of the copy and some of them again", reports)
		}
	}
}

// TestReshardUnites checks that an id that was pushed to its new shard before its job came keeps one job. It has the
// place, the due time, the retry count and the error of the old job, and the old payloads first among equal scores. A
// person may have deleted an earlier job of the id in the new shard.
func TestReshardUnites(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, url string) {
		r := newRig(t, url, 5)
		r.fill()
		before := r.contents(r.q)
		to, frozen := r.prepare(7)
		one, pushed := 1.5, 0
		var pushes []lowkiq.Push
		for key := range before {
			what, id, _ := strings.Cut(key, " ")
			if what != "job" || strings.HasPrefix(id, "debounced") {
				continue
			}
			p := lowkiq.Push{ID: id, Payload: []byte("pushed meanwhile")}
			if strings.HasPrefix(id, "scored") {
				p.Score = &one
			}
			if pushed++; pushed%3 == 0 {
				p.PerformAt = time.Now().Add(3 * time.Hour)
			}
			p.Urgent = pushed%7 == 0
			pushes = append(pushes, p)
		}
		q := r.flip(to)
		var early []lowkiq.Push
		var deleted []string
		for i := 0; i < len(pushes); i += 2 {
			early, deleted = append(early, lowkiq.Push{ID: pushes[i].ID, Payload: []byte("deleted")}), append(deleted, pushes[i].ID)
		}
		_, err := q.Push(r.ctx, early...)
		r.noErr(err)
		_, err = browse.Of(q).Delete(r.ctx, browse.Anywhere, deleted...)
		r.noErr(err)
		_, err = q.Push(r.ctx, pushes...)
		r.noErr(err)
		r.finish(to, frozen)
		got := r.contents(r.q)
		for _, s := range to.All() {
			for _, id := range r.rdb.HKeys(r.ctx, s.Keys().Stale).Val() {
				_, suspect := got["suspects "+id]
				if _, blocked := got["blocked "+id]; suspect || blocked {
					t.Errorf("%s is in quarantine or blocked, and its deleted job has left an entry", id)
				}
			}
		}
		for key, value := range before {
			what, id, _ := strings.Cut(key, " ")
			switch what {
			case "due", "retry", "blocked", "suspects", "crashes", "postponed", "late", "dead", "states", "statesx", "morgue":
				if got[key] != value {
					t.Errorf("%s: got %q, want %q", key, got[key], value)
				}
			case "ready":
				if _, urgent := got["urgent "+id]; !urgent {
					if _, ok := got[key]; !ok {
						t.Errorf("%s is not ready any more", id)
					}
				}
			case "job":
				old, now := payloads(value), payloads(got[key])
				if !strings.HasPrefix(id, "debounced") && (len(now) != len(old)+1 || !slices.Equal(now[:len(old)], old) || !strings.HasSuffix(now[len(old)], "pushed meanwhile")) {
					t.Errorf("%s: got the payloads %.200q, want %.200q and another behind them", id, now, old)
				}
			}
		}
		r.drain(len(before))
	})
}

// TestReshardLeavesNoOldEntry checks that an id has one place. A person deletes the id in its new shard, and the id is pushed
// for later. Then its job comes, which is in quarantine or blocked, and the deleted job's entry in ready must go.
func TestReshardLeavesNoOldEntry(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 1)
	ids := []string{"suspect-0", "block-0"}
	for _, id := range ids {
		r.push(lowkiq.Push{ID: id, Payload: []byte("1")})
	}
	claim := r.own(protocol.Fresh)[0]
	p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 10, Bytes: 1 << 20})
	r.noErr(err)
	for _, job := range p.Jobs {
		r.end(claim, p.Flight, job.ID)
	}
	_, err = r.own(protocol.Seize)[0].Release(r.ctx)
	r.noErr(err)

	to, frozen := r.prepare(1)
	q := r.flip(to)
	push := func(payload string, at time.Time) {
		t.Helper()
		for _, id := range ids {
			_, err := q.Push(r.ctx, lowkiq.Push{ID: id, Payload: []byte(payload), PerformAt: at})
			r.noErr(err)
		}
	}
	push("2", time.Time{})
	_, err = browse.Of(q).Delete(r.ctx, browse.Anywhere, ids...)
	r.noErr(err)
	push("3", time.Now().Add(time.Hour))
	r.finish(to, frozen)
	k := to.Shard(0).Keys()
	if ready, stale := r.rdb.LRange(r.ctx, k.Ready, 0, -1).Val(), r.rdb.HKeys(r.ctx, k.Stale).Val(); len(ready)+len(stale) > 0 {
		t.Errorf("got the entries %q in ready, and marks for %q; want none", ready, stale)
	}

	_, err = browse.Of(q).Delete(r.ctx, browse.Anywhere, "block-0")
	r.noErr(err)
	claim = r.own(protocol.Fresh)[0]
	handle := func(want string) {
		t.Helper()
		p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 10, Bytes: 1 << 20, Slot: true})
		r.noErr(err)
		got := ""
		for _, job := range p.Jobs {
			for _, payload := range job.Payloads {
				got += fmt.Sprintf("%s:%s ", job.ID, payload.Data)
			}
		}
		if got != want {
			t.Errorf("a pop got %q, want %q", got, want)
		}
		_, err = claim.Ack(r.ctx, protocol.Acks{Flight: p.Flight, Rest: true})
		r.noErr(err)
	}
	handle("suspect-0:1 suspect-0:3 ")
	push("4", time.Time{})
	handle("suspect-0:4 block-0:4 ")
}

// payloads returns the payloads of a job in contents.
func payloads(job string) (all []string) {
	if job == "" {
		return nil
	}
	switch job[0] {
	case 'a':
		return []string{job[10:]}
	case 'e':
		return []string{job[16:]}
	case 's':
		for _, part := range strings.Split(job, "=")[1:] {
			if i := strings.LastIndexByte(part, ' '); i >= 0 && len(part)-i == 17 {
				part = part[:i]
			}
			all = append(all, part)
		}
		return all
	}
	_, rest, _ := strings.Cut(job, "\n")
	var errlen, words = 0, strings.Fields(strings.SplitN(job, "\n", 2)[0])
	fmt.Sscan(words[4], &errlen)
	for rest = rest[errlen:]; rest != ""; {
		_, tail, _ := strings.Cut(rest, " ")
		var n int
		fmt.Sscan(strings.SplitN(tail, ":", 2)[0], &n)
		_, tail, _ = strings.Cut(tail, ":")
		all, rest = append(all, tail[:n]), tail[n:]
	}
	return all
}

// drain pops and acks until nothing is ready, and requires that no claim finds anything wrong.
func (r *rig) drain(most int) {
	r.Helper()
	n := 0
	for _, claim := range r.own(protocol.Fresh) {
		for {
			p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1, Bytes: 1 << 30, MaxCrashes: 3, Slot: true})
			r.noErr(err)
			if len(p.Jobs) == 0 {
				break
			}
			if n++; n > 4*most {
				r.Fatal("the queue never ends")
			}
			_, err = claim.Ack(r.ctx, protocol.Acks{Flight: p.Flight, IDs: []string{p.Jobs[0].ID}})
			r.noErr(err)
		}
	}
	if n == 0 {
		r.Error("nothing is ready")
	}
}

// TestReshardSetsDamageAside checks that unreadable records are set aside, and that nothing else stops.
func TestReshardSetsDamageAside(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 2)
	r.push(lowkiq.Push{ID: "good", Payload: []byte("1")})
	s := r.q.Of("damaged")
	k := s.Keys()
	r.noErr(r.rdb.HSet(r.ctx, k.Jobs, "damaged", "zzz", r.strayOf(s), "a\x00\x05\xaf\x31\x07\xa4\x00\x00\x001").Err())
	r.noErr(r.rdb.RPush(r.ctx, k.Ready, "damaged", "no record").Err())
	r.noErr(r.rdb.HSet(r.ctx, k.Morgue, "damaged", "j1 2").Err())
	r.noErr(r.rdb.ZAdd(r.ctx, k.Dead, redis.Z{Score: 5, Member: "damaged"}).Err())
	r.reshard(3)
	got := r.contents(r.q)
	for key, want := range map[string]string{"aside jobs:damaged": "zzz", "aside morgue:damaged": "j1 2", "job " + r.strayOf(s): "a\x00\x05\xaf\x31\x07\xa4\x00\x00\x001", "ready good": "", "ready " + r.strayOf(s): ""} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s: got %q, %t, want %q", key, value, ok, want)
		}
	}
}

// TestReshardFindsStrays checks that a record that no list has is copied, although another id is in two lists.
func TestReshardFindsStrays(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 1)
	r.push(lowkiq.Push{ID: "twice", Payload: []byte("1")})
	k := r.q.Shard(0).Keys()
	r.noErr(r.rdb.ZAdd(r.ctx, k.Due, redis.Z{Score: 5, Member: "twice"}).Err())
	record := "a\x00\x05\xaf\x31\x07\xa4\x00\x00\x001"
	r.noErr(r.rdb.HSet(r.ctx, k.Jobs, "stray", record).Err())
	r.reshard(3)
	got := r.contents(r.q)
	for _, key := range []string{"job stray", "ready stray", "job twice"} {
		if _, ok := got[key]; !ok {
			t.Errorf("there is no %s", key)
		}
	}
}

// TestFloors checks that scores and fences of the new shards are above those of their parents, although the clock of
// Redis is behind.
func TestFloors(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 2)
	score, fence := time.Now().Add(time.Hour).UnixMicro(), int64(1)<<50
	for _, s := range r.q.All() {
		r.noErr(r.rdb.HSet(r.ctx, s.Keys().Count, "last", score).Err())
		r.noErr(r.rdb.HSet(r.ctx, s.Keys().Claim, "fence", fence).Err())
	}
	to, frozen := r.prepare(3)
	q := r.flip(to)
	for i := range 20 {
		_, err := q.Push(r.ctx, lowkiq.Push{ID: fmt.Sprint("id-", i), Payload: []byte("1")})
		r.noErr(err)
	}
	r.finish(to, frozen)
	for _, s := range to.All() {
		if last, err := r.rdb.HGet(r.ctx, s.Keys().Count, "last").Int64(); err != nil || last <= score {
			t.Errorf("shard %s: the last score is %d, %v, and that of its parents was %d", s, last, err, score)
		}
	}
	for _, claim := range r.own(protocol.Fresh) {
		if claim.Fence <= fence {
			t.Errorf("got fence %d, and that of the parents was %d", claim.Fence, fence)
		}
	}
}

// TestClosedShardPassesOn checks that payloads go to the queue of the rule then, if a person buries them in a new shard before
// its first claim.
func TestClosedShardPassesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 2)
	for _, claim := range r.own(protocol.Fresh) {
		r.noErr(claim.StoreDeadTo(r.ctx, "alerts"))
	}
	r.push(lowkiq.Push{ID: "old", Payload: []byte("1")})
	to, frozen := r.prepare(1)
	q := r.flip(to)
	_, err := q.Push(r.ctx, lowkiq.Push{ID: "new", Payload: []byte("1")})
	r.noErr(err)
	bury := func(id string) {
		t.Helper()
		_, err := browse.Of(q).Bury(r.ctx, browse.Anywhere, id)
		r.noErr(err)
	}
	bury("new")
	r.finish(to, frozen)
	bury("old")
	page := &protocol.OutgoingPage{Shard: to.Shard(0)}
	r.c.ReadOutgoing(r.ctx, 10, 1<<20, page)
	r.noErr(page.Err)
	var got []string
	for _, o := range page.All {
		got = append(got, o.Queue+"/"+o.ID)
	}
	if want := []string{"alerts/new", "alerts/old"}; !slices.Equal(got, want) {
		t.Errorf("got the follow-ups %q, want %q", got, want)
	}
}

// TestClosedShardHasNoOwner checks that no instance can claim a shard of the new layout before all jobs that belong to
// it are there.
func TestClosedShardHasNoOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 2)
	r.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	to, frozen := r.prepare(3)
	q := r.flip(to)
	for _, s := range q.All() {
		seen, err := s.Owner(r.ctx)
		r.noErr(err)
		if claim, err := s.Claim(r.ctx, "n/1", protocol.Fresh, seen); !errors.Is(err, protocol.ErrMoving) {
			t.Errorf("shard %s is closed: got %v, %v, want ErrMoving", s, claim, err)
		}
	}
	r.finish(to, frozen)
	if claims := r.own(protocol.Fresh); len(claims) != 3 {
		t.Errorf("%d shards are claimed, want 3", len(claims))
	}
}

// TestOpenShardStaysOpen checks that late requests to prepare a shard, or to forget it, do not close it or delete
// anything.
func TestOpenShardStaysOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 2)
	r.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	old := r.q
	to, frozen := r.prepare(3)
	r.flip(to)
	r.finish(to, frozen)
	before := r.dump(to)
	r.noErr(prepareShards(r.ctx, to, old))
	r.noErr(setFloors(r.ctx, to, old, frozen))
	r.noErr(forgetShards(r.ctx, to))
	if closed, open, err := countOpen(r.ctx, to); err != nil || closed != 0 || open != 3 || !maps.Equal(r.dump(to), before) {
		t.Errorf("%d shards are closed and %d are open, %v; want that all are open and nothing has changed", closed, open, err)
	}
}

// strayOf returns an id of a shard.
func (r *rig) strayOf(s *protocol.Shard) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("stray-", i); r.q.Of(id) == s || s.Index == lowkiq.ShardOf(id, 2) {
			return id
		}
	}
}
