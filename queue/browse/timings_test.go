package browse

import (
	"fmt"
	"math"
	"testing"
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
		"both":       {fmt.Sprint(x.add(y)), "{map[-3:1 1:1 2:12] 10}"},
		"to nothing": {fmt.Sprint(Histogram{}.add(x)), fmt.Sprint(x)},
		"untouched":  {fmt.Sprint(x, y), "{map[1:1 2:2] 9} {map[-3:1 2:10] 1}"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %s, want %s", what, got[0], got[1])
		}
	}
}
