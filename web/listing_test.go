package web

import (
	"context"
	"errors"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

func TestParseListing(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name, query string
		kind        kind
		want        listing
	}{
		{"defaults", "", jobsKind, listing{by: byDue, Range: queue.Range{Limit: 100}}},
		{"in flight", "", inFlightKind, listing{by: byID, state: queue.InFlight, Range: queue.Range{Limit: 100}}},
		{"morgue", "limit=1000&reverse=1", morgueKind, listing{by: byTime, state: queue.Dead, Range: queue.Range{Limit: 1000, Reverse: true}}},
		{"ids", "by=id&from=a&to=b&state=ready", jobsKind, listing{by: byID, state: queue.Ready, Range: queue.Range{MinID: "a", MaxID: "b", Limit: 100}}},
		{"unix times", "from=1.5&to=2", jobsKind, listing{by: byDue, Range: queue.Range{MinTime: time.UnixMicro(1500000), MaxTime: time.Unix(2, 0), Limit: 100}}},
		{"date", "from=2026-01-02T03:04:05Z", jobsKind, listing{by: byDue, Range: queue.Range{MinTime: at, Limit: 100}}},
		{"retries", "by=retries", jobsKind, listing{by: byRetries, state: queue.Retrying, Range: queue.Range{MinRetry: -1, MaxRetry: math.MaxInt32, Limit: 100}}},
		{"no retry yet", "by=retries&from=0&to=0", jobsKind, listing{by: byRetries, state: queue.Retrying, Range: queue.Range{MinRetry: -1, Limit: 100}}},
		{"retries from", "by=retries&from=3&state=blocked", jobsKind, listing{by: byRetries, state: queue.Waiting, Range: queue.Range{MinRetry: 3, MaxRetry: math.MaxInt32, Limit: 100}}},
		{"reverse", "reverse", jobsKind, listing{by: byDue, Range: queue.Range{Limit: 100, Reverse: true}}},
		{"not reverse", "reverse=false", jobsKind, listing{by: byDue, Range: queue.Range{Limit: 100}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			values, err := url.ParseQuery(c.query)
			must(t, err)
			got, err := parseListing(values, c.kind)
			must(t, err)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseListingRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ query, field string }{
		{"state=done", "state"}, {"state=morgue", "state"},
		{"by=score", "by"}, {"by=time", "by"}, {"by=retries&state=ready", "by"}, {"by=retries&state=in_flight", "by"},
		{"limit=0", "limit"}, {"limit=1001", "limit"}, {"limit=", "limit"}, {"limit=ten", "limit"},
		{"reverse=maybe", "reverse"},
		{"from=yesterday", "from"}, {"to=-1", "to"}, {"to=NaN", "to"}, {"from=1e300", "from"},
		{"by=retries&from=1.5", "from"}, {"by=retries&to=-2", "to"},
	} {
		t.Run(c.query, func(t *testing.T) {
			values, err := url.ParseQuery(c.query)
			must(t, err)
			_, err = parseListing(values, jobsKind)
			var p *problem
			if !errors.As(err, &p) || p.Field != c.field || p.Status != 400 {
				t.Errorf("got %v, want a problem with %s", err, c.field)
			}
		})
	}
}

// fake is a list of jobs, j000 up, as package queue would give it; every third is
// scheduled. Due times grow against the ids, so many at each instant.
func fake(n, perInstant int) (lister, *int) {
	var all []queue.Listed
	for i := range n {
		id := "j" + strings.Repeat("0", 6-len(strconv.Itoa(n-i))) + strconv.Itoa(n-i)
		state := queue.Ready
		if i%3 == 0 {
			state = queue.Scheduled
		}
		all = append(all, queue.Listed{Job: lowkiq.Job{ID: id, PerformAt: time.Unix(int64(1+i/perInstant), 0)}, State: state})
	}
	calls := 0
	return func(_ context.Context, r queue.Range) ([]queue.Listed, error) {
		calls++
		later := slices.DeleteFunc(slices.Clone(all), func(job queue.Listed) bool { return job.PerformAt.Before(r.MinTime) })
		return later[:min(len(later), r.Limit)], nil
	}, &calls
}

func TestNarrow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		n, limit int
		state    queue.State
		want     int
		complete bool
	}{
		{"any state", 100, 50, "", 50, false},
		{"all of them", 30, 50, "", 30, true},
		{"every third", 600, 50, queue.Scheduled, 50, false},
		{"fewer than asked for", 90, 50, queue.Scheduled, 30, true},
		{"none", 90, 50, queue.Retrying, 0, true},
		{"none among very many", 3 * maxExamined, 50, queue.Retrying, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, calls := fake(c.n, 1)
			got, complete, err := narrow(t.Context(), list, queue.Range{Limit: c.limit}, c.state)
			must(t, err)
			if len(got) != c.want || complete != c.complete || *calls > 6 {
				t.Errorf("got %d jobs, complete %t, %d calls; want %d, %t", len(got), complete, *calls, c.want, c.complete)
			}
		})
	}
}

