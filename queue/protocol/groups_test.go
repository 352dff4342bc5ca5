package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

var groupTests = []testCase{
	{"Groups_NeverMoreThanTheLimit", testGroupsNeverMore},
	{"Groups_RateIsKeptAndUsed", testGroupsRate},
	{"Groups_InstanceWithoutPermitGetsATurn", testGroupsTurn},
	{"Groups_HandlerStopsAGroup", testGroupsStop},
	{"Groups_AreForgotten", testGroupsForgotten},
	{"Groups_ManyAreForgotten", testGroupsManyForgotten},
	{"Groups_ChangedRateIsKept", testGroupsChangedRate},
	{"Groups_ChangedRuleReachesWaitingIDs", testGroupsRegroup},
	{"Groups_LetGoWithoutEntry", testGroupsLetGo},
}

// grouper is an instance with ids of groups. Like a node it begins none while it asks.
type grouper struct {
	*asker
	busy map[string]int
	late []*GroupRequest
}

func (r *rig) grouper(name string) *grouper {
	return &grouper{asker: r.asker(name), busy: map[string]int{}}
}

func (g *grouper) request(limit rules.Limit, wants ...GroupWant) *GroupRequest {
	g.number++
	for i := range wants {
		wants[i].Busy = g.busy[wants[i].Group]
	}
	return &GroupRequest{Instance: g.name, Number: g.number, Limit: limit, Groups: wants}
}

// ask sends a request whose answer arrives.
func (g *grouper) ask(limit rules.Limit, wants ...GroupWant) []GroupGrant {
	g.r.t.Helper()
	grants, err := g.r.c.AskGroups(g.r.ctx, "q", g.request(limit, wants...))
	g.r.noErr(err)
	for i, grant := range grants {
		g.busy[wants[i].Group] += grant.Back + grant.New
	}
	return grants
}

// testGroupsNeverMore loses, repeats and delays requests, and lets instances die. No group ever has more ids in calls
// than its limit, and at the end all of the limit is used.
func testGroupsNeverMore(t *testing.T, b *backend) {
	for seed := range uint64(10) {
		r, rng := newRig(t, b), rand.New(rand.NewPCG(seed, 2))
		limit, named, names := rules.Limit{Concurrency: 1 + rng.IntN(4)}, 0, []string{"a:", "b:", "\n 7:"}
		fresh := func() *grouper { named++; return r.grouper(fmt.Sprint("n/", named)) }
		all := []*grouper{fresh(), fresh(), fresh()}
		for step := range 300 {
			i := rng.IntN(len(all))
			g, name := all[i], names[rng.IntN(len(names))]
			switch k := rng.IntN(12); {
			case k < 4 && g.busy[name] > 0:
				g.busy[name]--
			case k < 10:
				req := g.request(limit, GroupWant{Group: name, New: rng.IntN(4), Back: rng.IntN(2)}, GroupWant{Group: names[rng.IntN(3)] + "x"})
				switch rng.IntN(6) {
				case 0: // it is lost
				case 1: // its answer is
					_, err := r.c.AskGroups(r.ctx, "q", req)
					r.noErr(err)
				case 2: // it comes later
					g.late = append(g.late, req)
				default:
					grants, err := r.c.AskGroups(r.ctx, "q", req)
					r.noErr(err)
					g.busy[name] += grants[0].Back + grants[0].New
					if _, err := r.c.AskGroups(r.ctx, "q", req); err == nil {
						t.Fatalf("seed %d, step %d: a request that comes twice was answered, want an error", seed, step)
					}
				}
			case k < 11 && len(g.late) > 0:
				_, _ = r.c.AskGroups(r.ctx, "q", g.late[0]) // an error, unless all later ones were lost
				g.late = g.late[1:]
			case k == 11 && rng.IntN(4) == 0: // it dies: its calls end, then its lease
				r.noErr(g.lease.Drop(r.ctx))
				all[i] = fresh()
			}
			for _, name := range names {
				sum := 0
				for _, g := range all {
					sum += g.busy[name]
				}
				if sum > limit.Concurrency {
					t.Fatalf("seed %d, step %d: %d ids of %q in calls, at most %d are allowed: %+v", seed, step, sum, name, limit.Concurrency, all)
				}
			}
		}
		for _, name := range names {
			for _, g := range all {
				g.busy[name] = 0
				g.ask(limit, GroupWant{Group: name})
			}
			got, end := 0, time.Now().Add(patience)
			for got < limit.Concurrency && time.Now().Before(end) { // one may be left to an instance whose turn it was
				got += all[1].ask(limit, GroupWant{Group: name, New: 9})[0].New
			}
			if got != limit.Concurrency {
				t.Errorf("seed %d: at the end one that asks alone gets %d, want %d", seed, got, limit.Concurrency)
			}
		}
	}
}

