package queue_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

var groupTests = []testCase{
	{"Groups_NeverMoreThanTheLimit", groupsNeverMore},
	{"Groups_RateIsKeptAndUsed", groupsRate},
	{"Groups_WhoHasNoneGetsATurn", groupsTurn},
	{"Groups_AHandlerStopsOne", groupsStop},
	{"Groups_AreForgotten", groupsForgotten},
	{"Groups_ManyAreForgotten", groupsManyForgotten},
	{"Groups_RateThatChangesIsNoMore", groupsChanges},
	{"Groups_RuleThatChangesReachesWhoWaits", groupsRegroup},
}

// grouper is an instance with ids of groups, as a node has them: it begins none while it asks.
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

// ask is a request whose answer arrives.
func (g *grouper) ask(limit rules.Limit, wants ...GroupWant) []GroupGrant {
	g.r.t.Helper()
	grants, err := g.r.c.AskGroups(g.r.ctx, "q", g.request(limit, wants...))
	g.r.no(err)
	for i, grant := range grants {
		g.busy[wants[i].Group] += grant.Back + grant.New
	}
	return grants
}

// groupsNeverMore: whatever is asked in whatever order, with requests that are lost, come twice, or long after later ones, and with
// instances that die: no group ever has more ids in calls than the limit, and at the end all of it is used.
func groupsNeverMore(t *testing.T, b *backend) {
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
					r.no(err)
				case 2: // it comes later
					g.late = append(g.late, req)
				default:
					grants, err := r.c.AskGroups(r.ctx, "q", req)
					r.no(err)
					g.busy[name] += grants[0].Back + grants[0].New
					if _, err := r.c.AskGroups(r.ctx, "q", req); err == nil {
						t.Fatalf("seed %d, step %d: a request that comes twice was answered, want an error", seed, step)
					}
				}
			case k < 11 && len(g.late) > 0:
				_, _ = r.c.AskGroups(r.ctx, "q", g.late[0]) // an error, unless all later ones were lost
				g.late = g.late[1:]
			case k == 11 && rng.IntN(4) == 0: // it dies: its calls end, then its lease
				r.no(g.lease.Drop(r.ctx))
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
			got, end := 0, time.Now().Add(5*time.Second)
			for got < limit.Concurrency && time.Now().Before(end) { // one may be left to an instance whose turn it was
				got += all[1].ask(limit, GroupWant{Group: name, New: 9})[0].New
			}
			if got != limit.Concurrency {
				t.Errorf("seed %d: at the end one that asks alone gets %d, want %d", seed, got, limit.Concurrency)
			}
		}
	}
}

