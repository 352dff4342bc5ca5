package node

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/days"
)

// TestDaysAreWhatHandlersWroteDown: sums of two nodes, one after the other, of a drain and a restart of Redis with its
// append-only file equal what handlers wrote down.
func TestDaysAreWhatHandlersWroteDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
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
	rules := QueueConfig{Shards: 4, BatchSize: 1, RetryIn: func(int) time.Duration { return 0 }}
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
	found, err := days.Read(t.Context(), p.client, days.Days, 2, "orders")
	if err != nil {
		t.Fatal(err)
	}
	var sum days.Figures
	for _, day := range found { // two if it is midnight
		sum = sum.Add(day.Figures)
	}
	if sum.Run.Count() != uint64(wantRuns) || sum.Failed != uint64(wantFailed) || sum.Retried != sum.Failed || sum.Buried != 0 ||
		sum.Wait.Count() != uint64(wantRuns) || wantFailed != 5 || sum.Processed != 65 {
		t.Errorf("handlers wrote down %d runs, %d failed; the days say %+v", wantRuns, wantFailed, sum)
	}
	if math.IsNaN(sum.Run.Deviation()) || sum.Run.Percentile(.5) <= 0 {
		t.Errorf("deviation %v, p50 %v", sum.Run.Deviation(), sum.Run.Percentile(.5))
	}
	t.Run("a deleted queue loses its days", func(t *testing.T) {
		if _, err := p.client.Registry().Delete(t.Context(), "orders", queue.Deletion{Handled: func(context.Context) ([]string, error) { return nil, nil }}); err != nil {
			t.Fatal(err)
		}
		if found, err := days.Read(t.Context(), p.client, days.Days, days.Kept, "orders"); err != nil || len(found) > 0 {
			t.Errorf("got %+v, %v", found, err)
		}
	})
}

// TestDaysAreJoined: what processes have written and do not write any more becomes one, by two that join at once, and the sums
// stay what they were; a process whose part was joined goes on in another one.
func TestDaysAreJoined(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	p := open(t, server.URL(), 4)
	handle := func(context.Context, *lowkiq.Batch) error { return nil }
	rules := QueueConfig{Shards: 4, BatchSize: 1}
	for i := range 5 {
		n := start(t, Config{Redis: server.URL(), Name: fmt.Sprint("n", i)}, rules, handle).serving()
		p.ids(fmt.Sprint("r", i, "-"), 10)
		p.drained()
		n.stop()
	}
	db := p.client.DB()
	sum := func() (fields int, runs uint64, joined bool) {
		t.Helper()
		found, err := days.Read(t.Context(), p.client, days.Days, 2, "orders")
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range found {
			runs += day.Figures.Run.Count()
			reply, err := db.Do(t.Context(), "read a day", "HKEYS", db.Keys.Day("orders", day.Period))
			if err != nil {
				t.Fatal(err)
			}
			names := redisdb.Texts(reply)
			fields += len(names)
			joined = joined || slices.Contains(names, "joined")
		}
		return fields, runs, joined
	}
	if fields, runs, _ := sum(); fields < 5 || runs != 50 {
		t.Fatalf("got %d parts, %d runs, want 5 and 50", fields, runs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var joining sync.WaitGroup
	for range 2 {
		n, err := New(Config{Redis: server.URL(), Name: "idle", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		joining.Go(func() { n.joinDays(ctx, time.Millisecond) })
	}
	defer joining.Wait()
	defer cancel()
	for _, later := range []struct {
		off  time.Duration
		most int
	}{{3 * time.Minute, 12}, {70 * time.Minute, 2}} { // a sum and marks; a sum alone, of two days if it is midnight
		clock.Set(later.off)
		await(t, fmt.Sprint("one sum after ", later.off), func() bool {
			fields, runs, joined := sum()
			if runs != 50 {
				t.Fatalf("after %s: got %d runs, want 50", later.off, runs)
			}
			return joined && fields <= later.most
		})
	}
}
