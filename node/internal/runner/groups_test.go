package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// groupsOfOne answers for groups as Redis does to one instance, and may lose answers.
type groupsOfOne struct {
	t    *testing.T
	lose func() bool

	mu     sync.Mutex
	asking bool
	number int64
	held   map[string]int // by group: ids that Redis takes to be in calls
	stops  map[string]time.Time
	off    map[string]time.Time // when all that the group's rate has let go is worked off
	lines  map[string]time.Time // when the last of those that were told to ask again is to; beside them, that of others
}

func newGroupsOfOne(t *testing.T, lose func() bool) *groupsOfOne {
	return &groupsOfOne{t: t, lose: lose, held: map[string]int{}, stops: map[string]time.Time{}, off: map[string]time.Time{}, lines: map[string]time.Time{}}
}

func (g *groupsOfOne) ask(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
	g.mu.Lock()
	if g.asking || r.Number <= g.number {
		g.t.Errorf("request %d comes after %d, another one is asked: %v, want one after the other", r.Number, g.number, g.asking)
	}
	g.asking = true
	g.mu.Unlock()
	time.Sleep(time.Millisecond)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asking = false
	grants, err := g.answer(r, 0)
	if g.lose() {
		return nil, errors.New("no answer")
	}
	return grants, err
}

// answer is group.lua, while other instances have so many ids of each group in calls. mu is held.
func (g *groupsOfOne) answer(r *protocol.GroupRequest, others int) ([]protocol.GroupGrant, error) {
	if r.Number <= g.number {
		return nil, errors.New("LATE")
	}
	g.number = r.Number
	now, grants := time.Now(), make([]protocol.GroupGrant, len(r.Groups))
	for i, w := range r.Groups {
		free := w.Back + w.New
		if n := r.Limit.Concurrency; n > 0 {
			free = min(free, max(0, n-others-w.Busy))
		}
		if until := now.Add(w.Stop); w.Stop > 0 && until.After(g.stops[w.Group]) {
			g.stops[w.Group] = until
		}
		wait, step, rest := g.stops[w.Group].Sub(now), time.Duration(0), time.Duration(0)
		if r.Limit.Rate.N > 0 {
			step = r.Limit.Rate.Per / time.Duration(r.Limit.Rate.N)
			rest = time.Duration(max(1, r.Limit.Burst)) * step
			ahead := min(max(g.off[w.Group].Sub(now), 0), rest)
			free = min(free, int((rest-ahead)/step))
			g.off[w.Group] = now.Add(ahead)
		}
		if wait > 0 {
			free = 0
		}
		back := min(w.Back, free)
		in := min(w.New, free-back)
		if step > 0 {
			g.off[w.Group] = g.off[w.Group].Add(time.Duration(back+in) * step)
			wait = max(wait, g.off[w.Group].Add(step-rest).Sub(now))
		}
		again := func(line string, n int) time.Duration {
			if n == 0 {
				return 0
			}
			first := now.Add(max(g.lines[line].Sub(now), 0, wait) + w.Gap(r.Limit))
			g.lines[line] = first.Add(time.Duration(n-1) * w.Gap(r.Limit))
			return first.Sub(now)
		}
		grants[i] = protocol.GroupGrant{Back: back, New: in, BackIn: again("back "+w.Group, w.Back-back), NewIn: again("new "+w.Group, w.New-in)}
		if g.held[w.Group] = w.Busy + back + in; g.held[w.Group] == 0 || r.Limit.Concurrency == 0 {
			delete(g.held, w.Group)
		}
	}
	return grants, nil
}

