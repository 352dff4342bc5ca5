package node

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/days"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestDaysAreWhatHandlersWroteDown compares the figures of two nodes, one after the other, with the records of their handlers.
// Between them are a drain and a restart of Redis with its append-only file.
func TestDaysAreWhatHandlersWroteDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Durable...)
	p := open(t, server.URL(), 4)
	calls := make(chan bool, 1000)
	var failed sync.Map
	handle := func(_ context.Context, b *lowkiq.Batch) error {
		_, before := failed.LoadOrStore(b.Jobs[0].ID, true)
		fails := !before && strings.HasPrefix(b.Jobs[0].ID, "bad")
		calls <- fails
		if fails {
			return errBoom
		}
		return nil
	}
	rules := QueueConfig{Shards: 4, Rules: rules.Rules{BatchSize: 1}, RetryFunc: func(int) time.Duration { return 0 }}
	one := start(t, Config{Redis: server.URL(), Name: "n1"}, rules, handle).serving()
	p.ids("a", 20)
	p.ids("bad", 5)
	p.drained()
	one.stop() // which writes
	two := start(t, Config{Redis: server.URL(), Name: "n2"}, rules, handle).serving()
	p.ids("b", 30)
	p.drained()
	server.Restart()
	p.ids("c", 10)
	p.drained()
	two.stop()

	wantRuns, wantFailed := len(calls), 0
	for range wantRuns {
		if <-calls {
			wantFailed++
		}
	}
	sum, _ := sumOfDays(t, p)
	if sum.Run.Count() != uint64(wantRuns) || sum.Failed != uint64(wantFailed) || sum.Retried != sum.Failed || sum.Buried != 0 ||
		sum.Wait.Count() != uint64(wantRuns) || wantFailed != 5 || sum.Processed != 65 {
		t.Errorf("handlers wrote down %d runs, %d failed; the days say %+v", wantRuns, wantFailed, sum)
	}
	if math.IsNaN(sum.Run.Deviation()) || sum.Run.Percentile(.5) <= 0 {
		t.Errorf("deviation %v, p50 %v", sum.Run.Deviation(), sum.Run.Percentile(.5))
	}
	t.Run("a deleted queue loses its days", func(t *testing.T) {
		if _, err := remove.Delete(t.Context(), p.client, "orders", remove.Deletion{Handled: func(context.Context) ([]string, error) { return nil, nil }}); err != nil {
			t.Fatal(err)
		}
		if found, err := days.Read(t.Context(), p.client, days.Days, days.Kept, "orders"); err != nil || len(found) > 0 {
			t.Errorf("got %+v, %v", found, err)
		}
	})
}

// sumOfDays adds up what the days say of the queue.
func sumOfDays(t *testing.T, p *producer) (sum days.Figures, byDay map[string]days.Figures) {
	t.Helper()
	found, err := days.Read(t.Context(), p.client, days.Days, 3, "orders")
	if err != nil {
		t.Fatal(err)
	}
	byDay = map[string]days.Figures{}
	for _, day := range found {
		sum, byDay[day.Period] = addFigures(sum, day.Figures), day.Figures
		if day.Unreadable > 0 {
			t.Errorf("%s: %d counts cannot be read", day.Period, day.Unreadable)
		}
	}
	return sum, byDay
}

func addFigures(f, g days.Figures) days.Figures {
	durations := func(x, y days.Durations) (sum days.Durations) {
		sum.Counts, sum.Sum, sum.Squares = map[int]uint64{}, x.Sum+y.Sum, x.Squares+y.Squares
		for _, d := range []days.Durations{x, y} {
			for k, n := range d.Counts {
				sum.Counts[k] += n
			}
		}
		return sum
	}
	return days.Figures{
		Run: durations(f.Run, g.Run), Wait: durations(f.Wait, g.Wait),
		Processed: f.Processed + g.Processed, Failed: f.Failed + g.Failed, Retried: f.Retried + g.Retried,
		Buried: f.Buried + g.Buried, Pushed: f.Pushed + g.Pushed,
	}
}