// groupsRate: in no time more ids of a group begin than the rate allows and the burst; those that are told to ask again rise,
// have what others would take, and all of the rate is used.
func groupsRate(t *testing.T, b *backend) {
	r := newRig(t, b)
	g, limit := r.grouper("n/1"), rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 20}
	began, err := r.c.Time(r.ctx)
	r.no(err)
	first := g.ask(limit, GroupWant{Group: "a:", New: 60}, GroupWant{Group: "b:", New: 1})
	eq(t, "of a rest", first[0].New, 20)
	eq(t, "another group", first[1].New, 1)
	eq(t, "one that comes later", g.ask(limit, GroupWant{Group: "a:", New: 1})[0].New, 0)
	gap := new(GroupWant).Gap(limit)
	eq(t, "the gap", gap, 10*time.Millisecond)
	taken, early, left := 20, 0, 40
	for next := began.Add(first[0].NewIn); left > 0; {
		now, err := r.c.Time(r.ctx)
		r.no(err)
		if now.Sub(began) > 10*time.Second {
			t.Fatalf("%d ids have not begun in 10 s", left)
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

// groupsTurn: an instance without a permit of a group gets the next one that is free, however many ids of others ask before it; if it does not
// come, others have it.
func groupsTurn(t *testing.T, b *backend) {
	r := newRig(t, b)
	crowd, one, third, limit := r.grouper("n/1"), r.grouper("n/2"), r.grouper("n/3"), rules.Limit{Concurrency: 2}
	end := func(g *grouper) { g.busy["a:"]-- }
	eq(t, "all of it", crowd.ask(limit, GroupWant{Group: "a:", New: 200})[0].New, 2)
	if in := one.ask(limit, GroupWant{Group: "a:", Back: 1})[0].BackIn; in > 2*time.Millisecond {
		t.Errorf("who has none is told to ask again in %s, want it soon", in)
	}
	third.ask(limit, GroupWant{Group: "a:", Back: 1})
	end(crowd)
	eq(t, "who gives one back, and asks in the same request", crowd.ask(limit, GroupWant{Group: "a:", Back: 50})[0].Back, 0)
	eq(t, "another one that comes before it", third.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back, 0)
	eq(t, "whose turn it is", one.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back, 1)

	third.ask(limit, GroupWant{Group: "a:", Back: 1}) // its turn, and it does not come
	end(one)
	one.ask(limit, GroupWant{Group: "a:"})
	began := time.Now()
	for crowd.ask(limit, GroupWant{Group: "a:", Back: 1})[0].Back == 0 {
		if time.Since(began) > 5*time.Second {
			t.Fatal("what is left to one that does not come is lost")
		}
	}
	end(crowd)
	end(crowd)
	crowd.ask(limit, GroupWant{Group: "a:"})
	eq(t, "all of it, in nobody's turn", crowd.ask(limit, GroupWant{Group: "a:", New: 3})[0].New, 2)

	// Whose ids ask again late keeps nobody waiting until then.
	eq(t, "all of another one", crowd.ask(limit, GroupWant{Group: "b:", New: 3})[0].New, 2)
	late := one.request(limit, GroupWant{Group: "b:", Back: 1})
	late.Groups[0].Spacing = time.Hour
	_, err := r.c.AskGroups(r.ctx, "q", late)
	r.no(err)
	crowd.busy["b:"]--
	eq(t, "who gives one back while it is nobody's turn yet", crowd.ask(limit, GroupWant{Group: "b:", Back: 50})[0].Back, 1)
	// Who was late has no other turn at once: the third has missed its own.
	third.ask(limit, GroupWant{Group: "a:", Back: 1})
	end(crowd)
	eq(t, "who gives one back after a turn that nobody took", crowd.ask(limit, GroupWant{Group: "a:", Back: 50})[0].Back, 1)
}

// groupsStop: a handler holds a group back for some time, for all instances.
func groupsStop(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two := r.grouper("n/1"), r.grouper("n/2")
	one.ask(rules.Limit{}, GroupWant{Group: "a:", Stop: 200 * time.Millisecond})
	got := two.ask(rules.Limit{}, GroupWant{Group: "a:", New: 2}, GroupWant{Group: "b:", New: 2})
	eq(t, "none of it", got[0].New, 0)
	eq(t, "all of others", got[1].New, 2)
	eq(t, "which are said to be stopped", [2]bool{got[0].Stopped, got[1].Stopped}, [2]bool{true, false})
	if in := got[0].NewIn; in < 100*time.Millisecond || in > 200*time.Millisecond {
		t.Errorf("told to ask again in %s, want when it ends", in)
	}
	known, err := r.c.Group(r.ctx, "q", "a:")
	r.no(err)
	if now, _ := r.c.Time(r.ctx); known.Till.Before(now) || known.Till.After(now.Add(time.Second)) {
		t.Errorf("held back till %s, want some 200 ms from %s", known.Till, now)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if got = two.ask(rules.Limit{}, GroupWant{Group: "a:", Back: 2}); got[0].Back == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("none begin after 10 s")
		}
	}
}

// groupsForgotten: what says nothing any more leaves Redis: when it is asked for, or as others are.
func groupsForgotten(t *testing.T, b *backend) {
	r := newRig(t, b)
	one, two, limit := r.grouper("n/1"), r.grouper("n/2"), rules.Limit{Concurrency: 2}
	one.ask(limit, GroupWant{Group: "a:", New: 1}, GroupWant{Group: "b:", New: 2})
	two.ask(limit, GroupWant{Group: "a:", New: 1})
	known, err := r.c.Group(r.ctx, "q", "a:")
	r.no(err)
	eq(t, "who has it", fmt.Sprint(known.Holders), "map[n/1:1 n/2:1]")
	eq(t, "that none was put back", known.Again.IsZero(), true)
	one.ask(limit, GroupWant{Group: "b:", New: 3})
	recent, more, err := r.c.RecentGroups(r.ctx, "q", 2)
	r.no(err)
	if len(recent) != 2 || more || recent[0].Name != "b:" || fmt.Sprint(recent[1]) != fmt.Sprint(known) {
		t.Errorf("got %+v, %v; want b: and a:, the one asked for last first", recent, more)
	}
	if recent, more, err = r.c.RecentGroups(r.ctx, "q", 1); err != nil || len(recent) != 1 || !more {
		t.Errorf("got %+v, %v, %v; want one, and that there are others", recent, more, err)
	}
	now, err := r.c.Time(r.ctx)
	r.no(err)
	if known, err = r.c.Group(r.ctx, "q", "b:"); err != nil || known.Again.Before(now.Add(-time.Minute)) {
		t.Errorf("three were put back: the last one is to ask again at %s, %v; want a time after %s or so", known.Again, err, now)
	}
	one.busy = map[string]int{}
	db := r.c.DB().ForTests()
	groups, groupsx := r.c.DB().Keys.Groups("q"), r.c.DB().Keys.Groupsx("q")
	for end := time.Now().Add(10 * time.Second); ; { // b: says something until the last of those put back was to ask again
		one.ask(limit, GroupWant{Group: "a:"}, GroupWant{Group: "b:"})
		fields := fmt.Sprint(slices.Sorted(slices.Values(db.HKeys(r.ctx, groups).Val())))
		if fields == "[ga: in/1 in/2]" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("fields after 10 s: %s, want those of a: and of both instances", fields)
		}
	}
	r.no(two.lease.Drop(r.ctx))
	for _, field := range []string{"ga:", "in/2"} { // their time has come
		r.no(db.ZAdd(r.ctx, groupsx, redis.Z{Score: 1, Member: field}).Err())
	}
	one.ask(limit, GroupWant{Group: "c:"})
	eq(t, "fields of the living", fmt.Sprint(db.HKeys(r.ctx, groups).Val()), "[in/1]")
	eq(t, "when to look", fmt.Sprint(db.ZRange(r.ctx, groupsx, 0, -1).Val()), "[in/1]")
	if ttl := db.TTL(r.ctx, groups).Val(); ttl <= 0 {
		t.Errorf("they are kept for %s, want an end", ttl)
	}
}

