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

// Days has the figures of queues, by queue and then by day or hour. It leaves out the days on which no process
// counted anything of a queue.
type Days struct {
	Days []Day `json:"days"`
}

// Day has the figures of a queue for a day or an hour, by Redis's clock in UTC.
type Day struct {
	Queue      string `json:"queue"`
	Day        string `json:"day"`        // as 2026-01-31, or 2026-01-31T15
	Pushed     uint64 `json:"pushed"`     // payloads that pushes stored, or merged with equal waiting payloads
	Processed  uint64 `json:"processed"`  // job ids done
	Failed     uint64 `json:"failed"`     // failures of job ids, retried or not
	Retried    uint64 `json:"retried"`    // failures that led to a retry
	Buried     uint64 `json:"buried"`     // job ids that went to the morgue after their last failure
	Run        Spread `json:"run"`        // handler calls
	Wait       Spread `json:"wait"`       // job ids, from their due time to their handler
	Unreadable int    `json:"unreadable"` // counts that are left out because they cannot be read
}

// Spread is the distribution of durations, in seconds. All fields are 0 if there are none. The error of
// percentiles is at most 9 %.
type Spread struct {
	Count     uint64  `json:"count"`
	Mean      float64 `json:"mean_s"`
	Deviation float64 `json:"deviation_s"` // standard deviation
	P50       float64 `json:"p50_s"`
	P95       float64 `json:"p95_s"`
	P99       float64 `json:"p99_s"`
}

// DefaultDays is the number of days in an answer to a request without a number.
const DefaultDays = 14

// maxDays bounds the number of days times the number of queues of an answer.
const maxDays = 10_000

// spanAsked returns the number of days or hours that a request asks for, and the name of the parameter for
// errors.
func spanAsked(values url.Values) (name string, span days.Span, n int, err error) {
	name, span, n = "days", days.Days, DefaultDays
	most := days.Kept
	if values.Has("hours") {
		if name, span, most = "hours", days.Hours, days.HoursKept; values.Has("days") {
			return name, "", 0, badField(name, "days is given as well; it must be days or hours")
		}
	}
	if values.Has(name) {
		if n, err = strconv.Atoi(values.Get(name)); err != nil || n < 1 || n > most {
			return name, "", 0, badField(name, "got %q, must be a number from 1 to %d", values.Get(name), most)
		}
	}
	return name, span, n, nil
}

// statsOfDays answers with the figures of days or hours, of a queue or of all queues.
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
	if len(names)*n > maxDays {
		return nil, badField(asked, "%d of %d queues are %d, at most %d are allowed at once; name a queue%s", n, len(names), n*len(names), maxDays, explainLimit(maxDays/len(names)))
	}
	found, err := days.Read(r.Context(), a.client, span, n, names...)
	if err != nil {
		return nil, err
	}
	return Days{DaysOf(found)}, nil
}

// explainLimit returns the advice to ask for at most n days or hours. It returns "" for n = 0, because with so
// many queues even a single day of each is too much.
func explainLimit(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", or ask for at most %d", n)
}

// DaysOf returns days in the form of the API.
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