// testGroupsRate checks that at no time more ids of a group have begun than rate and burst allow. The times at which
// ids ask again grow. These ids come before others, and the whole rate is used.
func testGroupsRate(t *testing.T, b *backend) {
	r := newRig(t, b)
	g, limit := r.grouper("n/1"), rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 20}
	began, err := r.c.Time(r.ctx)
	r.noErr(err)
	first := g.ask(limit, GroupWant{Group: "a:", New: 60}, GroupWant{Group: "b:", New: 1})
	eq(t, "of a rest", first[0].New, 20)
	eq(t, "another group", first[1].New, 1)
	eq(t, "one that comes later", g.ask(limit, GroupWant{Group: "a:", New: 1})[0].New, 0)
	gap := new(GroupWant).Gap(limit)
	eq(t, "the gap", gap, 10*time.Millisecond)
	taken, early, left := 20, 0, 40
	for next := began.Add(first[0].NewIn); left > 0; {
		now, err := r.c.Time(r.ctx)
		r.noErr(err)
		if now.Sub(began) > patience {
			t.Fatalf("%d ids have not begun in %s", left, patience)
		}
		if now.Before(next) {
			continue
		}
		got := g.ask(limit, GroupWant{Group: "a:", Back: 1})[0]
		if now, err = r.c.Time(r.ctx); err != nil {
			t.Fatal(err)
		}
		if taken += got.Back; got.Back == 0 {
			early++
			next = now.Add(got.BackIn)
			continue
		}
		left--
		next = next.Add(gap)
		if most := 20 + int(now.Sub(began)/gap) + 1; taken > most {
			t.Fatalf("%d in %s, at most %d are allowed", taken, now.Sub(began), most)
		}
	}
	if early > 8 {
		t.Errorf("told to ask again too early %d times of 40", early)
	}
}