// TestGroups checks that never more ids of a group are in calls than Redis knows of, with lost answers, a rate, and failed
// calls. In the end all ids have run, and Redis knows that none is in a call.
func TestGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		calmly(t, 4, func(t *testing.T, p *process) {
			var failing atomic.Bool
			p.OpFailed = func(op string, _ lowkiq.Shard, _ error) bool {
				failing.Store(failing.Load() || op == "ask for groups")
				return false
			}
			p.OpDone = func(op string, _ lowkiq.Shard) { failing.Store(failing.Load() && op != "ask for groups") }
			rng := rand.New(rand.NewPCG(seed, 3))
			g := newGroupsOfOne(t, func() bool { return rng.IntN(8) == 0 })
			by := rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}
			var mu sync.Mutex
			now, ran := map[string]int{}, map[string]bool{}
			of := Rules{Rules: rules.Rules{BatchSize: 3, ShardConcurrency: 4, Groups: by, MaxRetryCount: 100}, RetryFunc: func(int) time.Duration { return time.Millisecond }}
			if seed%2 == 1 {
				of.Limit = rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1000}
			}
			refuse := rand.New(rand.NewPCG(seed, 4))
			rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
				mu.Lock()
				defer mu.Unlock()
				return protocol.RateGrant{Batches: refuse.IntN(len(batches) + 1), Left: refuse.IntN(5), Wait: time.Millisecond}, nil
			}
			s := p.add(Queue{Rules: of, Limits: p.limits(rate, g.ask)}, func(_ context.Context, b *lowkiq.Batch) error {
				mu.Lock()
				g.mu.Lock()
				for _, job := range b.Jobs {
					group := by.Of(job.ID)
					if now[group]++; group != "" && now[group] > min(2, g.held[group]) {
						t.Errorf("%d ids of %q in calls, redis knows of %d", now[group], group, g.held[group])
					}
				}
				g.mu.Unlock()
				fails := refuse.IntN(6) == 0
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				for _, job := range b.Jobs {
					now[by.Of(job.ID)]--
					ran[job.ID] = ran[job.ID] || !fails
				}
				if fails {
					return errors.New("boom")
				}
				return nil
			})
			var ids []string
			for i := range 12 {
				ids = append(ids, fmt.Sprint("a:", i), fmt.Sprint("b:", i), fmt.Sprint("free", i))
			}
			p.give(s, ids...)
			for range 40 { // as an instance does once a second
				time.Sleep(time.Second)
				limitsOf(p.runners[s.Shard].queue).ReportGroups()
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(ran) != len(ids) {
				t.Errorf("seed %d: %d of %d ran", seed, len(ran), len(ids))
			}
			if failing.Load() {
				t.Errorf("seed %d: requests are said to fail still", seed)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.held) > 0 {
				t.Errorf("seed %d: redis was told of calls that have ended: %v", seed, g.held)
			}
		})
	}
}

// TestGroupsOfAHandler checks that a handler holds a group back. Other ids of the batch go on at once, and a prefix that is no
// group holds nothing back.
func TestGroupsOfAHandler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		by     string
		answer lowkiq.Throttle
		b, a   time.Duration // when b:1 and a:1 run
	}{
		"for long":     {":", lowkiq.Throttle{Prefix: "a:", For: 2 * time.Hour}, 0, verdict.MaxStop},
		"its group":    {":", lowkiq.Throttle{Prefix: "a:", For: time.Minute}, 0, time.Minute},
		"those of all": {":", lowkiq.Throttle{For: time.Minute}, time.Minute, time.Minute},
		"no group":     {":", lowkiq.Throttle{Prefix: "a:1", For: time.Minute}, time.Minute, time.Minute},
		"another one":  {":", lowkiq.Throttle{Prefix: "c:", For: time.Minute}, time.Minute, time.Minute},
		"no rule":      {"", lowkiq.Throttle{Prefix: "a:", For: time.Minute}, time.Minute, time.Minute},
	} {
		calmly(t, 1, func(t *testing.T, p *process) {
			g := newGroupsOfOne(t, func() bool { return false })
			began, calls := time.Now(), atomic.Int32{}
			var mu sync.Mutex
			at := map[string]time.Duration{}
			by := rules.Groups{By: c.by}
			if c.by != "" {
				by.Concurrency = 9
			}
			s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 2, Groups: by}}, Limits: p.limits(nil, g.ask)}, func(_ context.Context, b *lowkiq.Batch) error {
				if calls.Add(1) == 1 {
					return c.answer
				}
				mu.Lock()
				defer mu.Unlock()
				for _, job := range b.Jobs {
					at[job.ID] = time.Since(began)
					if job.RetryCount != -1 {
						t.Errorf("%s: %s has retry count %d, want none spent", name, job.ID, job.RetryCount)
					}
				}
				return nil
			})
			p.give(s, "a:1", "b:1")
			time.Sleep(c.a + time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for id, want := range map[string]time.Duration{"a:1": c.a, "b:1": c.b} {
				if d := at[id]; d < want || d > want+time.Second || at[id] == 0 {
					t.Errorf("%s: %s ran after %s, want %s", name, id, d, want)
				}
			}
			if _, stopped := g.stops["a:"]; stopped != (name == "for long" || name == "its group" || name == "those of all") {
				t.Errorf("%s: redis was told to stop %v", name, g.stops)
			}
			if _, stopped := g.stops["c:"]; stopped != (name == "another one") {
				t.Errorf("%s: redis was told to stop %v", name, g.stops)
			}
		})
	}
}

