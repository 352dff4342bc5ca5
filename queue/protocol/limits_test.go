package protocol_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/lease"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

var limitTests = []testCase{
	{"Permits_NeverMoreThanTheLimit", testPermitsNeverMore},
	{"Permits_AreSharedFairly", testPermitsFair},
	{"Permits_TakeTurns", testPermitsTurns},
	{"Permits_LineOfWaitingInstances", testPermitsLine},
	{"Permits_LateRequestsChangeNothing", testPermitsLate},
	{"Permits_OfDeadInstancesAreFree", testPermitsOfTheDead},
	{"Permits_OfManyDeadInstances", testPermitsOfACrowd},
	{"Rate_AgreesWithAModel", testRateModel},
	{"Rate_ChangedRateIsKept", testRateChangedRate},
	{"Rate_LargeAndSmallBatches", testRateSizes},
}

// asker is an instance that asks for permits. Like a node it has no more calls than it may, also while it
// asks.
type asker struct {
	r      *rig
	name   string
	lease  *lease.Lease
	number int64
	busy   int // calls that run
	may    int // calls that there may be
	before int // others that wait
	late   []PermitRequest
}

func (r *rig) asker(name string) *asker {
	r.t.Helper()
	taken, err := r.c.Leases().Take(r.ctx, name, json.RawMessage("{}"), []byte("{}"), time.Hour)
	r.noErr(err)
	return &asker{r: r, name: name, lease: taken}
}

func (a *asker) request(limit, wanted int) PermitRequest {
	a.number++
	return PermitRequest{Instance: a.name, Number: a.number, Limit: limit, Has: max(a.may, a.busy), Wanted: max(a.busy, wanted)}
}

func (a *asker) ask(limit, wanted int) int {
	a.r.t.Helper()
	grant, err := a.r.c.Permits("q").Ask(a.r.ctx, a.request(limit, wanted))
	a.r.noErr(err)
	a.may, a.before = grant.May, grant.Before
	return a.may
}

// testPermitsNeverMore loses, repeats and delays requests, and lets instances die. There are never more calls at once
// than the limit, and at the end all of it is used.
func testPermitsNeverMore(t *testing.T, b *backend) {
	for seed := range uint64(12) {
		r, rng := newRig(t, b), rand.New(rand.NewPCG(seed, 1))
		limit, named := 1+rng.IntN(6), 0
		permits := r.c.Permits("q")
		fresh := func() *asker { named++; return r.asker(fmt.Sprint("n/", named)) }
		all := []*asker{fresh(), fresh(), fresh()}
		send := func(a *asker, req PermitRequest) int {
			grant, err := permits.Ask(r.ctx, req)
			r.noErr(err)
			return grant.May
		}
		for step := range 300 {
			i := rng.IntN(len(all))
			a := all[i]
			switch k := rng.IntN(14); {
			case k < 5 && a.busy < a.may:
				a.busy++
			case k < 7 && a.busy > 0:
				a.busy--
			case k < 11:
				if rng.IntN(3) == 0 {
					a.may = a.busy // it gives back what it does not use
				}
				req := a.request(limit, rng.IntN(limit+2))
				switch rng.IntN(6) {
				case 0: // it is lost
				case 1: // its answer is
					send(a, req)
				case 2, 4: // it comes later
					a.late = append(a.late, req)
				case 3: // it comes twice
					send(a, req)
					a.may = send(a, req)
					if a.may > limit {
						t.Fatalf("seed %d, step %d: %s may have %d of %d", seed, step, a.name, a.may, limit)
					}
				default:
					a.may = send(a, req)
				}
			case k < 13 && len(a.late) > 0:
				send(a, a.late[0])
				a.late = a.late[1:]
			case k == 13 && rng.IntN(4) == 0: // it dies: its calls end, then its lease
				r.noErr(a.lease.Drop(r.ctx))
				all[i] = fresh()
			}
			sum := 0
			for _, a := range all {
				sum += a.busy
			}
			if step%20 == 0 {
				r.permitsAddUp()
			}
			if sum > limit {
				t.Fatalf("seed %d, step %d: %d calls at once, at most %d are allowed: %+v", seed, step, sum, limit, all)
			}
		}
		for _, a := range all {
			a.busy, a.may = 0, 0
			a.ask(limit, 0)
		}
		if got := all[1].ask(limit, limit); got != limit {
			t.Errorf("seed %d: at the end one that asks alone gets %d of %d", seed, got, limit)
		}
		r.permitsAddUp()
	}
}