// testGroupsTurn checks that an instance without a permit of a group gets the next free permit, however many ids of
// others ask before it. If it does not come, others get the permit. Turns last by Redis's clock. If the machine stood
// still for longer, the test begins again.
func testGroupsTurn(t *testing.T, b *backend) {
	want := strings.TrimSpace(`
all of it: 2
who has none is told to ask again soon: true
who gives one back, and asks in the same request: 0
another one that comes before it: 0
whose turn it is: 1
all of it, in nobody's turn: 2
all of another one: 2
who gives one back while it is nobody's turn yet: 1
who gives one back after a turn that nobody took: 1`)
	for end := time.Now().Add(patience); ; {
		got, slow := newRig(t, b).turns()
		if got == want {
			return
		}
		if !slow || time.Now().After(end) {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// turns returns the facts that testGroupsTurn compares, and whether a turn may have ended meanwhile.
func (r *rig) turns() (got string, slow bool) {
	const turn, another = 100 * time.Millisecond, time.Second // how long a turn lasts in lua/group.lua, and when there may be another
	var answers []string
	note := func(what string, answer any) { answers = append(answers, fmt.Sprint(what, ": ", answer)) }
	clock := func() time.Time {
		r.t.Helper()
		now, err := r.c.Time(r.ctx)
		r.noErr(err)
		return now
	}
	crowd, one, third, limit := r.grouper("n/1"), r.grouper("n/2"), r.grouper("n/3"), rules.Limit{Concurrency: 2}
	end := func(g *grouper) { g.busy["a:"]-- }
	began := clock()
	note("all of it", crowd.ask(limit, GroupWant{Group: "a:", New: 200})[0].New)
	note("who has none is told to ask again soon", one.ask(limit, GroupWant{Group: "a:", Back: 1})[0].BackIn <= 2*time.Millisecond)
	third.ask(limit, GroupWant{Group: "a:", Back: 1})
	end(crowd)
	note("who gives one back, and asks in the same request", crowd.ask(limit, GroupWant{Group: "a:", Back: 50})[0].Back)
	note("another one that comes before it", third.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back)
	note("whose turn it is", one.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back)
	slow = clock().Sub(began) >= turn

	began = clock()
	third.ask(limit, GroupWant{Group: "a:", Back: 1}) // its turn, and it does not come
	end(one)
	one.ask(limit, GroupWant{Group: "a:"})
	for lost := time.Now().Add(patience); crowd.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back == 0; {
		if time.Now().After(lost) {
			r.t.Fatal("what is left to one that does not come is lost")
		}
	}
	end(crowd)
	end(crowd)
	crowd.ask(limit, GroupWant{Group: "a:"})
	note("all of it, in nobody's turn", crowd.ask(limit, GroupWant{Group: "a:", New: 3})[0].New)

	// An instance whose ids ask again late keeps no other instance waiting until then.
	note("all of another one", crowd.ask(limit, GroupWant{Group: "b:", New: 3})[0].New)
	late := one.request(limit, GroupWant{Group: "b:", Back: 1})
	late.Groups[0].Spacing = time.Hour
	_, err := r.c.AskGroups(r.ctx, "q", late)
	r.noErr(err)
	crowd.busy["b:"]--
	note("who gives one back while it is nobody's turn yet", crowd.ask(limit, GroupWant{Group: "b:", Back: 50})[0].Back)
	// An instance that was late has no other turn at once. The third has missed its turn.
	third.ask(limit, GroupWant{Group: "a:", Back: 1})
	end(crowd)
	note("who gives one back after a turn that nobody took", crowd.ask(limit, GroupWant{Group: "a:", Back: 50})[0].Back)
	return strings.Join(answers, "\n"), slow || clock().Sub(began) >= another
}

// testGroupsStop checks that a handler stops a group for a time, for all instances.
func testGroupsStop(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two := r.grouper("n/1"), r.grouper("n/2")
	one.ask(rules.Limit{}, GroupWant{Group: "a:", Stop: 200 * time.Millisecond}, GroupWant{Group: "long:", Stop: 10 * time.Minute})
	got := two.ask(rules.Limit{}, GroupWant{Group: "long:", New: 2}, GroupWant{Group: "b:", New: 2})
	eq(t, "none of it", got[0].New, 0)
	eq(t, "all of others", got[1].New, 2)
	if in := got[0].NewIn; in < 9*time.Minute || in > 10*time.Minute {
		t.Errorf("told to ask again in %s, want when it ends", in)
	}
	known, err := r.c.Group(r.ctx, "q", "long:")
	r.noErr(err)
	near(t, "held back till", known.Till, 10*time.Minute)
	for end := time.Now().Add(patience); ; {
		if got = two.ask(rules.Limit{}, GroupWant{Group: "a:", Back: 2}); got[0].Back == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("none begin after %s", patience)
		}
	}
}

// testGroupsForgotten checks that obsolete entries leave Redis when they or others are asked for.
func testGroupsForgotten(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two, limit := r.grouper("n/1"), r.grouper("n/2"), rules.Limit{Concurrency: 2}
	one.ask(limit, GroupWant{Group: "a:", New: 1}, GroupWant{Group: "b:", New: 2})
	two.ask(limit, GroupWant{Group: "a:", New: 1})
	known, err := r.c.Group(r.ctx, "q", "a:")
	r.noErr(err)
	eq(t, "who has it", fmt.Sprint(known.Holders), "map[n/1:1 n/2:1]")
	eq(t, "that none was put back", known.Again.IsZero(), true)
	one.ask(limit, GroupWant{Group: "b:", New: 3})
	recent, more, err := r.c.RecentGroups(r.ctx, "q", 2)
	r.noErr(err)
	if len(recent) != 2 || more || recent[0].Name != "b:" || fmt.Sprint(recent[1]) != fmt.Sprint(known) {
		t.Errorf("got %+v, %v; want b: and a:, the one asked for last first", recent, more)
	}
	if recent, more, err = r.c.RecentGroups(r.ctx, "q", 1); err != nil || len(recent) != 1 || !more {
		t.Errorf("got %+v, %v, %v; want one, and that there are others", recent, more, err)
	}
	now, err := r.c.Time(r.ctx)
	r.noErr(err)
	if known, err = r.c.Group(r.ctx, "q", "b:"); err != nil || known.Again.Before(now.Add(-time.Minute)) {
		t.Errorf("three were put back: the last one is to ask again at %s, %v; want a time after %s or so", known.Again, err, now)
	}
	one.busy = map[string]int{}
	db := r.c.DB().ForTests()
	groups, groupsx := r.c.DB().Keys.Groups("q"), r.c.DB().Keys.Groupsx("q")
	for end := time.Now().Add(patience); ; { // b: says something until the last of those put back was to ask again
		one.ask(limit, GroupWant{Group: "a:"}, GroupWant{Group: "b:"})
		fields := fmt.Sprint(slices.Sorted(slices.Values(db.HKeys(r.ctx, groups).Val())))
		if fields == "[ga: in/1 in/2]" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("fields after %s: %s, want those of a: and of both instances", patience, fields)
		}
	}
	r.noErr(two.lease.Drop(r.ctx))
	for _, field := range []string{"ga:", "in/2"} { // their time has come
		r.noErr(db.ZAdd(r.ctx, groupsx, redis.Z{Score: 1, Member: field}).Err())
	}
	one.ask(limit, GroupWant{Group: "c:"})
	eq(t, "fields of the living", fmt.Sprint(db.HKeys(r.ctx, groups).Val()), "[in/1]")
	eq(t, "when to look", fmt.Sprint(db.ZRange(r.ctx, groupsx, 0, -1).Val()), "[in/1]")
	if ttl := db.TTL(r.ctx, groups).Val(); ttl <= 0 {
		t.Errorf("they are kept for %s, want an end", ttl)
	}
}

// testGroupsManyForgotten checks that requests about new groups again and again remove as many groups from Redis as
// they add.
func testGroupsManyForgotten(t *testing.T, b *backend) {
	r := newRig(t, b)
	g, limit := r.grouper("n/1"), rules.Limit{Rate: rules.Rate{N: 1_000_000, Per: time.Second}, Burst: 1}
	db, groups, groupsx := r.c.DB().ForTests(), r.c.DB().Keys.Groups("q"), r.c.DB().Keys.Groupsx("q")
	const each = 50
	for round := range 20 {
		var wants []GroupWant
		for i := range each {
			wants = append(wants, GroupWant{Group: fmt.Sprint(round, ".", i, ":"), New: 1})
		}
		g.ask(limit, wants...)
		var due []redis.Z
		for _, field := range db.ZRange(r.ctx, groupsx, 0, -1).Val() {
			due = append(due, redis.Z{Score: 1, Member: field})
		}
		r.noErr(db.ZAdd(r.ctx, groupsx, due...).Err())
	}
	if n := db.HLen(r.ctx, groups).Val(); n > 3*each {
		t.Errorf("redis has %d fields after 20 requests about %d groups each that rest at once, want about those of the last one", n, each)
	}
}

// testGroupsChangedRate checks that while some nodes follow one limit and some another, as just after a change of the
// rule, no more ids begin than the larger limit allows.
func testGroupsChangedRate(t *testing.T, b *backend) {
	const burst = 20
	for i, c := range []struct{ one, other rules.Limit }{
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 50, Per: time.Second}, Burst: burst}},
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 1}},
	} {
		r, taken := newRig(t, b), 0
		g := r.grouper("n/1")
		began, err := r.c.Time(r.ctx)
		r.noErr(err)
		for round := range 200 {
			taken += g.ask([]rules.Limit{c.one, c.other}[round%2], GroupWant{Group: "a:", Back: 5})[0].Back
			now, err := r.c.Time(r.ctx)
			r.noErr(err)
			if taken > burst+int(now.Sub(began)/(10*time.Millisecond))+1 {
				t.Fatalf("case %d: %d in %s, by both limits at most %d and a hundred a second are allowed", i, taken, now.Sub(began), burst)
			}
		}
	}
}