// TestGroupsOfLongCalls checks that a node whose calls have never ended asks more and more rarely while other nodes use all of
// a group, and that an id still begins soon after there is room.
func TestGroupsOfLongCalls(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var others, asked, ran atomic.Int64
		others.Store(2)
		ask := func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
			asked.Add(1)
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.answer(r, int(others.Load()))
		}
		of := Rules{Rules: rules.Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}}
		s := p.add(Queue{Rules: of, Limits: p.limits(nil, ask)}, func(context.Context, *lowkiq.Batch) error { ran.Store(time.Now().UnixNano()); return nil })
		p.give(s, "a:1", "a:2", "a:3")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := asked.Load(); n > 300 {
			t.Errorf("asked %d times in the first second in which others have all", n)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := asked.Load(); n > 600 {
			t.Errorf("asked %d times in ten minutes in which others have all", n)
		}
		others.Store(1)
		free := time.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		if d := time.Unix(0, ran.Load()).Sub(free); ran.Load() == 0 || d > 40*time.Second {
			t.Errorf("began %s after there was room, want within 40s", d)
		}
		s.has(t, 0, "a minute after there was room")
	})
}

// TestGroupsOfCallsThatHang checks that ids do not ask at the old pace after calls were short and now none ends.
func TestGroupsOfCallsThatHang(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var asked atomic.Int64
		ask := func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
			asked.Add(1)
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.answer(r, 1)
		}
		of := Rules{Rules: rules.Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}}
		hang, over := "", make(chan struct{})
		s := p.add(Queue{Rules: of, Limits: p.limits(nil, ask)}, func(_ context.Context, batch *lowkiq.Batch) error {
			if time.Sleep(5 * time.Millisecond); batch.Jobs[0].ID == hang {
				<-over
			}
			return nil
		})
		p.give(s, "a:1", "a:2", "a:3", "a:4", "a:5")
		time.Sleep(time.Second)
		synctest.Wait()
		s.has(t, 0, "a second after five short calls")
		hang = "a:6"
		p.give(s, hang)
		synctest.Wait()
		p.give(s, "a:7", "a:8")
		before := asked.Load()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := asked.Load() - before; n > 1000 {
			t.Errorf("asked %d times in ten minutes in which a call hangs", n)
		}
		close(over)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		s.has(t, 0, "20 s after the call has ended")
	})
}

// TestGroupsWaitForARate checks that a lane that waits for the rate of its queue keeps no grants of groups meanwhile, and asks
// for them again.
func TestGroupsWaitForARate(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{maxGrantAge / 10, time.Minute} {
		calmly(t, 4, func(t *testing.T, p *process) {
			g := newGroupsOfOne(t, func() bool { return false })
			asked, runs := 0, 0
			rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
				if asked++; asked == 1 {
					return protocol.RateGrant{Wait: wait}, nil
				}
				return protocol.RateGrant{Batches: len(batches), Left: 10}, nil
			}
			of := Rules{Rules: rules.Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}, Limit: rules.Limit{Rate: rules.Rate{N: 1, Per: time.Minute}, Burst: 1}}}
			s := p.add(Queue{Rules: of, Limits: p.limits(rate, g.ask)}, func(context.Context, *lowkiq.Batch) error {
				g.mu.Lock()
				defer g.mu.Unlock()
				if runs++; g.held["a:"] != 1 {
					t.Errorf("after %s: a call of a:, and redis knows of %v", wait, g.held)
				}
				return nil
			})
			p.give(s, "a:1")
			time.Sleep(wait / 2)
			synctest.Wait()
			g.mu.Lock()
			if kept := g.held["a:"] == 1; kept != (wait < maxGrantAge) {
				t.Errorf("while it waits for %s redis knows of %v", wait, g.held)
			}
			g.mu.Unlock()
			time.Sleep(wait)
			soon()
			if runs != 1 {
				t.Errorf("after %s: %d calls, want one", wait, runs)
			}
		})
	}
}