// permitsAddUp checks that the sums, and the instances that want more, agree with the entries.
func (r *rig) permitsAddUp() {
	r.t.Helper()
	db, keys := r.c.DB().ForTests(), r.c.DB().Keys
	held, askers, lack := 0, 0, []string{}
	all := db.HGetAll(r.ctx, keys.Permits("q")).Val()
	for name, text := range all {
		var number, has, wanted int
		if _, err := fmt.Sscan(text, &number, &has, &wanted); err != nil || name == "" {
			continue
		}
		if held += has; wanted > 0 {
			askers++
		}
		if has < wanted {
			lack = append(lack, name)
		}
	}
	said := db.ZRange(r.ctx, keys.Permitsx("q"), 0, -1).Val()
	slices.Sort(said)
	slices.Sort(lack)
	if sums := fmt.Sprint(held, " ", askers); len(all) > 0 && (all[""] != sums || !slices.Equal(said, lack)) {
		r.t.Fatalf("%v: got sums %q and %v that want more, want %q and %v", all, all[""], said, sums, lack)
	}
}

// testPermitsFair checks that each instance gets its share if it wants it, and the unused shares of others.
func testPermitsFair(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two, three := r.asker("n/1"), r.asker("n/2"), r.asker("n/3")
	eq(t, "alone", one.ask(10, 50), 10)
	one.busy = 10
	eq(t, "nothing is left", two.ask(10, 50), 0)
	eq(t, "to share", one.ask(10, 50), 5)
	eq(t, "before calls end", two.ask(10, 50), 0)
	one.busy = 5
	eq(t, "shared", one.ask(10, 50), 5)
	eq(t, "the other half", two.ask(10, 50), 5)
	eq(t, "who wants little", three.ask(10, 1), 0)
	eq(t, "takes from one", one.ask(10, 50), 3)
	one.busy = 3
	eq(t, "and again", one.ask(10, 50), 3)
	eq(t, "gets it", three.ask(10, 1), 1)
	eq(t, "and what it leaves", two.ask(10, 50), 6)
	holders, err := r.c.Permits("q").Holders(r.ctx)
	r.noErr(err)
	eq(t, "holders", fmt.Sprint(holders), "map[n/1:3 n/2:6 n/3:1]")
	eq(t, "a lower limit", two.ask(2, 50), 0)
}

// testPermitsTurns checks that each waiting instance gets its turn if there are fewer permits than instances.
func testPermitsTurns(t *testing.T, b *backend) {
	r := newRig(t, b)
	all := []*asker{r.asker("n/1"), r.asker("n/2"), r.asker("n/3"), r.asker("n/4")}
	had := map[string]int{}
	eq(t, "the first", all[0].ask(1, 3), 1)
	for i, a := range all[1:] {
		eq(t, "none is left", a.ask(1, 3), 0)
		eq(t, "others before it", a.before, i)
	}
	for end := time.Now().Add(patience); len(had) < len(all); {
		if time.Now().After(end) {
			t.Fatalf("got turns %v in %s, want one of each", had, patience)
		}
		for _, a := range all {
			if a.ask(1, 3) > 0 {
				had[a.name]++
			}
		}
	}
}

// testPermitsLine checks that an instance that stopped waiting and begins again is the last. Instances that died while
// they waited keep no other back.
func testPermitsLine(t *testing.T, b *backend) {
	r := newRig(t, b)
	var holders, line []*asker
	for i := range 40 {
		holders = append(holders, r.asker(fmt.Sprint("h/", i)))
		eq(t, "a permit", holders[i].ask(40, 1), 1)
		holders[i].busy = 1
	}
	for i := range 6 {
		line = append(line, r.asker(fmt.Sprint("n/", i)))
		line[i].ask(40, 1)
		eq(t, "others before it", line[i].before, i)
	}
	line[0].ask(40, 0)
	line[0].ask(40, 1)
	eq(t, "before one that begins again", line[0].before, 5)
	for _, dead := range line[1:5] {
		r.noErr(dead.lease.Drop(r.ctx))
	}
	holders[0].busy, holders[0].may = 0, 0
	holders[0].ask(40, 0)
	eq(t, "the first that lives", line[5].ask(40, 1), 1)
}

