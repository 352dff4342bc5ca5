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
	"github.com/lowkiq/lowkiq/queue"
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

func (g *groupsOfOne) ask(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
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
func (g *groupsOfOne) answer(r *queue.GroupRequest, others int) ([]queue.GroupGrant, error) {
	if r.Number <= g.number {
		return nil, errors.New("LATE")
	}
	g.number = r.Number
	now, grants := time.Now(), make([]queue.GroupGrant, len(r.Groups))
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
		grants[i] = queue.GroupGrant{Back: back, New: in, BackIn: again("back "+w.Group, w.Back-back), NewIn: again("new "+w.Group, w.New-in), Stopped: g.stops[w.Group].After(now)}
		if g.held[w.Group] = w.Busy + back + in; g.held[w.Group] == 0 || r.Limit.Concurrency == 0 {
			delete(g.held, w.Group)
		}
	}
	return grants, nil
}

// TestGroups: never are more ids of a group in calls than Redis knows of, also if answers are lost, with a rate, and if calls fail;
// in the end all of them have run and Redis is told that none is in a call.
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
			of := Rules{BatchSize: 3, ShardConcurrency: 4, Groups: by, MaxRetryCount: 100, RetryIn: func(int) time.Duration { return time.Millisecond }}
			if seed%2 == 1 {
				of.Limit = rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1000}
			}
			refuse := rand.New(rand.NewPCG(seed, 4))
			rate := func(_ context.Context, batches []int) (queue.RateGrant, error) {
				mu.Lock()
				defer mu.Unlock()
				return queue.RateGrant{Batches: refuse.IntN(len(batches) + 1), Left: refuse.IntN(5), Wait: time.Millisecond}, nil
			}
			s := p.add(Queue{Rules: of, AskGroups: g.ask, Rate: rate}, func(_ context.Context, b *lowkiq.Batch) error {
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
				p.runners[s.Shard].queue.TendGroups()
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

// TestGroupsOfAHandler: a handler holds a group back; others of the batch go on at once, and a prefix that is no group holds nothing.
func TestGroupsOfAHandler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		by     string
		answer lowkiq.Limit
		b, a   time.Duration // when b:1 and a:1 run
	}{
		"its group":    {":", lowkiq.Limit{Prefix: "a:", For: time.Minute}, 0, time.Minute},
		"those of all": {":", lowkiq.Limit{For: time.Minute}, time.Minute, time.Minute},
		"no group":     {":", lowkiq.Limit{Prefix: "a:1", For: time.Minute}, time.Minute, time.Minute},
		"another one":  {":", lowkiq.Limit{Prefix: "c:", For: time.Minute}, time.Minute, time.Minute},
		"no rule":      {"", lowkiq.Limit{Prefix: "a:", For: time.Minute}, time.Minute, time.Minute},
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
			s := p.add(Queue{Rules: Rules{BatchSize: 2, Groups: by}, AskGroups: g.ask}, func(_ context.Context, b *lowkiq.Batch) error {
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
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for id, want := range map[string]time.Duration{"a:1": c.a, "b:1": c.b} {
				if d := at[id]; d < want || d > want+time.Second || at[id] == 0 {
					t.Errorf("%s: %s ran after %s, want %s", name, id, d, want)
				}
			}
			if _, stopped := g.stops["a:"]; stopped != (name == "its group" || name == "those of all") {
				t.Errorf("%s: redis was told to stop %v", name, g.stops)
			}
			if _, stopped := g.stops["c:"]; stopped != (name == "another one") {
				t.Errorf("%s: redis was told to stop %v", name, g.stops)
			}
		})
	}
}

// TestGroupsOfLongCalls: a node whose calls have never ended asks the more seldom the longer others use all of a group, and still lets
// one begin soon after there is room.
func TestGroupsOfLongCalls(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var others, asked, ran atomic.Int64
		others.Store(2)
		ask := func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
			asked.Add(1)
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.answer(r, int(others.Load()))
		}
		of := Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}
		s := p.add(Queue{Rules: of, AskGroups: ask}, func(context.Context, *lowkiq.Batch) error { ran.Store(time.Now().UnixNano()); return nil })
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

// TestGroupsOfCallsThatHang: calls were short, and now none ends: those that wait do not ask at the old pace until one does.
func TestGroupsOfCallsThatHang(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var asked atomic.Int64
		ask := func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
			asked.Add(1)
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.answer(r, 1)
		}
		of := Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}
		hang, over := "", make(chan struct{})
		s := p.add(Queue{Rules: of, AskGroups: ask}, func(_ context.Context, batch *lowkiq.Batch) error {
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

// TestGroupsUntold: what Redis may have granted, and nobody has heard of, is told it also if no lane asks again.
func TestGroupsUntold(t *testing.T) {
	t.Parallel()
	var told []queue.GroupWant
	answer := errors.New("no answer")
	q := NewQueue(Queue{Rules: Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}, AskGroups: func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
		told = r.Groups
		return make([]queue.GroupGrant, len(r.Groups)), answer
	}})
	a := &groupAsk{ids: []string{"a:1"}, groups: []string{"a:"}, done: make(chan struct{})}
	if !q.live.groups.ask(a) {
		t.Fatal("the first one to ask sends nothing")
	}
	q.sendGroups()
	if <-a.done; a.err == nil {
		t.Error("got no error")
	}
	told, answer = nil, nil
	q.TendGroups()
	if len(told) != 1 || told[0] != (queue.GroupWant{Group: "a:"}) {
		t.Errorf("told %+v, want that none of a: is in a call", told)
	}
	told = nil
	if q.TendGroups(); told != nil {
		t.Errorf("told %+v again", told)
	}
}