func TestMorgueByID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		n, perInstant int
		r             queue.Range
		first, last   string
		want          int
	}{
		{"small", 10, 1, queue.Range{Limit: 100}, "j000001", "j000010", 10},
		{"many", 5000, 1, queue.Range{Limit: 3}, "j000001", "j000003", 3},
		{"many at one instant", 5000, 3500, queue.Range{Limit: 3}, "j000001", "j000003", 3},
		{"reverse", 5000, 10, queue.Range{Limit: 2, Reverse: true}, "j005000", "j004999", 2},
		{"range", 5000, 10, queue.Range{Limit: 100, MinID: "j000700", MaxID: "j000709"}, "j000700", "j000709", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, _ := fake(c.n, c.perInstant)
			got, err := morgueByID(t.Context(), list, c.r)
			must(t, err)
			if len(got) != c.want || got[0].ID != c.first || got[len(got)-1].ID != c.last {
				t.Errorf("got %d jobs, want %d from %s to %s", len(got), c.want, c.first, c.last)
			}
		})
	}
}

// What a list of each state and order holds, on a real queue.
func TestLists(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	for _, c := range []struct{ query, want string }{
		{"jobs", "a/b r1 r2 ? f1 f2 s1"},
		{"jobs?by=id", "a/b b1 f1 f2 r1 r2 s1 w1 ?"},
		{"jobs?by=id&from=b&to=f2", "b1 f1 f2"},
		{"jobs?by=id&reverse=true&limit=2", "? w1"},
		{"jobs?state=ready", "a/b r1 r2 ?"},
		{"jobs?state=ready&by=id&reverse", "? r2 r1 a/b"},
		{"jobs?state=scheduled", "s1"},
		{"jobs?state=scheduled&limit=1", "s1"},
		{"jobs?from=4000000000", "s1"},
		{"jobs?state=retry", "f1 f2"},
		{"jobs?state=retry&reverse&limit=1", "f2"},
		{"jobs?state=retry&by=id&from=f2", "f2"},
		{"jobs?by=retries", "f2 f1"},
		{"jobs?by=retries&from=1", "f1"},
		{"jobs?by=retries&to=0", "f2"},
		{"jobs?state=in_flight", "w1"},
		{"jobs?state=in_flight&by=id&to=a", ""},
		{"jobs?state=blocked&by=id", "b1"},
		{"in-flight?from=w&to=x", "w1"},
		{"morgue", "d1 d2"},
		{"morgue?reverse", "d2 d1"},
		{"morgue?by=id&to=d1", "d1"},
	} {
		t.Run(c.query, func(t *testing.T) {
			answer := w.do("GET", ordersPath+c.query, "")
			expect(t, answer, 200)
			if got := strings.Join(listedIDs(t, answer.Body.Bytes()), " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
