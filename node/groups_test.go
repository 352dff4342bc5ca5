package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// byGroup counts ids in calls, and when they were handed out, by group.
type byGroup struct {
	mu    sync.Mutex
	now   map[string]int
	most  map[string]int
	times map[string][]time.Time
	long  time.Duration
	meet  map[string]int // the first calls of a group last until so many of its ids were in calls at once
}

func newByGroup(long time.Duration) *byGroup {
	return &byGroup{now: map[string]int{}, most: map[string]int{}, times: map[string][]time.Time{}, long: long}
}

func (c *byGroup) add(b *lowkiq.Batch, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, job := range b.Jobs {
		group := rules.Groups{By: ":"}.Of(job.ID)
		c.now[group] += n
		c.most[group] = max(c.most[group], c.now[group])
		if n > 0 {
			c.times[group] = append(c.times[group], time.Now())
		}
	}
}

func (c *byGroup) handle(ctx context.Context, b *lowkiq.Batch) error {
	c.add(b, 1)
	c.awaitOthers(ctx, rules.Groups{By: ":"}.Of(b.Jobs[0].ID))
	select {
	case <-time.After(c.long): // the work
	case <-ctx.Done():
	}
	c.add(b, -1)
	return context.Cause(ctx)
}

func (c *byGroup) awaitOthers(ctx context.Context, group string) {
	for {
		c.mu.Lock()
		met := c.most[group] >= c.meet[group]
		c.mu.Unlock()
		if met {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// TestLimitOfGroups checks that no group has more ids in calls than its limit in the whole cluster. Other groups, and ids
// without a group, are not limited. Waiting ids come one after the other, and not all at once.
func TestLimitOfGroups(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 12)
	calls := newByGroup(10 * time.Millisecond)
	calls.meet = map[string]int{"": 4} // which a limit of 2 would not let happen
	all := cluster3(t, srv.URL(), QueueConfig{Shards: 12, Rules: rules.Rules{BatchSize: 3, ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}}, calls.handle)
	p.ids("a:", 150)
	p.ids("b:", 20)
	p.ids("free", 200)
	await(t, "all is done", func() bool { c := p.counts(); return c.Ready+c.InFlight+c.Scheduled == 0 })
	calls.mu.Lock()
	defer calls.mu.Unlock()
	if calls.most["a:"] > 2 || calls.most["b:"] > 2 {
		t.Errorf("at once in calls: %v, want at most 2 of a group", calls.most)
	}
	a, b := calls.times["a:"], calls.times["b:"]
	if last := slices.MaxFunc(b, time.Time.Compare); !last.Before(slices.MaxFunc(a, time.Time.Compare)) {
		t.Errorf("20 ids of b: began until %s, 150 of a: before that, want each group at its own pace", last)
	}
	took := slices.MaxFunc(a, time.Time.Compare).Sub(slices.MinFunc(a, time.Time.Compare))
	refused := total(t, all, "lowkiq_jobs_postponed_total", "group")
	t.Logf("150 ids of 10 ms, 2 at once, took %s: %.0f%% of the limit; %.0f times one was put back", took, 100*150*0.01/2/took.Seconds(), refused)
	// A waiting id asks again at times, so a slow machine puts it back more often. If all that wait asked whenever a call
	// ends, they would be put back some 12,000 times.
	if want := 20 * 170 * max(1, took.Seconds()); refused > want {
		t.Errorf("%.0f times one was put back, of 170 that had to wait for %s, want at most %.0f", refused, took, want)
	}
}

// TestRateOfGroups checks that no more ids of a group are handed out in any period than its rate and burst allow.
func TestRateOfGroups(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 12)
	calls := newByGroup(time.Millisecond)
	const rate, burst = 100, 5
	all := cluster3(t, srv.URL(), QueueConfig{Shards: 12, Rules: rules.Rules{BatchSize: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Rate: rules.Rate{N: rate, Per: time.Second}, Burst: burst}}}}, calls.handle)
	p.ids("a:", 200)
	p.ids("b:", 50)
	await(t, "all is done", func() bool { c := p.counts(); return c.Ready+c.InFlight+c.Scheduled == 0 })
	calls.mu.Lock()
	defer calls.mu.Unlock()
	const late = 300 * time.Millisecond // a handler may begin some time after its ids were let go; queue's tests look more closely
	for group, times := range calls.times {
		slices.SortFunc(times, time.Time.Compare)
		for i, from := range times {
			for n, at := range times[i:] {
				if most := burst + int((at.Sub(from)+late).Seconds()*rate) + 1; n+1 > most {
					t.Fatalf("%s: %d ids in %s, at most %d are allowed", group, n+1, at.Sub(from), most)
				}
			}
		}
	}
	refused := total(t, all, "lowkiq_jobs_postponed_total", "group")
	a := calls.times["a:"]
	took := a[len(a)-1].Sub(a[0])
	t.Logf("200 ids at %d/s took %s: %.0f%% of the rate; %.0f times one was put back", rate, took, 100*195/rate/took.Seconds(), refused)
	if refused > 8*250 {
		t.Errorf("%.0f times one was put back, of 240 that had to wait, want a few times each", refused)
	}
}