// groupsManyForgotten: requests that are about new groups again and again leave no more of them in Redis than they take out.
func groupsManyForgotten(t *testing.T, b *backend) {
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
		r.no(db.ZAdd(r.ctx, groupsx, due...).Err())
	}
	if n := db.HLen(r.ctx, groups).Val(); n > 3*each {
		t.Errorf("redis has %d fields after 20 requests about %d groups each that rest at once, want about those of the last one", n, each)
	}
}

// groupsChanges: while nodes go by two limits in turn, as when a rule has just changed, no more ids begin than by the one that allows
// more.
func groupsChanges(t *testing.T, b *backend) {
	const burst = 20
	for i, c := range []struct{ one, other rules.Limit }{
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 50, Per: time.Second}, Burst: burst}},
		{rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: burst}, rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 1}},
	} {
		r, taken := newRig(t, b), 0
		g := r.grouper("n/1")
		began, err := r.c.Time(r.ctx)
		r.no(err)
		for round := range 200 {
			taken += g.ask([]rules.Limit{c.one, c.other}[round%2], GroupWant{Group: "a:", Back: 5})[0].Back
			now, err := r.c.Time(r.ctx)
			r.no(err)
			if taken > burst+int(now.Sub(began)/(10*time.Millisecond))+1 {
				t.Fatalf("case %d: %d in %s, by both limits at most %d and a hundred a second are allowed", i, taken, now.Sub(began), burst)
			}
		}
	}
}

// groupsRegroup: ids that their group has put off ask again under another rule, before what they were told by the old one; their handler's postponements
// stand. Who claims the shard knows by which rule they wait.
func groupsRegroup(t *testing.T, b *backend) {
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
		r.no(err)
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