// TestGroupsAreNotKeptForASlot checks that a lane that waits for a slot or a permit gives back the grants of its ids, and asks
// for them again.
func TestGroupsAreNotKeptForASlot(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		held := func() int {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.held["a:"]
		}
		busy := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { time.Sleep(10 * time.Second); return nil })
		asked, ran := 0, false
		rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
			if asked++; asked == 1 {
				p.give(busy, "busy") // it gets the slot of the lane that is refused
				return protocol.RateGrant{Wait: maxGrantAge / 10}, nil
			}
			return protocol.RateGrant{Batches: len(batches), Left: 10}, nil
		}
		of := Rules{Rules: rules.Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}, Limit: rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 1}}}
		s := p.add(Queue{Rules: of, Limits: p.limits(rate, g.ask)}, func(context.Context, *lowkiq.Batch) error {
			if ran = true; held() != 1 {
				t.Error("a call of a:, and redis knows of none")
			}
			return nil
		})
		p.give(s, "a:1")
		time.Sleep(maxGrantAge / 2)
		synctest.Wait()
		if held() != 1 {
			t.Error("the grant is gone at once, and a grant of a rate would be lost")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if held() != 0 {
			t.Error("redis counts an id of a: while its lane waits for a slot")
		}
		time.Sleep(10 * time.Second)
		soon()
		if !ran {
			t.Error("it has not run after the slot was free")
		}
	})
}

// refusals are limits that note which lanes the rate is said to have refused before.
type refusals struct {
	Limits
	all []bool
}

func (l *refusals) AwaitRate(ctx context.Context, refused bool) error {
	l.all = append(l.all, refused)
	return l.Limits.AwaitRate(ctx, refused)
}

// TestRefusedBatchThatLeaves checks that the batch after a refused batch goes to the end of the line, if the refused batch was
// held meanwhile.
func TestRefusedBatchThatLeaves(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var r *Runner
		asked := 0
		rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
			if asked++; asked == 1 {
				another := *r.queue.rules()
				another.Held = rules.NewHeld([]rules.Hold{{ID: "a"}})
				r.queue.Change(another, 0)
				return protocol.RateGrant{Wait: maxGrantAge / 10}, nil
			}
			return protocol.RateGrant{Batches: len(batches), Left: 10}, nil
		}
		own := p.limits(rate, nil)
		l := &refusals{Limits: own}
		q := Queue{Rules: Rules{Rules: rules.Rules{Limit: rules.Limit{Rate: rules.Rate{N: 100, Per: time.Second}, Burst: 1}}}, Limits: own}
		s := p.add(q, func(context.Context, *lowkiq.Batch) error { return nil })
		r = p.runners[s.Shard]
		r.queue.Limits = l
		p.give(s, "a", "b")
		soon()
		if len(l.all) != 2 || l.all[1] {
			t.Errorf("lanes wait for the rate, refused before: %v, want two that were not", l.all)
		}
		s.release(func(string) bool { return false })
		another := *r.queue.rules()
		another.Held = nil
		r.queue.Change(another, 0)
		p.wake(s)
		soon()
		s.has(t, 0, "in the end")
	})
}

// TestGroupRefusesIDsInQuarantine checks that ids stay in quarantine while their groups refuse them, without harm to other ids
// or Redis.
func TestGroupRefusesIDsInQuarantine(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var others, asked atomic.Int64
		others.Store(1)
		ask := func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
			asked.Add(1)
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.answer(r, int(others.Load()))
		}
		var s *shard
		var ran []string
		of := Rules{Rules: rules.Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}}
		s = p.add(Queue{Rules: of, Limits: p.limits(nil, ask)}, func(_ context.Context, b *lowkiq.Batch) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			ran = append(ran, b.Jobs[0].ID)
			if _, suspect := s.crashes[b.Jobs[0].ID]; !suspect && b.Jobs[0].ID != "free" {
				t.Errorf("%s runs, and its crashes are forgotten", b.Jobs[0].ID)
			}
			return nil
		})
		for _, id := range []string{"a:1", "a:2"} {
			s.push(id, 0)
			s.suspect(id)
		}
		p.give(s, "free")
		soon()
		s.has(t, 2, "beside two ids in quarantine of a group that is full")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := asked.Load(); n > 600 {
			t.Errorf("asked %d times in ten minutes in which others have all", n)
		}
		s.mu.Lock()
		if n := s.popped; n > 1500 {
			t.Errorf("%d pops in ten minutes in which others have all", n)
		}
		s.mu.Unlock()
		others.Store(0)
		time.Sleep(time.Minute)
		soon()
		s.has(t, 0, "a minute after there was room")
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(ran) != 3 {
			t.Errorf("%q ran, want each once", ran)
		}
	})
}