// TestDaysOfTwoNodes compares the figures of two nodes at once with the records of their handlers and with the pushes. A node
// is drained meanwhile.
func TestDaysOfTwoNodes(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 20)
	var mu sync.Mutex
	runs, failed := map[string]uint64{}, map[string]bool{} // by node, by id
	member := func(name string) *running {
		handle := func(_ context.Context, b *lowkiq.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			runs[name]++
			id := b.Jobs[0].ID
			if strings.HasPrefix(id, "bad") && !failed[id] {
				failed[id] = true
				return errBoom
			}
			return nil
		}
		rules := QueueConfig{Name: "orders", Shards: 20, Rules: rules.Rules{BatchSize: 1}, RetryFunc: func(int) time.Duration { return 0 }}
		return startQueues(t, Config{Name: name, Redis: url, Bind: "127.0.0.1:0", TTL: 6 * time.Second}, func(n *Node) error {
			return n.Handle(rules, lowkiq.HandlerFunc(handle))
		})
	}
	one, two := member("n1"), member("n2")
	awaitSpread(t, []int{10, 10}, one, two)
	pushing, err := protocol.Open(protocol.Config{Redis: url, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer pushing.Close()
	push := func(prefix string, n int) {
		t.Helper()
		var jobs []lowkiq.Push
		for i := range n {
			jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint(prefix, i)})
		}
		if _, err := pushing.Push(t.Context(), "orders", jobs...); err != nil {
			t.Fatal(err)
		}
	}
	push("a", 200)
	push("bad", 20)
	await(t, "both have run something", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return runs["n1"] > 0 && runs["n2"] > 0
	})
	one.setDrained(true)
	push("b", 200)
	awaitSpread(t, []int{0, 20}, one, two)
	push("c", 30)
	p.drained()
	one.stop()
	two.stop()
	if err := pushing.Close(); err != nil {
		t.Fatal(err)
	}
	sum, _ := sumOfDays(t, p)
	if got, want := sum.Run.Count(), runs["n1"]+runs["n2"]; got != want || sum.Wait.Count() != want || sum.Failed != uint64(len(failed)) ||
		sum.Retried != sum.Failed || sum.Processed != want-sum.Failed || sum.Pushed != 450 {
		t.Errorf("handlers wrote down %v runs, %d failed, of 450 pushes; the days say %+v", runs, len(failed), sum)
	}
	if runs["n1"] == 0 || runs["n2"] == 0 || len(failed) != 20 {
		t.Errorf("runs %v, %d failed: the test would show little", runs, len(failed))
	}
}

// TestDaysAtMidnight checks that jobs and pushes from before midnight of Redis's clock count for that day, and later ones for
// the next day, even in the first seconds of a node and a program.
func TestDaysAtMidnight(t *testing.T) {
	t.Parallel()
	for _, lead := range []time.Duration{4 * time.Second, 20 * time.Second, time.Minute} { // more where the machine is slow
		if daysAtMidnight(t, lead) {
			return
		}
	}
	t.Error("a node and 20 jobs took more than a minute")
}

func daysAtMidnight(t *testing.T, lead time.Duration) (inTime bool) {
	server, clock := redistest.StartClocked(t)
	p := open(t, server.URL(), 4)
	now := func() time.Time {
		at, err := p.client.Time(t.Context())
		if err != nil {
			t.Error(err)
		}
		return at.UTC()
	}
	today := now()
	midnight := today.Truncate(24 * time.Hour).Add(24 * time.Hour)
	clock.Set(midnight.Add(-lead).Sub(today))
	var mu sync.Mutex
	noted := map[string]uint64{}
	handle := func(context.Context, *lowkiq.Batch) error {
		at := now().Format(redisdb.Days)
		mu.Lock()
		defer mu.Unlock()
		noted[at]++
		return nil
	}
	push := func(prefix string, n int) {
		one := open(t, server.URL(), 4)
		one.ids(prefix, n)
		if err := one.client.Close(); err != nil {
			t.Fatal(err)
		}
	}
	node := start(t, Config{Redis: server.URL()}, QueueConfig{Shards: 4, Rules: rules.Rules{BatchSize: 1}}, handle).serving()
	push("before", 20)
	p.drained()
	if now().After(midnight.Add(-500 * time.Millisecond)) {
		node.stop()
		return false
	}
	await(t, "the day before is written", func() bool {
		sum, _ := sumOfDays(t, p)
		return sum.Run.Count() == 20 && now().After(midnight)
	})
	push("after", 10)
	p.drained()
	node.stop()
	_, byDay := sumOfDays(t, p)
	before, after := midnight.Add(-time.Second).Format(redisdb.Days), midnight.Format(redisdb.Days)
	for day, want := range map[string]uint64{before: 20, after: 10} {
		if got := byDay[day]; noted[day] != want || got.Run.Count() != want || got.Processed != want || got.Pushed != want || got.Wait.Count() != want {
			t.Errorf("%s: handlers wrote down %d runs of %d pushes; the day says %+v", day, noted[day], want, got)
		}
	}
	return true
}
