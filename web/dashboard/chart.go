package dashboard

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The chart of what is processed and failed per second: paths in a box of chartWidth x
// chartHeight, which the page stretches.
const (
	chartWidth  = 1000
	chartHeight = 100
	chartSpan   = time.Hour
	chartFine   = 5 * time.Minute // of which every point is kept
)

type chart struct {
	Processed, Area, Failed string // SVG paths; "" = fewer than two points
	Top                     float64
	Last, Peak              rate
	Since                   time.Time // of the first point
}

// Middle is the value of the line in the middle.
func (c chart) Middle() float64 { return c.Top / 2 }

// chartOf draws the samples of the last hour.
func chartOf(samples []sample, now time.Time) chart {
	for len(samples) > 0 && now.Sub(samples[0].At) > chartSpan {
		samples = samples[1:]
	}
	var c chart
	if len(samples) == 0 {
		return c
	}
	c.Since, c.Last = samples[0].At, samples[len(samples)-1].rate
	for _, s := range samples {
		c.Peak.Processed, c.Peak.Failed = max(c.Peak.Processed, s.Processed), max(c.Peak.Failed, s.Failed)
	}
	c.Top = roundUp(max(c.Peak.Processed, c.Peak.Failed, 1))
	if len(samples) < 2 {
		return c
	}
	c.Processed = pathOf(samples, now, c.Top, func(r rate) float64 { return r.Processed })
	c.Failed = pathOf(samples, now, c.Top, func(r rate) float64 { return r.Failed })
	c.Area = fmt.Sprintf("M%.1f %d%sL%.1f %dZ", xOf(samples[0].At, now), chartHeight,
		"L"+c.Processed[1:], xOf(samples[len(samples)-1].At, now), chartHeight)
	return c
}

func xOf(at, now time.Time) float64 {
	return chartWidth * (1 - now.Sub(at).Seconds()/chartSpan.Seconds())
}

func pathOf(samples []sample, now time.Time, top float64, of func(rate) float64) string {
	var path strings.Builder
	for i, s := range samples {
		step := "L"
		if i == 0 {
			step = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", step, xOf(s.At, now), chartHeight*(1-of(s.rate)/top))
	}
	return path.String()
}

// roundUp is the next of 1, 2, 5, 10, 20, 50, …
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}
