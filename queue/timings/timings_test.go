package timings

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/golden"
)

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
	for what, got := range map[string][2]string{
		"both":       {fmt.Sprint(x.merge(y)), "{map[-3:1 1:1 2:12] 10}"},
		"to nothing": {fmt.Sprint(Histogram{}.merge(x)), fmt.Sprint(x)},
		"untouched":  {fmt.Sprint(x, y), "{map[1:1 2:2] 9} {map[-3:1 2:10] 1}"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %s, want %s", what, got[0], got[1])
		}
	}
}

// TestGolden reads what every release has published, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	minutes := map[string]Minute{"orders": {Handler: Histogram{map[int]uint64{-8: 2, 0: 1}, 1.5}, Wait: Histogram{map[int]uint64{3: 3}, 4.25}}}
	text, err := json.Marshal(minutes)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "timings", string(text), func(t *testing.T, stored string) {
		var got map[string]Minute
		if err := json.Unmarshal([]byte(stored), &got); err != nil || !reflect.DeepEqual(got, minutes) {
			t.Errorf("got %+v %v, want %+v", got, err, minutes)
		}
	})
}