// testGroupsRegroup checks that under another rule ids ask again before the time that the old rule gave them.
// Postponements of their handlers stay. The next owner of the shard knows by which rule they wait.
func testGroupsRegroup(t *testing.T, b *backend) {
	r := newRig(t, b)
	g := r.grouper("n/1")
	slow := rules.Limit{Rate: rules.Rate{N: 1, Per: time.Hour}, Burst: 1}
	first := g.ask(slow, GroupWant{Group: "a:", New: 3})[0]
	if first.New != 1 || first.NewIn < 59*time.Minute || first.NewIn > time.Hour {
		t.Errorf("by 1/h got %+v, want one, and the next in an hour", first)
	}
	r.push(job("a:1", "1"), job("a:2", "1"), job("busy", "1"))
	flight := r.pop(3).Flight
	for _, n := range []Nack{{ID: "a:1", Limited: true}, {ID: "a:2", Group: true}, {ID: "busy"}} {
		n.Flight, n.Kind, n.Delay = flight, Postpone, time.Hour
		_, err := r.claim.Nack(r.ctx, n)
		r.noErr(err)
	}
	n, err := r.claim.Regroup(r.ctx, "another")
	eq(t, "let ask again", fmt.Sprint(n, err), "2 <nil>")
	eq(t, "they do, and the other waits", show(r.pop(9).Jobs...), "a:1[1] a:2[1]")
	second := g.ask(rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1}, GroupWant{Group: "a:", New: 2})[0]
	if second.New == 0 && second.NewIn > time.Second {
		t.Errorf("by 1000/s got %+v, want one now or soon", second)
	}
	eq(t, "of a claim", r.own(Self).GroupRule(), "another")
}

// testGroupsLetGo checks that people can let a group go on whose entry Redis has forgotten, while ids of it wait.
func testGroupsLetGo(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a:1", "1"), job("b:1", "1"))
	flight := r.pop(2).Flight
	for _, id := range []string{"a:1", "b:1"} {
		_, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Postpone, Delay: 2 * time.Hour, Group: true})
		r.noErr(err)
	}
	stopped, err := r.q.LetGo(r.ctx, "c:")
	eq(t, "a group that nothing waits for", fmt.Sprint(stopped, err), "false <nil>")
	stopped, err = r.q.LetGo(r.ctx, "a:")
	eq(t, "one with an id that waits", fmt.Sprint(stopped, err), "true <nil>")
	eq(t, "it may run, and the other waits", show(r.pop(9).Jobs...), "a:1[1]")
}