// TestGroupsFailedRequest: a lane that asks while a request is on its way that fails has an answer, too, though nobody tends the
// groups or asks again: an instance that ends waits for its lanes.
func TestGroupsFailedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Queue{
			Rules: Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}},
			AskGroups: func(*queue.GroupRequest) ([]queue.GroupGrant, error) {
				time.Sleep(time.Second)
				return nil, errors.New("no answer")
			},
		})
		var asks []*groupAsk
		for i := range 3 {
			a := &groupAsk{ids: []string{fmt.Sprint("a:", i)}, groups: []string{"a:"}, done: make(chan struct{})}
			if q.live.groups.ask(a) {
				go q.sendGroups()
				synctest.Wait()
			}
			asks = append(asks, a)
		}
		time.Sleep(time.Minute)
		for i, a := range asks {
			select {
			case <-a.done:
				if a.err == nil {
					t.Errorf("lane %d: got no error, want that of the request", i)
				}
			default:
				t.Errorf("lane %d waits for ever", i)
			}
		}
	})
}

// TestGroupsWaitForARate: a lane that waits for the rate of its queue keeps nothing meanwhile of what its ids were granted, and asks
// for that again.
func TestGroupsWaitForARate(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{keepGroups / 10, time.Minute} {
		calmly(t, 4, func(t *testing.T, p *process) {
			g := newGroupsOfOne(t, func() bool { return false })
			asked, runs := 0, 0
			rate := func(_ context.Context, batches []int) (queue.RateGrant, error) {
				if asked++; asked == 1 {
					return queue.RateGrant{Wait: wait}, nil
				}
				return queue.RateGrant{Batches: len(batches), Left: 10}, nil
			}
			of := Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}, Limit: rules.Limit{Rate: rules.Rate{N: 1, Per: time.Minute}, Burst: 1}}
			s := p.add(Queue{Rules: of, AskGroups: g.ask, Rate: rate}, func(context.Context, *lowkiq.Batch) error {
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
			if kept := g.held["a:"] == 1; kept != (wait < keepGroups) {
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

// TestGroupsOfALargeBatch: no request is about more groups than a script may look at.
func TestGroupsOfALargeBatch(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var runs atomic.Int32
		ask := func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
			if len(r.Groups) > queue.GroupsAtOnce {
				t.Errorf("a request about %d groups, at most %d may be", len(r.Groups), queue.GroupsAtOnce)
			}
			grants := make([]queue.GroupGrant, len(r.Groups))
			for i, w := range r.Groups {
				grants[i] = queue.GroupGrant{Back: w.Back, New: w.New}
			}
			return grants, nil
		}
		s := p.add(Queue{Rules: Rules{BatchSize: 1000, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}, AskGroups: ask}, func(_ context.Context, b *lowkiq.Batch) error {
			runs.Add(int32(len(b.Jobs)))
			return nil
		})
		p.runners[s.Shard].queue.live.rules.Load().Prefetch = 1000
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

// TestGroupsOfARuleThatChanges: Redis learns what of a group is in calls by the rule that holds, also if that came while it was asked by
// the one before: else others might wait for calls that have ended.
func TestGroupsOfARuleThatChanges(t *testing.T) {
	t.Parallel()
	var q *Queue
	var told []queue.GroupRequest
	before := Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}
	q = NewQueue(Queue{Rules: before, AskGroups: func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
		if told = append(told, *r); len(told) == 1 {
			after := before
			after.Groups.Limit = rules.Limit{Rate: rules.Rate{N: 1, Per: time.Second}, Burst: 1}
			q.Change(after, 0)
			return []queue.GroupGrant{{New: 1}}, nil
		}
		return make([]queue.GroupGrant, len(r.Groups)), nil
	}})
	a := &groupAsk{ids: []string{"a:1"}, groups: []string{"a:"}, done: make(chan struct{})}
	q.live.groups.ask(a)
	q.sendGroups()
	<-a.done
	q.TendGroups()
	if n := len(told); n != 2 || told[1].Limit.Concurrency != 0 || len(told[1].Groups) != 1 || told[1].Groups[0].Busy != 1 {
		t.Errorf("told %+v, want a second time, by the rule of now", told)
	}
}

// TestGroupsMeanCall: what was granted and had no call says nothing of how long calls take, by which ids are told when to ask again.
func TestGroupsMeanCall(t *testing.T) {
	t.Parallel()
	g, limit := groups{busy: map[string]int{"a:": 9}}, rules.Limit{Concurrency: 1}
	for _, took := range []time.Duration{80 * time.Millisecond, 0, 0, 80 * time.Millisecond} {
		g.end([]string{"a:"}, took, limit)
	}
	if g.took != 80*time.Millisecond {
		t.Errorf("a mean of %s, want 80ms", g.took)
	}
}

// TestGroupsLetOthersPass: a backlog of a group at its limit goes back together, and does not keep those that came after it waiting for a
// request of each of its ids.
func TestGroupsLetOthersPass(t *testing.T) {
	t.Parallel()
	calmly(t, 2, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		began := time.Now()
		var other atomic.Int64
		of := Rules{BatchSize: 1, ShardConcurrency: 2, Prefetch: 100, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}
		s := p.add(Queue{Rules: of, AskGroups: g.ask}, func(_ context.Context, b *lowkiq.Batch) error {
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
