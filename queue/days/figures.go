// Package days reads what a queue did day by day and hour by hour.
//
// Each process adds its counts to the figures of the day and of the hour every ten seconds; see
// internal/store/daycounts. Days and hours follow Redis's clock, in UTC.
package days

import (
	"math"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/daycounts"
	"github.com/lowkiq/lowkiq/queue/timings"
)

// Figures is the counts of a queue in a period.
type Figures struct {
	Run       Durations // of handler calls, failed calls included
	Wait      Durations // of job ids, from the due time to the handler
	Processed uint64    // job ids done
	Failed    uint64    // failures of job ids, retried or not
	Retried   uint64    // failures of Failed with a retry
	Buried    uint64    // job ids sent to the morgue because of failures
	Pushed    uint64    // payloads that pushes stored or merged with waiting payloads
}

// Durations is a histogram and the sum of squares, for the standard deviation.
type Durations struct {
	timings.Histogram

	Squares float64 // square seconds
}

// Mean returns the average in seconds, 0 without durations.
func (d Durations) Mean() float64 {
	if n := d.Count(); n > 0 {
		return d.Sum / float64(n)
	}
	return 0
}

// Deviation returns the standard deviation in seconds, 0 without durations.
func (d Durations) Deviation() float64 {
	n := float64(d.Count())
	if n == 0 {
		return 0
	}
	return math.Sqrt(max(0, d.Squares/n-d.Mean()*d.Mean())) // rounding may take it below 0
}

// Percentile is Quantile, but 0 without durations.
func (d Durations) Percentile(p float64) float64 {
	if len(d.Counts) == 0 {
		return 0
	}
	return d.Quantile(p)
}

// parseFigures parses the figures of a period and returns the number of unreadable counts.
func parseFigures(counts map[string]string) (f Figures, unreadable int) {
	f.Run.Counts, f.Wait.Counts = map[int]uint64{}, map[int]uint64{}
	numbers := map[string]*uint64{
		daycounts.Processed: &f.Processed, daycounts.Failed: &f.Failed, daycounts.Retried: &f.Retried,
		daycounts.Buried: &f.Buried, daycounts.Pushed: &f.Pushed,
	}
	durations := map[string]*Durations{daycounts.Run: &f.Run, daycounts.Wait: &f.Wait}
	for name, text := range counts {
		n, err := strconv.ParseFloat(text, 64)
		kind, bucket, _ := strings.Cut(name, ":")
		switch d := durations[kind]; {
		case err != nil || !(n >= 0 && n < 1<<63): // NaN, too
			unreadable++
		case numbers[name] != nil:
			*numbers[name] = uint64(n)
		case d == nil || !d.setCount(bucket, n):
			unreadable++
		}
	}
	return f, unreadable
}

// setCount sets a count and reports whether its name is known.
func (d *Durations) setCount(name string, n float64) bool {
	switch name {
	case daycounts.Sum:
		d.Sum = n
	case daycounts.Squares:
		d.Squares = n
	default:
		k, err := strconv.Atoi(name)
		if err != nil || !(timings.Histogram{Counts: map[int]uint64{k: 1}}).Sound() {
			return false
		}
		d.Counts[k] = uint64(n)
	}
	return true
}