// testPermitsLate checks that a request that Redis gets after a later request gives back nothing that the instance has
// got since.
func testPermitsLate(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two := r.asker("n/1"), r.asker("n/2")
	late := one.request(3, 0)
	eq(t, "all", one.ask(3, 3), 3)
	for range 2 {
		grant, err := r.c.Permits("q").Ask(r.ctx, late)
		r.noErr(err)
		eq(t, "what it holds", grant.May, 3)
	}
	eq(t, "nothing is left", two.ask(3, 3), 0)
}

// testPermitsOfTheDead checks that the permits of an instance without a lease are free, and it gets none itself.
func testPermitsOfTheDead(t *testing.T, b *backend) {
	r := newRig(t, b)
	dead, other := r.asker("n/1"), r.asker("n/2")
	eq(t, "all", dead.ask(3, 3), 3)
	eq(t, "none is left", other.ask(3, 3), 0)
	r.noErr(dead.lease.Drop(r.ctx))
	eq(t, "those of the dead", other.ask(3, 3), 3)
	if _, err := r.c.Permits("q").Ask(r.ctx, dead.request(3, 3)); err == nil {
		t.Error("one without a lease was answered, want an error")
	}
	holders, err := r.c.Permits("q").Holders(r.ctx)
	r.noErr(err)
	eq(t, "holders", fmt.Sprint(holders), "map[n/2:3]")
}

// testPermitsOfACrowd lets most of the instances die at once that hold permits or wait for one. The living instances
// soon have all permits.
func testPermitsOfACrowd(t *testing.T, b *backend) {
	r := newRig(t, b)
	var all []*asker
	for i := range 60 {
		all = append(all, r.asker(fmt.Sprint("n/", i)))
		all[i].ask(20, 1)
	}
	for i, a := range all {
		if i%20 != 19 {
			r.noErr(a.lease.Drop(r.ctx))
		}
	}
	alive := []*asker{all[19], all[39], all[59]}
	asked := 0
	for got := 0; got < 20; asked++ {
		if asked > 200 {
			t.Fatalf("the three that live have %d of 20 permits after they asked 200 times", got)
		}
		alive[asked%3].ask(20, 10)
		got = alive[0].may + alive[1].may + alive[2].may
	}
	r.permitsAddUp()
}

// TestPermitsCostTheSame checks that the cost of a request in Redis does not grow with the instances that hold permits
// or wait for one.
func TestPermitsCostTheSame(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server := redistest.Start(t)
	cost := map[int]int{}
	for _, n := range []int{10, 1000} {
		r := newRig(t, &backend{url: server.URL()}, func(c *Config) { c.Cluster = fmt.Sprint("crowd", n) })
		one := r.asker("n/one")
		for i := range n {
			r.asker(fmt.Sprint("n/", i)).ask(n/2, 2)
		}
		began := r.work()
		for range 1000 {
			one.ask(n/2, 1)
		}
		cost[n] = r.work() - began
	}
	t.Logf("us for a thousand requests, by instances: %v", cost)
	if cost[1000] > 3*cost[10] {
		t.Errorf("a thousand requests cost Redis %d us with 10 instances, and %d with 1,000, want about the same", cost[10], cost[1000])
	}
}