// TestGroupsOfALargeBatch checks that no request has more groups than a script accepts.
func TestGroupsOfALargeBatch(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var runs atomic.Int32
		ask := func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
			if len(r.Groups) > protocol.GroupsAtOnce {
				t.Errorf("a request about %d groups, at most %d may be", len(r.Groups), protocol.GroupsAtOnce)
			}
			grants := make([]protocol.GroupGrant, len(r.Groups))
			for i, w := range r.Groups {
				grants[i] = protocol.GroupGrant{Back: w.Back, New: w.New}
			}
			return grants, nil
		}
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 1000, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}}, Limits: p.limits(nil, ask)}, func(_ context.Context, b *lowkiq.Batch) error {
			runs.Add(int32(len(b.Jobs)))
			return nil
		})
		p.runners[s.Shard].queue.live.Load().Prefetch = 1000
		ids := make([]string, 1000)
		for i := range ids {
			ids[i] = fmt.Sprint(i, ":1")
		}
		p.give(s, ids...)
		soon()
		if runs.Load() != 1000 {
			t.Errorf("%d ids ran, want 1000", runs.Load())
		}
	})
}

// TestGroupsLetOthersPass checks that a backlog of a full group goes back together, and that ids behind it do not wait for a
// request for each id of the backlog.
func TestGroupsLetOthersPass(t *testing.T) {
	t.Parallel()
	calmly(t, 2, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		began := time.Now()
		var other atomic.Int64
		of := Rules{Rules: rules.Rules{BatchSize: 1, ShardConcurrency: 2, Prefetch: 100, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}}
		s := p.add(Queue{Rules: of, Limits: p.limits(nil, g.ask)}, func(_ context.Context, b *lowkiq.Batch) error {
			if b.Jobs[0].ID == "other" {
				other.Store(int64(time.Since(began)))
			}
			for other.Load() == 0 && time.Since(began) < time.Second {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		var ids []string
		for i := range 300 {
			ids = append(ids, fmt.Sprint("hot:", i))
		}
		p.give(s, append(ids, "other")...)
		time.Sleep(time.Minute)
		if d := time.Duration(other.Load()); d == 0 || d > 100*time.Millisecond {
			t.Errorf("began %s after it came behind 300 ids of a group at its limit, want it after a request or two for each 100 of them", d)
		}
		s.has(t, 0, "in the end")
	})
}

// TestRegroupsAtGrowingIntervals checks that ids ask again when the rule groups changes, and then at growing intervals, because
// nodes with an older configuration may put ids off by the old rule. The rule is stored only after the last time.
func TestRegroupsAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	calmly(t, 1, func(t *testing.T, p *process) {
		s := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { return nil })
		r := p.runners[s.Shard]
		change := func(by rules.Groups) {
			another := *r.queue.rules()
			another.Groups = by
			r.queue.Change(another, 0)
		}
		regroups := func(when string, now bool, store string) {
			t.Helper()
			todo, is := r.ShouldRegroup(ttl)
			if is != now || is && todo.Store != store {
				t.Errorf("%s: got %t, %q, want %t, %q", when, is, todo.Store, now, store)
			}
			if is {
				r.MarkRegrouped(todo)
			}
		}
		none, some := rules.Groups{}, rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}
		regroups("after the claim", false, "")
		change(some)
		regroups("after a change", true, "?")
		regroups("at once", false, "")
		last := time.Duration(0)
		for pause := ttl; pause <= time.Hour; pause *= 2 {
			time.Sleep(pause - time.Millisecond)
			regroups("too early", false, "")
			time.Sleep(time.Millisecond)
			store := "?"
			if last = pause; 2*pause > time.Hour {
				store = some.Rule()
			}
			regroups(fmt.Sprintf("%s after the last time", pause), true, store)
		}
		if 2*last < time.Hour {
			t.Errorf("the last time is %s after the one before, and an id may wait for an hour", last)
		}
		time.Sleep(2 * time.Hour)
		regroups("after no id can wait any more", false, "")
		change(none)
		regroups("after the next change", true, "?")
		change(some)
		regroups("after a change back", true, "?")
		time.Sleep(ttl)
		regroups("a ttl after the change back", true, "?")
		later := New(p.Process, r.queue, s.Shard, 2, &fake{shard: s, fence: 2})
		if todo, now := later.ShouldRegroup(ttl); !now || todo.Store != "?" {
			t.Errorf("a new owner by another rule: got %t, %q, want that ids ask again, and that the rule is not stored yet", now, todo.Store)
		}
	})
}
