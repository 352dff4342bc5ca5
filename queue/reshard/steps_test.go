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
	rdb redis.UniversalClient
	q   *protocol.Queue // in its present layout
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
	r.noErr(prepare(r.ctx, to, r.q))
	frozen, err := freeze(r.ctx, r.q, to.Layout())
	r.noErr(err)
	r.noErr(setFloors(r.ctx, to, r.q, frozen))
	return to, frozen
}

// finish takes the steps after the flip.
func (r *rig) finish(to *protocol.Queue, frozen []Frozen) {
	r.Helper()
	for i, s := range r.q.All() {
		r.noErr(copyShard(r.ctx, r.q, i, frozen[i], to, nil))
		over, err := readOver(r.ctx, r.q, to)
		r.noErr(err)
		if !over[s.Index] {
			r.Errorf("shard %s is copied and not over", s)
		}
	}
	open, err := isOpen(r.ctx, to)
	r.noErr(err)
	if open != to.Shards {
		r.Fatalf("%d of %d shards are open", open, to.Shards)
	}
	for _, s := range r.q.All() {
		r.noErr(drop(r.ctx, s, to.Layout()))
	}
	r.q = to
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
		for k := range 5000 {
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

// TestReshardCarries: everything that a shard has gets to the new shards, field by field, and back again.
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
		old := r.q
		for _, shards := range []int{7, 5, 1, 64, 5} {
			old = r.q
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

// TestRelated: the ids of a shard are in its relatives, and each relative may have ids of it.
func TestRelated(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{1, 1}, {1, 7}, {5, 7}, {7, 5}, {16, 64}, {64, 20}, {1000, 1001}, {lowkiq.MaxShards, 3}, {3, lowkiq.MaxShards}} {
		edges := 0
		for i := range min(c[0], 2000) {
			first, last := related(i, c[0], c[1])
			back, _ := related(first, c[1], c[0])
			if edges += last - first + 1; first > last || back > i {
				t.Fatalf("%v: shard %d is related to %d-%d, and %d is to %d", c, i, first, last, first, back)
			}
		}
		for range 20000 {
			id := fmt.Sprint(rand.Uint64())
			p := lowkiq.ShardOf(id, c[0])
			if first, last := related(p, c[0], c[1]); lowkiq.ShardOf(id, c[1]) < first || lowkiq.ShardOf(id, c[1]) > last {
				t.Fatalf("%v: id %s goes from %d to %d, want %d-%d", c, id, p, lowkiq.ShardOf(id, c[1]), first, last)
			}
		}
		if c[0] <= 2000 && edges > c[0]+c[1] {
			t.Errorf("%v: %d relations, want at most %d", c, edges, c[0]+c[1])
		}
	}
}

// TestCarriedByNamesAllKeys: a new key of a shard must get to a new layout, or the list of keys says that it need not.
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

// TestThawGivesBack: a thaw gives shards back, byte for byte, and another number gives nothing back.
func TestThawGivesBack(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, url string) {
		r := newRig(t, url, 5)
		r.fill()
		before := r.dump(r.q)
		to := r.next(7)
		first, err := freeze(r.ctx, r.q, to.Layout())
		r.noErr(err)
		again, err := freeze(r.ctx, r.q, to.Layout())
		r.noErr(err)
		if !slices.Equal(first, again) {
			t.Errorf("frozen again: got %v, want %v", again, first)
		}
		var other *otherMarkError
		if _, err := freeze(r.ctx, r.q, 9); !errors.As(err, &other) || other.layout != to.Layout() {
			t.Errorf("frozen by another attempt: got %v", err)
		}
		frozen := r.dump(r.q)
		r.noErr(thaw(r.ctx, r.q, 9))
		if !maps.Equal(r.dump(r.q), frozen) {
			t.Error("a thaw by another number has changed something")
		}
		r.noErr(thaw(r.ctx, r.q, to.Layout()))
		r.noErr(thaw(r.ctx, r.q, to.Layout()))
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

// TestFreezeRefusesABusyShard: a shard with an id in flight, or with payloads that a flight has left behind, is not frozen.
func TestFreezeRefusesABusyShard(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Start(t).URL(), 1)
	r.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	claim := r.own(protocol.Fresh)[0]
	p, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1, Bytes: 1 << 20})
	r.noErr(err)
	before := r.dump(r.q)
	var busy *busyError
	if _, err := freeze(r.ctx, r.q, 2); !errors.As(err, &busy) || !slices.Equal(busy.ids, []string{"a"}) {
		t.Fatalf("got %v, want that a is in flight", err)
	}
	if !maps.Equal(r.dump(r.q), before) {
		t.Error("a refused freeze has changed something")
	}
	_, err = claim.Ack(r.ctx, protocol.Acks{Flight: p.Flight, IDs: []string{"a"}})
	r.noErr(err)
	r.noErr(r.rdb.HSet(r.ctx, r.q.Shard(0).Keys().Parked, "left", "x").Err())
	if _, err := freeze(r.ctx, r.q, 2); !errors.As(err, &busy) || !strings.Contains(err.Error(), "left") {
		t.Fatalf("got %v, want that a payload is parked", err)
	}
	r.noErr(r.rdb.Del(r.ctx, r.q.Shard(0).Keys().Parked).Err())
	_, err = freeze(r.ctx, r.q, 2)
	r.noErr(err)
	if _, err := claim.Pop(r.ctx, protocol.PopRequest{IDs: 1, Bytes: 1 << 20}); !errors.Is(err, lowkiq.ErrFenced) {
		t.Errorf("pop of a frozen shard: got %v, want ErrFenced", err)
	}
}
