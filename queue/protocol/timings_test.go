package protocol_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/timings"
)

var timingTests = []testCase{{"Timings", testPublishedTimings}, {"Timings_Busiest", testTimingsBusiest}}

// timingOf returns the figures of n calls below a second.
func timingOf(n uint64) timings.Minute {
	h := timings.Histogram{Counts: map[int]uint64{0: n}, Sum: float64(n)}
	if n == 0 {
		delete(h.Counts, 0)
	}
	return timings.Minute{Handler: h, Wait: h}
}

// testPublishedTimings checks that every client sees the sum of the figures that all instances publish.
func testPublishedTimings(t *testing.T, b *backend) {
	c := b.open(t)
	ctx := t.Context()
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func() map[string]timings.Minute {
		t.Helper()
		all, err := timings.Read(ctx, c)
		no(err)
		return all
	}
	eq(t, "no instances", len(read()), 0)
	for _, name := range []string{"a", "b", "idle", "broken"} {
		_, err := c.Leases().Take(ctx, name, []byte("{}"), []byte("{}"), time.Minute)
		no(err)
	}
	eq(t, "nothing published", len(read()), 0)
	no(timings.Publish(ctx, c, "a", map[string]timings.Minute{"orders": timingOf(5), "mail": timingOf(1)}))
	no(timings.Publish(ctx, c, "b", map[string]timings.Minute{"orders": timingOf(7), "odd": {}}))
	no(timings.Publish(ctx, c, "stranger", map[string]timings.Minute{"orders": timingOf(100)}))
	no(c.DB().ForTests().Set(ctx, c.DB().Keys.Timings("broken"), `{"orders":{"handler":{"n":{"999999":1}},"wait":{"n":{"1":1}}}}`, 0).Err())
	all := read()
	eq(t, "queues", len(all), 2)
	eq(t, "orders", all["orders"].Handler.Count(), uint64(12))
	eq(t, "their sum", all["orders"].Wait.Sum, 12.0)
	eq(t, "mail", all["mail"].Wait.Count(), uint64(1))
	if left, err := c.DB().ForTests().PTTL(ctx, c.DB().Keys.Timings("a")).Result(); err != nil || left <= 0 || left > time.Minute {
		t.Errorf("expiry: got %s, %v, want at most a minute", left, err)
	}
}

func testTimingsBusiest(t *testing.T, b *backend) {
	c := b.open(t)
	if _, err := c.Leases().Take(t.Context(), "a", []byte("{}"), []byte("{}"), time.Minute); err != nil {
		t.Fatal(err)
	}
	many := map[string]timings.Minute{}
	for i := range 120 {
		many[fmt.Sprint("q", i)] = timingOf(uint64(i))
	}
	if err := timings.Publish(t.Context(), c, "a", many); err != nil {
		t.Fatal(err)
	}
	all, err := timings.Read(t.Context(), c)
	if err != nil || len(all) != 100 {
		t.Fatalf("got %d queues, %v, want the 100 busiest", len(all), err)
	}
	for i := range 120 {
		if _, there := all[fmt.Sprint("q", i)]; there != (i >= 20) {
			t.Errorf("q%d: got %v, want %v", i, there, i >= 20)
		}
	}
}
