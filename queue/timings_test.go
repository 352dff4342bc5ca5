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
	bounds := []float64{1, 2, 4}
	for _, c := range []struct {
		name   string
		counts []uint64
		p      float64
		want   float64
	}{
		{"nothing", []uint64{0, 0, 0, 0}, .5, math.NaN()},
		{"middle of the lowest", []uint64{10, 0, 0, 0}, .5, .5},
		{"end of the lowest", []uint64{10, 0, 0, 0}, 1, 1},
		{"border of two", []uint64{10, 10, 0, 0}, .5, 1},
		{"within the second", []uint64{10, 10, 0, 0}, .75, 1.5},
		{"over an empty bucket", []uint64{10, 0, 10, 0}, .75, 3},
		{"only a higher one", []uint64{0, 0, 4, 0}, .25, 2.5},
		{"above all bounds", []uint64{1, 0, 0, 9}, .5, 4},
		{"everything above", []uint64{0, 0, 0, 1}, .99, 4},
		{"smallest share", []uint64{0, 1, 0, 0}, .0001, 1.0001},
	} {
		got := Histogram{Bounds: bounds, Counts: c.counts}.Quantile(c.p)
		if math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if got := (Histogram{}).Quantile(.5); !math.IsNaN(got) {
		t.Errorf("zero value: got %v, want NaN", got)
	}
}

func TestHistogramAdd(t *testing.T) {
	t.Parallel()
	x := Histogram{Bounds: []float64{1, 2}, Counts: []uint64{1, 2, 3}, Sum: 9}
	for _, c := range []struct {
		name string
		y    Histogram
		want string
	}{
		{"same bounds", Histogram{Bounds: []float64{1, 2}, Counts: []uint64{10, 0, 1}, Sum: 1}, "{Bounds:[1 2] Counts:[11 2 4] Sum:10}"},
		{"other bounds", Histogram{Bounds: []float64{1.5}, Counts: []uint64{5, 7}, Sum: 1}, "{Bounds:[1 1.5 2] Counts:[1 5 2 10] Sum:10}"},
	} {
		if got := fmt.Sprintf("%+v", x.add(c.y)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	eq(t, "to nothing", Histogram{}.add(x), x)
}

// timingOf is n calls below a second.
func timingOf(n uint64) Timing {
	h := Histogram{Bounds: []float64{1, 2}, Counts: []uint64{n, 0, 0}, Sum: float64(n)}
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
	no(c.rdb.Set(ctx, c.timingsKey("broken"), `{"orders":{"handler":{"le":[1],"n":[1]}}}`, 0).Err())
	all := read()
	eq(t, "queues", len(all), 2)
	eq(t, "orders", all["orders"].Handler.Count(), uint64(12))
	eq(t, "their sum", all["orders"].Wait.Sum, 12.0)
	eq(t, "mail", all["mail"].Wait.Count(), uint64(1))
	if left, err := c.rdb.PTTL(ctx, c.timingsKey("a")).Result(); err != nil || left <= 0 || left > time.Minute {
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