// TestHandlerLimits checks that a handler can hold a group back, with ids that it has not seen. The order and the retries of
// the ids stay.
func TestHandlerLimits(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 3)
	var mu sync.Mutex
	limited, seen := map[string]int{}, map[string][]string{}
	until := time.Time{}
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 3, Rules: rules.Rules{BatchSize: 2, Groups: rules.Groups{By: ":"}}}, func(_ context.Context, b *lowkiq.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		failed := lowkiq.Failed{}
		for _, job := range b.Jobs {
			if strings.HasPrefix(job.ID, "a:") && (until.IsZero() || time.Now().Before(until)) {
				if limited[job.ID]++; until.IsZero() {
					until = time.Now().Add(900 * time.Millisecond)
				}
				failed[job.ID] = fmt.Errorf("asked too often: %w", lowkiq.Throttle{Prefix: "a:", For: time.Until(until) + 50*time.Millisecond})
				continue
			}
			if job.RetryCount != -1 {
				t.Errorf("%s has retry count %d, want none spent", job.ID, job.RetryCount)
			}
			seen[job.ID[:1]] = append(seen[job.ID[:1]], job.ID)
		}
		if len(failed) > 0 {
			return failed
		}
		return nil
	})
	p.ids("a:", 1)
	await(t, "the group is held back", func() bool { mu.Lock(); defer mu.Unlock(); return len(limited) > 0 })
	await(t, "redis knows", func() bool {
		g, err := p.client.Group(t.Context(), p.Name, "a:")
		return err == nil && !g.Till.IsZero() || time.Now().After(until)
	})
	p.ids("a:", 20)
	p.ids("b:", 20)
	await(t, "the others are done", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen["b"]) == 20 })
	waiting := ""
	await(t, "why says who holds it back", func() bool {
		why, err := run.Cluster().Why(t.Context(), p.Queue, "a:7")
		waiting = why.Reason
		return err == nil && strings.Contains(why.Reason, "a handler holds its group a: back for ") || time.Now().After(until)
	})
	if !strings.Contains(waiting, "holds its group a: back") && time.Now().Before(until) {
		t.Errorf("why says %q", waiting)
	}
	await(t, "all are done", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen["a"]) >= 20 })
	mu.Lock()
	defer mu.Unlock()
	if len(limited) > 2 {
		t.Errorf("%v reached the handler while their group was held back, want the first batch only", limited)
	}
	await(t, "a:3 is acknowledged", func() bool {
		_, found, err := browse.Of(p.Queue).Job(t.Context(), "a:3")
		return err == nil && !found
	})
}

