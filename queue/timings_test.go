package queue

import (
	"fmt"
	"math"
	"testing"
	"time"
)

var timingTests = []testCase{{"Timings", timings}, {"Timings_Busiest", timingsBusiest}}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		counts map[int]uint64
		p      float64
		want   float64
	}{
		{"nothing", nil, .5, math.NaN()},
		{"end of a bucket", map[int]uint64{0: 10}, 1, 1},
		{"middle of a bucket", map[int]uint64{8: 10}, .5, math.Exp2(15. / 16)},
		{"border of two", map[int]uint64{-8: 10, 16: 10}, .5, .5},
		{"end of the second", map[int]uint64{-8: 10, 16: 10}, 1, 4},
		{"only the last of a thousand is long", map[int]uint64{-80: 999, 88: 1}, .99, math.Exp2((-81 + 990./999) / 8)},
		{"and it is found", map[int]uint64{-80: 999, 88: 1}, 1, 2048},
	} {
		got := Histogram{Counts: c.counts}.Quantile(c.p)
		if math.Abs(got-c.want) > 1e-9*c.want || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestHistogramAdd(t *testing.T) {
	t.Parallel()
	x := Histogram{Counts: map[int]uint64{1: 1, 2: 2}, Sum: 9}
	y := Histogram{Counts: map[int]uint64{2: 10, -3: 1}, Sum: 1}
	eq(t, "both", fmt.Sprint(x.add(y)), "{map[-3:1 1:1 2:12] 10}")
	eq(t, "to nothing", fmt.Sprint(Histogram{}.add(x)), fmt.Sprint(x))
	eq(t, "untouched", fmt.Sprint(x, y), "{map[1:1 2:2] 9} {map[-3:1 2:10] 1}")
}

// timingOf is n calls below a second.
func timingOf(n uint64) Timing {
	h := Histogram{Counts: map[int]uint64{0: n}, Sum: float64(n)}
	if n == 0 {
		delete(h.Counts, 0)
	}
	return Timing{Handler: h, Wait: h}
}

// Every client sees the sum of what the instances in the index publish.
func timings(t *testing.T, b *backend) {
	c := b.open(t)
	ctx := t.Context()
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func() map[string]Timing {
		t.Helper()
		all, err := c.Timings(ctx)
		no(err)
		return all
	}
	eq(t, "no instances", len(read()), 0)
	for _, name := range []string{"a", "b", "idle", "broken"} {
		_, err := c.TakeLease(ctx, name, []byte("{}"), []byte("{}"), time.Minute)
		no(err)
	}
	eq(t, "nothing published", len(read()), 0)
	no(c.PublishTimings(ctx, "a", map[string]Timing{"orders": timingOf(5), "mail": timingOf(1)}))
	no(c.PublishTimings(ctx, "b", map[string]Timing{"orders": timingOf(7), "odd": {}}))
	no(c.PublishTimings(ctx, "stranger", map[string]Timing{"orders": timingOf(100)}))
	no(c.rdb().Set(ctx, c.db.Keys.Timings("broken"), `{"orders":{"handler":{"n":{"999999":1}},"wait":{"n":{"1":1}}}}`, 0).Err())
	all := read()
	eq(t, "queues", len(all), 2)
	eq(t, "orders", all["orders"].Handler.Count(), uint64(12))
	eq(t, "their sum", all["orders"].Wait.Sum, 12.0)
	eq(t, "mail", all["mail"].Wait.Count(), uint64(1))
	if left, err := c.rdb().PTTL(ctx, c.db.Keys.Timings("a")).Result(); err != nil || left <= 0 || left > time.Minute {
		t.Errorf("expiry: got %s, %v, want at most a minute", left, err)
	}
}

func timingsBusiest(t *testing.T, b *backend) {
	c := b.open(t)
	if _, err := c.TakeLease(t.Context(), "a", []byte("{}"), []byte("{}"), time.Minute); err != nil {
		t.Fatal(err)
	}
	many := map[string]Timing{}
	for i := range 120 {
		many[fmt.Sprint("q", i)] = timingOf(uint64(i))
	}
	if err := c.PublishTimings(t.Context(), "a", many); err != nil {
		t.Fatal(err)
	}
	all, err := c.Timings(t.Context())
	if err != nil || len(all) != 100 {
		t.Fatalf("got %d queues, %v, want the 100 busiest", len(all), err)
	}
	for i := range 120 {
		if _, there := all[fmt.Sprint("q", i)]; there != (i >= 20) {
			t.Errorf("q%d: got %v, want %v", i, there, i >= 20)
		}
	}
}
