package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// together counts calls at once, and when ids were handed out.
type together struct {
	mu    sync.Mutex
	now   int
	most  int
	times []time.Time // of each id
	long  time.Duration
	meet  int // the first calls last until there were so many at once
}

func (c *together) handle(ctx context.Context, b *lowkiq.Batch) error {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	for range b.Jobs {
		c.times = append(c.times, time.Now())
	}
	c.mu.Unlock()
	for work := c.long; work > 0 && ctx.Err() == nil; {
		select {
		case <-time.After(work):
		case <-ctx.Done():
		}
		c.mu.Lock()
		if work = 0; c.most < c.meet {
			work = time.Millisecond
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	return context.Cause(ctx)
}

func (c *together) handed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.times)
}

// cluster3 starts three nodes with the same queue.
func cluster3(t testing.TB, redis string, rules QueueConfig, handle lowkiq.HandlerFunc) (all []*running) {
	t.Helper()
	for i := range 3 {
		all = append(all, start(t, Config{Redis: redis, Name: fmt.Sprint("n", i+1), Bind: "127.0.0.1:0", TTL: 15 * time.Second, Concurrency: 50}, rules, handle))
	}
	for _, run := range all {
		await(t, "each node has shards", func() bool { return run.instance() != nil && len(run.instance().claims.All()) > 0 })
	}
	return all
}

// TestLimitOfCalls checks that never more calls run at once in the whole cluster than the limit, and as many while there is
// work.
func TestLimitOfCalls(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 12)
	calls := &together{long: 2 * time.Millisecond, meet: 4}
	all := cluster3(t, srv.URL(), QueueConfig{Shards: 12, Rules: rules.Rules{Limit: rules.Limit{Concurrency: 4}}}, calls.handle)
	p.ids("a", 600)
	await(t, "half of it is done", func() bool { return calls.handed() > 300 })
	all[2].stop() // a drain: what it held is free
	await(t, "all is done", func() bool { return p.counts().Ready+p.counts().InFlight == 0 })
	if calls.most != 4 {
		t.Errorf("%d calls at once, want 4 and no more", calls.most)
	}
	// At run time: two, and a node alone has both.
	p.set(rules.Change{}, "limit", `{"concurrency":2}`)
	for _, run := range all[:2] {
		run.renew()
	}
	calls.mu.Lock()
	calls.most, calls.meet = 0, 2
	calls.mu.Unlock()
	p.ids("b", 100)
	await(t, "all is done", func() bool { return p.counts().Ready+p.counts().InFlight == 0 })
	if calls.most != 2 {
		t.Errorf("%d calls at once, want 2 and no more", calls.most)
	}
	calls.mu.Lock()
	calls.meet = 0
	calls.mu.Unlock()
	p.set(rules.Change{}, "limit", `"none"`)
	for _, run := range all[:2] {
		run.renew()
	}
	p.ids("c", 100)
	await(t, "all is done", func() bool { return p.counts().Ready+p.counts().InFlight == 0 })
}

// TestLimitThatChanges checks that a changed limit of calls reaches waiting lanes on two nodes. On an idle machine that takes
// less than two seconds.
func TestLimitThatChanges(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 12)
	var mu sync.Mutex
	now, release := map[string]int{}, make(chan struct{})
	change := func(node string, by int) {
		mu.Lock()
		defer mu.Unlock()
		now[node] += by
	}
	calls := func() (all int) {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range now {
			all += n
		}
		return all
	}
	for _, name := range []string{"n1", "n2"} {
		run := start(t, Config{Redis: srv.URL(), Name: name, Bind: "127.0.0.1:0", TTL: 6 * time.Second, Concurrency: 50},
			QueueConfig{Shards: 12, Rules: rules.Rules{Limit: rules.Limit{Concurrency: 2}}}, func(ctx context.Context, _ *lowkiq.Batch) error {
				change(name, 1)
				defer change(name, -1)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return context.Cause(ctx)
			})
		await(t, "the node has shards", func() bool { return run.instance() != nil && len(run.instance().claims.All()) > 0 })
		if name == "n2" {
			await(t, "each has half of the shards", func() bool { return len(run.instance().claims.All()) == 6 })
		}
	}
	p.ids("a", 200)
	await(t, "two calls run, and other ids wait", func() bool { return calls() == 2 })
	at := time.Now()
	p.set(rules.Change{}, "limit", `{"concurrency":10}`)
	await(t, "ten calls run", func() bool { return calls() == 10 })
	t.Logf("a higher limit was reached after %s", time.Since(at))
	at = time.Now()
	p.set(rules.Change{}, "limit", `"none"`)
	await(t, "each shard has a call", func() bool { return calls() == 12 })
	t.Logf("no limit was in force after %s", time.Since(at))
	mu.Lock()
	if now["n1"] != 6 || now["n2"] != 6 {
		t.Errorf("calls by node: %v, want 6 on each", now)
	}
	mu.Unlock()
	close(release)
	await(t, "all is done", func() bool { return p.counts().Ready+p.counts().InFlight == 0 })
}