// TestGroupsThatChange checks that a change of the rule groups reaches ids that wait by the old rule. An owner that claims
// their shard under another rule also makes them due. Ids that their handler has postponed wait on.
func TestGroupsThatChange(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"corrected", "taken away", "corrected while no node runs"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 2)
			var mu sync.Mutex
			done := map[string]bool{}
			handle := func(_ context.Context, b *lowkiq.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				failed := lowkiq.Failed{}
				for _, job := range b.Jobs {
					if done[job.ID] = true; job.ID == "busy" {
						failed[job.ID] = lowkiq.Postpone{After: time.Hour}
					}
				}
				return failed
			}
			count := func() int { mu.Lock(); defer mu.Unlock(); return len(done) }
			slow := QueueConfig{Shards: 2, Rules: rules.Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Rate: rules.Rate{N: 1, Per: time.Hour}}}}}
			run := start(t, Config{Redis: srv.URL()}, slow, handle).serving()
			p.push(lowkiq.Push{ID: "busy"})
			p.ids("a:", 20)
			await(t, "all but one wait", func() bool { c := p.counts(); return count() == 2 && c.Scheduled == 20 && c.Ready+c.InFlight == 0 })
			switch how {
			case "corrected":
				p.set(rules.Change{}, "groups", `{"by":":","rate":"1000/s"}`)
				run.renew()
			case "taken away":
				p.set(rules.Change{}, "groups", `"none"`)
				run.renew()
			default:
				run.stop()
				slow.Groups.Rate = rules.Rate{N: 1000, Per: time.Second}
				start(t, Config{Redis: srv.URL()}, slow, handle).serving()
			}
			changed := time.Now()
			await(t, "all are done", func() bool { return count() == 21 })
			t.Logf("they ran within %s", time.Since(changed))
			if c := p.counts(); c.Scheduled != 1 {
				t.Errorf("got %+v, want that the one which its handler has postponed waits on", c)
			}
		})
	}
}

// TestGroupsThatChangeOnOneNodeFirst lets a node with the old rule groups ask for a group after another node has the new rule.
// The answer puts off ids of both nodes, which ask again once all nodes have the new rule.
func TestGroupsThatChangeOnOneNodeFirst(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	const late = "n2/X.1"
	if _, err := p.client.Leases().Take(t.Context(), late, []byte("{}"), []byte("{}"), time.Hour); err != nil {
		t.Fatal(err)
	}
	old := rules.Limit{Rate: rules.Rate{N: 1, Per: time.Hour}, Burst: 1}
	var calls atomic.Int64
	asked := make(chan error, 1)
	run := start(t, Config{Redis: srv.URL(), TTL: 6 * time.Second}, QueueConfig{Shards: 1, Rules: rules.Rules{Groups: rules.Groups{By: ":", Limit: old}}}, func(ctx context.Context, _ *lowkiq.Batch) error {
		if calls.Add(1) == 2 { // the first call by the new rule
			_, err := p.client.AskGroups(ctx, p.Name, &protocol.GroupRequest{Instance: late, Number: 1, Limit: old, Groups: []protocol.GroupWant{{Group: "a:", New: 5, Back: 5}}})
			asked <- err
		}
		return nil
	}).serving()
	p.ids("a:", 10)
	await(t, "all but one wait", func() bool { c := p.counts(); return calls.Load() == 1 && c.Scheduled == 9 && c.Ready+c.InFlight == 0 })
	p.set(rules.Change{}, "groups", `{"by":":","rate":"20/s","burst":1}`)
	run.renew()
	if err := receive(t, "an answer by the old rule", asked); err != nil {
		t.Fatal(err)
	}
	p.ids("a:more", 20)
	await(t, "all are done", func() bool { return calls.Load() >= 30 })
}

// TestGroupIsLetGo checks that people can release a group that its handler holds back.
func TestGroupIsLetGo(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	var calls, let atomic.Int64
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2, Rules: rules.Rules{Groups: rules.Groups{By: ":"}}}, func(context.Context, *lowkiq.Batch) error {
		if calls.Add(1); let.Load() == 0 {
			return lowkiq.Throttle{For: time.Hour}
		}
		return nil
	}).serving()
	p.ids("a:", 5)
	var why status.Why
	await(t, "the group is held back", func() bool {
		var err error
		why, err = run.Cluster().Why(t.Context(), p.Queue, "a:3")
		return err == nil && strings.Contains(why.Reason, "hold --undo --prefix a:") && p.counts().Scheduled == 5
	})
	if stopped, err := p.LetGo(t.Context(), "b:"); stopped || err != nil {
		t.Errorf("another group: got %t, %v, want that nobody holds it", stopped, err)
	}
	let.Store(1)
	if stopped, err := p.LetGo(t.Context(), "a:"); !stopped || err != nil {
		t.Errorf("got %t, %v, want that it is let go", stopped, err)
	}
	await(t, "all are done", func() bool { return p.counts() == protocol.Counts{} })
}
