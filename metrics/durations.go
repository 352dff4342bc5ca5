package metrics

import (
	"fmt"
	"math"
)

// Durations are a queue's histograms since the process began.
type Durations struct{ Handler, Wait Buckets }

// Buckets are a histogram as it is scraped.
type Buckets struct {
	Bounds []float64 // upper bounds, seconds, rising; the last bucket has none
	Upto   []uint64  // how many durations are at most each bound; one more: all
	Sum    float64   // seconds
}

// Durations reads what was observed of each queue.
func (m *Metrics) Durations() (map[string]Durations, error) {
	families, err := m.durations.Gather()
	if err != nil {
		return nil, fmt.Errorf("read durations: %w", err)
	}
	all := map[string]Durations{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var b Buckets
			h := metric.GetHistogram()
			for _, bucket := range h.GetBucket() {
				if !math.IsInf(bucket.GetUpperBound(), 1) {
					b.Bounds = append(b.Bounds, bucket.GetUpperBound())
					b.Upto = append(b.Upto, bucket.GetCumulativeCount())
				}
			}
			b.Upto, b.Sum = append(b.Upto, h.GetSampleCount()), h.GetSampleSum()
			name := metric.GetLabel()[0].GetValue()
			d := all[name]
			if family.GetName() == handlerSeconds {
				d.Handler = b
			} else {
				d.Wait = b
			}
			all[name] = d
		}
	}
	return all, nil
}