// TestLimitOfARate checks that no more ids are handed out in any period in the whole cluster than the rate and burst allow,
// also in batches.
func TestLimitOfARate(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 12)
	calls := &together{long: time.Millisecond}
	const rate, burst = 200, 10
	cluster3(t, srv.URL(), QueueConfig{Shards: 12, Rules: rules.Rules{BatchSize: 3, Limit: rules.Limit{Concurrency: 3, Rate: rules.Rate{N: rate, Per: time.Second}, Burst: burst}}}, calls.handle)
	p.ids("a", 300)
	await(t, "all is done", func() bool { return p.counts().Ready+p.counts().InFlight == 0 })
	slices.SortFunc(calls.times, time.Time.Compare)
	// A handler may begin some time after its ids were taken from the rate: as much as a busy machine takes.
	const late = 300 * time.Millisecond
	for i, from := range calls.times {
		for n, at := range calls.times[i:] {
			if most := burst + int((at.Sub(from)+late).Seconds()*rate) + 1; n+1 > most {
				t.Fatalf("%d ids in %s, at most %d are allowed", n+1, at.Sub(from), most)
			}
		}
	}
}

// TestLimitWithoutLease checks that an instance that asks for a limit and learns that its lease is gone ends at once, and not
// with the next renewal. Other instances may have its permits. It is no fault that people must mend.
func TestLimitWithoutLease(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]QueueConfig{
		"calls":  {Rules: rules.Rules{Limit: rules.Limit{Concurrency: 1}}},
		"groups": {Rules: rules.Rules{Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 1)
			var log lines
			begun := time.Now()
			const ttl = 2 * time.Minute // its first renewal is late
			r := start(t, Config{Redis: srv.URL(), TTL: ttl, Log: slog.New(slog.NewTextHandler(&log, nil))}, cfg, nothing).serving()
			p.ids("a:", 1)
			p.drained()
			first := r.instance()
			if err := p.client.Leases().Drop(t.Context(), first.name); err != nil {
				t.Fatal(err)
			}
			for i := 0; !first.keeper.Ended(); i++ {
				p.ids(fmt.Sprint("a:", i, "-"), 1)
				if time.Since(begun) > ttl/6 {
					t.Fatal("the instance goes on until its next renewal")
				}
				time.Sleep(10 * time.Millisecond) // between two pushes
			}
			p.drained()
			if log.has("level=ERROR") {
				t.Errorf("the log tells of an error, want none:\n%s", log.String())
			}
		})
	}
}

// TestPermitsAgain checks that nodes together ask for permits at most some thousand times a second, however many nodes there
// are and however small the limit is. The node that is next asks at once.
func TestPermitsAgain(t *testing.T) {
	for _, limit := range []int{1, 5, 20, 200, 2000} {
		for _, askers := range []int{2, 10, 100, 1000, 5000} {
			sum := 0.0
			for i := range askers {
				grant := protocol.PermitGrant{May: max(1, limit/askers), Lack: true, Askers: askers}
				if i >= limit { // it waits
					grant.May, grant.Before = 0, i-limit
				}
				again := permitsAgain(grant, limit)
				if again < maxAskPause || again > maxAgainPause {
					t.Errorf("%d of %d permits wanted, %d before it: asks again after %s", askers, limit, grant.Before, again)
				}
				sum += 1 / again.Seconds()
			}
			if most := 4000 + float64(max(0, askers-1000)); sum > most {
				t.Errorf("%d instances that want %d permits ask %.0f times a second, want %.0f at most", askers, limit, sum, most)
			}
		}
	}
}
