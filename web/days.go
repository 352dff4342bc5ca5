package web

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq/queue/days"
)

// Days are what queues did, by queue and then by day or hour. A day on which no process counted anything of
// a queue is left out.
type Days struct {
	Days []Day `json:"days"`
}

// Day is what a queue did on a day, or in an hour, of Redis's clock, in UTC.
type Day struct {
	Queue      string `json:"queue"`
	Day        string `json:"day"`        // as 2026-01-31, or 2026-01-31T15
	Pushed     uint64 `json:"pushed"`     // payloads that pushes stored, or merged with equal ones that waited
	Processed  uint64 `json:"processed"`  // job ids done
	Failed     uint64 `json:"failed"`     // failures of job ids, retried or not
	Retried    uint64 `json:"retried"`    // those of them that were to be retried
	Buried     uint64 `json:"buried"`     // job ids that their failures sent to the morgue
	Run        Spread `json:"run"`        // handler calls
	Wait       Spread `json:"wait"`       // job ids, from their due time to their handler
	Unreadable int    `json:"unreadable"` // parts that are left out, as they cannot be read
}

// Spread says how durations are spread, in seconds; all is 0 if there are none. Percentiles are off by
// 9 % at most.
type Spread struct {
	Count     uint64  `json:"count"`
	Mean      float64 `json:"mean_s"`
	Deviation float64 `json:"deviation_s"` // standard deviation
	P50       float64 `json:"p50_s"`
	P95       float64 `json:"p95_s"`
	P99       float64 `json:"p99_s"`
}

// DefaultDays is of how many days the API tells who asks for no number.
const DefaultDays = 14

// mostDays is of how many days of queues one answer tells, and bytesOfDay what one costs until it is written.
const (
	mostDays   = 10_000
	bytesOfDay = 4 << 10
)

// spanAsked is of how many days or hours a request asks.
func spanAsked(values url.Values) (name string, span days.Span, n int, err error) {
	name, span, n = "days", days.Days, DefaultDays
	most := days.Kept
	if values.Has("hours") {
		if name, span, most = "hours", days.Hours, days.HoursKept; values.Has("days") {
			return name, "", 0, badField(name, "got days, too, want one of them")
		}
	}
	if values.Has(name) {
		if n, err = strconv.Atoi(values.Get(name)); err != nil || n < 1 || n > most {
			return name, "", 0, badField(name, "got %q, want a number from 1 to %d", values.Get(name), most)
		}
	}
	return name, span, n, nil
}

// statsOfDays answers what one queue did day by day, or hour by hour, or each.
func (a *api) statsOfDays(_ http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	asked, span, n, err := spanAsked(values)
	if err != nil {
		return nil, err
	}
	names := []string{values.Get("queue")}
	if values.Has("queue") {
		if _, err := a.queueNamed(r.Context(), names[0]); err != nil {
			return nil, err
		}
	} else {
		entries, err := a.client.Registry().Entries(r.Context())
		if err != nil {
			return nil, err
		}
		names = slices.Sorted(maps.Keys(entries))
	}
	if len(names)*n > mostDays {
		return nil, badField(asked, "%d of %d queues are %d, at most %d at once: name a queue%s", n, len(names), n*len(names), mostDays, fewer(mostDays/len(names)))
	}
	if err := accountOf(r).take(int64(len(names)) * int64(n) * bytesOfDay); err != nil {
		return nil, err
	}
	found, err := days.Read(r.Context(), a.client, span, n, names...)
	if err != nil {
		return nil, err
	}
	return Days{DaysOf(found)}, nil
}

// fewer says of how many days or hours of all queues may be asked.
func fewer(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", or ask for at most %d", n)
}

// DaysOf are days as the API shows them.
func DaysOf(found []days.Day) []Day {
	all := make([]Day, len(found))
	for i, d := range found {
		f := d.Figures
		all[i] = Day{
			Queue: d.Queue, Day: d.Period, Pushed: f.Pushed, Processed: f.Processed, Failed: f.Failed, Retried: f.Retried, Buried: f.Buried,
			Run: spreadOf(f.Run), Wait: spreadOf(f.Wait), Unreadable: d.Unreadable,
		}
	}
	return all
}

func spreadOf(d days.Durations) Spread {
	return Spread{
		Count: d.Count(), Mean: d.Mean(), Deviation: d.Deviation(),
		P50: d.Percentile(.5), P95: d.Percentile(.95), P99: d.Percentile(.99),
	}
}
