// Package days answers: what did a queue do, day by day?
//
// Each process writes every ten seconds what it has counted of the day and of the hour so far, each time all of it, so that to
// write it again changes nothing, and parts of processes that are silent are joined: see internal/tally. Days and hours are
// those of Redis's clock, in UTC.
package days

import (
	"maps"
	"math"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// Figures are what was counted of a queue: all of a day, or a node's part.
type Figures struct {
	Run       Durations `json:"run"`       // handler calls, also those that failed
	Wait      Durations `json:"wait"`      // of job ids, from their due time to their handler
	Processed uint64    `json:"processed"` // job ids done
	Failed    uint64    `json:"failed"`    // failures of job ids, retried or not
	Retried   uint64    `json:"retried"`   // those of Failed that were to be retried
	Buried    uint64    `json:"buried"`    // job ids that their failures sent to the morgue
	Pushed    uint64    `json:"pushed"`    // payloads that pushes stored, or merged with others that waited
}

// Durations are a histogram, and what its standard deviation needs.
type Durations struct {
	browse.Histogram

	Squares float64 `json:"q"` // sum of the squares, square seconds
}

// Mean is the average in seconds, 0 if there are none.
func (d Durations) Mean() float64 {
	if n := d.Count(); n > 0 {
		return d.Sum / float64(n)
	}
	return 0
}

// Deviation is the standard deviation of all that was counted, in seconds.
func (d Durations) Deviation() float64 {
	n := float64(d.Count())
	if n == 0 {
		return 0
	}
	return math.Sqrt(max(0, d.Squares/n-d.Mean()*d.Mean())) // rounding may take it below 0
}

// Percentile is Quantile, and 0 if there are none.
func (d Durations) Percentile(p float64) float64 {
	if len(d.Counts) == 0 {
		return 0
	}
	return d.Quantile(p)
}

// sound reports whether durations from Redis can be reckoned with; those of a process that has counted none are empty.
func (d Durations) sound() bool {
	return d.Histogram.Sound() || len(d.Counts) == 0 && d.Sum == 0 && d.Squares == 0
}

func (d Durations) add(e Durations) Durations {
	sum := Durations{Histogram: browse.Histogram{Counts: map[int]uint64{}, Sum: d.Sum + e.Sum}, Squares: d.Squares + e.Squares}
	maps.Copy(sum.Counts, d.Counts)
	for k, n := range e.Counts {
		sum.Counts[k] += n
	}
	return sum
}

func (d Durations) since(then Durations) Durations {
	diff := Durations{Histogram: browse.Histogram{Counts: map[int]uint64{}, Sum: d.Sum - then.Sum}, Squares: d.Squares - then.Squares}
	for k, n := range d.Counts {
		if n > then.Counts[k] {
			diff.Counts[k] = n - then.Counts[k]
		}
	}
	return diff
}

// Add joins two parts.
func (f Figures) Add(g Figures) Figures {
	return Figures{
		Run: f.Run.add(g.Run), Wait: f.Wait.add(g.Wait),
		Processed: f.Processed + g.Processed, Failed: f.Failed + g.Failed, Retried: f.Retried + g.Retried, Buried: f.Buried + g.Buried,
		Pushed: f.Pushed + g.Pushed,
	}
}

// Since is what was counted after an earlier reading of the same counters.
func (f Figures) Since(then Figures) Figures {
	return Figures{
		Run: f.Run.since(then.Run), Wait: f.Wait.since(then.Wait),
		Processed: f.Processed - then.Processed, Failed: f.Failed - then.Failed, Retried: f.Retried - then.Retried, Buried: f.Buried - then.Buried,
		Pushed: f.Pushed - then.Pushed,
	}
}

// Same reports whether nothing was counted between two readings of the same counters.
func (f Figures) Same(then Figures) bool {
	return f.Run.same(then.Run) && f.Wait.same(then.Wait) &&
		f.Processed == then.Processed && f.Failed == then.Failed && f.Retried == then.Retried && f.Buried == then.Buried && f.Pushed == then.Pushed
}

// same compares the sums, too: a reading may have come between the count of a duration and its sum.
func (d Durations) same(then Durations) bool {
	return d.Count() == then.Count() && d.Sum == then.Sum && d.Squares == then.Squares
}