// testRateModel checks that no more than rate and burst allow is ever handed out, and no less if batches ask at the
// time that they were told.
func testRateModel(t *testing.T, b *backend) {
	r := newRig(t, b)
	limit := rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 20}
	began, err := r.c.Time(r.ctx)
	r.noErr(err)
	taken := 0
	for taken < 400 {
		ask := []int{1 + taken%7, 2, 1 + taken%3}
		grant, err := r.c.TakeRate(r.ctx, "q", limit, ask)
		r.noErr(err)
		now, err := r.c.Time(r.ctx)
		r.noErr(err)
		for _, n := range ask[:grant.Batches] {
			taken += n
		}
		if grant.Batches < len(ask) && (grant.Wait == 0 || grant.Wait > 7*time.Millisecond) {
			t.Fatalf("told to wait for %s, want some time, and at most what 7 ids take", grant.Wait)
		}
		if grant.Batches == len(ask) && (grant.Wait == 0) != (grant.Left > 0) {
			t.Fatalf("%+v: want a time if nothing is left", grant)
		}
		if most := 20 + int(now.Sub(began)/time.Millisecond) + 1; taken+grant.Left > most {
			t.Fatalf("%d, and %d left, in %s, at most %d are allowed", taken, grant.Left, now.Sub(began), most)
		}
	}
	slow := rules.Limit{Rate: rules.Rate{N: 1, Per: time.Hour}, Burst: 1}
	take := func(queue string, want int, batches ...int) {
		t.Helper()
		grant, err := r.c.TakeRate(r.ctx, queue, slow, batches)
		if err != nil || grant.Batches != want || (grant.Wait == 0) != (grant.Left > 0) {
			t.Errorf("once an hour: %v: %+v, %v, want %d", batches, grant, err, want)
		}
	}
	take("slow", 1, 1, 1)
	take("slow", 0, 1)
	take("batch", 1, 5, 1) // it is larger than the burst
	// A batch counts for smaller batches as well. They may not go earlier.
	take("batch", 0, 1)
	take("batch", 0, 5)
	if grant, err := r.c.TakeRate(r.ctx, "batch", slow, []int{1}); err != nil || grant.Wait < 4*time.Hour {
		t.Errorf("after five at once: %+v, %v, want five hours", grant, err)
	}
	// Another rate counts at once. Ids that were handed out by the old rate hold none back for hours. The
	// five that were told to wait may have their turn first.
	fast := rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1}
	if grant, err := r.c.TakeRate(r.ctx, "batch", fast, []int{1}); err != nil || grant.Batches == 0 && grant.Wait > 10*time.Millisecond {
		t.Errorf("of a faster rate: %+v, %v, want it within ten milliseconds", grant, err)
	}
}

// testRateChangedRate checks that while some nodes follow one limit and some another, no more is handed out than the
// larger limit allows. When all nodes follow the smaller limit, that one holds.
func testRateChangedRate(t *testing.T, b *backend) {
	const burst = 20
	for i, c := range []struct{ one, other rules.Limit }{
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 50, Per: time.Second}, Burst: burst}},
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 1, Per: time.Second}, Burst: burst}},
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 1}},
	} {
		r, name := newRig(t, b), fmt.Sprint("changes", i)
		began, err := r.c.Time(r.ctx)
		r.noErr(err)
		taken := 0
		for round := range 200 {
			limit := []rules.Limit{c.one, c.other}[round%2]
			grant, err := r.c.TakeRate(r.ctx, name, limit, []int{1, 1, 1, 1, 1})
			r.noErr(err)
			now, err := r.c.Time(r.ctx)
			r.noErr(err)
			if taken += grant.Batches; taken > burst+int(now.Sub(began)/(10*time.Millisecond))+1 {
				t.Fatalf("case %d: %d in %s, by both limits at most %d and a hundred a second are allowed", i, taken, now.Sub(began), burst)
			}
		}
	}
}

// testRateSizes runs a node with batches as large as the burst beside a node with single ids. Neither is overtaken for
// ever. A large batch that does not ask again keeps the others waiting for a short time only.
func testRateSizes(t *testing.T, b *backend) {
	r, limit := newRig(t, b), rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 20}
	taken, next := [2]int{}, [2]time.Time{}
	sizes := [2]int{20, 1}
	for end := time.Now().Add(patience); taken[0] < 400 || taken[1] < 200; {
		if time.Now().After(end) {
			t.Fatalf("got %d ids in batches of %d, and %d alone in %s at a thousand ids a second, want a part for both", taken[0], sizes[0], taken[1], patience)
		}
		for i, size := range sizes {
			if time.Now().Before(next[i]) {
				continue
			}
			grant, err := r.c.TakeRate(r.ctx, "q", limit, []int{size})
			r.noErr(err)
			taken[i] += grant.Batches * size
			next[i] = time.Now().Add(grant.Wait)
		}
	}
	// The last large one is told to wait: a rest allows one at once.
	grant, err := r.c.TakeRate(r.ctx, "q", limit, []int{20, 20, 20})
	r.noErr(err)
	if grant.Batches == 3 || grant.Wait == 0 {
		t.Fatalf("three large batches at once got %+v, want one of them to wait", grant)
	}
	alone := 0
	for end := time.Now().Add(patience); alone < 3000; {
		grant, err := r.c.TakeRate(r.ctx, "q", limit, slices.Repeat([]int{1}, 20))
		r.noErr(err)
		if alone += grant.Batches; time.Now().After(end) {
			t.Fatalf("%d ids alone in %s after a large batch that nobody asks for again, want 3000 in about four seconds", alone, patience)
		}
	}
}
