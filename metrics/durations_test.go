package metrics

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

func TestDurations(t *testing.T) {
	t.Parallel()
	m := New(prometheus.NewRegistry())
	q := m.Queue("orders")
	for _, d := range []time.Duration{time.Second, 2 * time.Second, 2*time.Second + 1, 0, -time.Second, 24000 * time.Hour} {
		q.Handler.Observe(d)
	}
	q.Wait.Observe(4 * time.Second)
	m.Queue("mail")
	all := m.Durations()
	for _, c := range []struct {
		name string
		got  Buckets
		want string
	}{
		{"handler", all["orders"].Handler, "{map[-160:2 0:1 8:1 9:1 192:1] 86400005}"},
		{"wait", all["orders"].Wait, "{map[16:1] 4}"},
		{"nothing yet", all["mail"].Handler, "{map[] 0}"},
	} {
		if got := fmt.Sprintf("{%v %.0f}", c.got.Counts, c.got.Sum); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// What is exported is what Prometheus' own histogram with the same buckets exports.
func TestHistogramIsAsPrometheusCounts(t *testing.T) {
	t.Parallel()
	ours := newHistograms("x_seconds", "X.").queue("orders")
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x_seconds", Help: "X.", Buckets: classicBounds,
		NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: math.Exp2(-20)})
	written := func(h prometheus.Metric) *dto.Histogram {
		var m dto.Metric
		if err := h.Write(&m); err != nil {
			t.Fatal(err)
		}
		m.Histogram.CreatedTimestamp = nil
		m.Histogram.SampleSum = proto.Float64(math.Round(m.Histogram.GetSampleSum())) // theirs rounds at each step
		return m.Histogram
	}
	compare := func(when string) {
		t.Helper()
		if got, want := written(ours), written(theirs); !proto.Equal(got, want) {
			t.Fatalf("%s: got\n%v\nwant\n%v", when, got, want)
		}
	}
	compare("nothing observed")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		d := time.Duration(math.Exp2(random.Float64()*50) - 1) // 0 to 13 days
		switch i % 50 {
		case 0:
			d = time.Duration(classicBounds[random.IntN(len(classicBounds))] * 1e9) // on a border
		case 1:
			d = time.Second << random.IntN(10)
		}
		ours.Observe(d)
		theirs.Observe(d.Seconds())
		if i == 0 || i == 10 {
			compare(fmt.Sprint(i+1, " observed"))
		}
	}
	compare("5000 observed")
}

// Operators are told to look whether handlers near their timeout, which is 30 min by
// default: all that is longer than the last bound looks the same.
func TestBoundsReachTheDefaultTimeout(t *testing.T) {
	if last := classicBounds[len(classicBounds)-1]; last < (30 * time.Minute).Seconds() {
		t.Errorf("the last bound is %v s, want at least 30 min", last)
	}
}

// Once for each job.
func BenchmarkObserve(b *testing.B) {
	h := newHistograms("x_seconds", "X.").queue("orders")
	for i := 0; b.Loop(); i++ {
		h.Observe(time.Duration(i%1000) * 130 * time.Microsecond)
	}
}
