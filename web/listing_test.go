package web

import (
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
)

func TestListQuery(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name, query string
		lists       Lists
		want        browse.Query
	}{
		{"defaults", "", jobLists, browse.Query{By: browse.ByDue, Range: browse.Range{Limit: 100}}},
		{"in flight", "", flightLists, browse.Query{By: browse.ByID, State: browse.StateInFlight, Range: browse.Range{Limit: 100}}},
		{"morgue", "limit=1000&reverse=1", morgueLists, browse.Query{By: browse.ByTime, State: browse.StateMorgue, Range: browse.Range{Limit: 1000, Reverse: true}}},
		{"ids", "by=id&from=a&to=b&state=ready", jobLists, browse.Query{By: browse.ByID, State: browse.StateReady, Range: browse.Range{MinID: "a", MaxID: "b", Limit: 100}}},
		{"unix times", "from=1.5&to=2", jobLists, browse.Query{By: browse.ByDue, Range: browse.Range{MinTime: time.UnixMicro(1500000), MaxTime: time.Unix(2, 0), Limit: 100}}},
		{"date", "from=2026-01-02T03:04:05Z", jobLists, browse.Query{By: browse.ByDue, Range: browse.Range{MinTime: at, Limit: 100}}},
		{"retries", "by=retries", jobLists, browse.Query{By: browse.ByRetries, State: browse.StateRetry, Range: browse.Range{MinRetry: -1, MaxRetry: math.MaxInt32, Limit: 100}}},
		{"no retry yet", "by=retries&from=0&to=0", jobLists, browse.Query{By: browse.ByRetries, State: browse.StateRetry, Range: browse.Range{MinRetry: -1, Limit: 100}}},
		{"failed once", "by=retries&from=0&state=blocked", jobLists, browse.Query{By: browse.ByRetries, State: browse.StateBlocked, Range: browse.Range{MaxRetry: math.MaxInt32, Limit: 100}}},
		{"retries from", "by=retries&from=3&state=blocked", jobLists, browse.Query{By: browse.ByRetries, State: browse.StateBlocked, Range: browse.Range{MinRetry: 3, MaxRetry: math.MaxInt32, Limit: 100}}},
		{"reverse", "reverse", jobLists, browse.Query{By: browse.ByDue, Range: browse.Range{Limit: 100, Reverse: true}}},
		{"not reverse", "reverse=false", jobLists, browse.Query{By: browse.ByDue, Range: browse.Range{Limit: 100}}},
		{"search", "contains=a+b&tag=vip&error=%22", jobLists, browse.Query{By: browse.ByID, Search: browse.Search{Contains: "a b", Tag: "vip", Error: `"`}, Range: browse.Range{Limit: 100}}},
		{"search by due time", "contains=a&by=due", jobLists, browse.Query{By: browse.ByDue, Search: browse.Search{Contains: "a"}, Range: browse.Range{Limit: 100}}},
		{"search in a state", "tag=vip&state=retry", jobLists, browse.Query{By: browse.ByDue, State: browse.StateRetry, Search: browse.Search{Tag: "vip"}, Range: browse.Range{Limit: 100}}},
		{"kind, cursor", "kind=no+%23&cursor=abc", jobLists, browse.Query{By: browse.ByDue, Kind: "no #", Cursor: "abc", Range: browse.Range{Limit: 100}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			values, err := url.ParseQuery(c.query)
			must(t, err)
			got, err := c.lists.Query(values)
			must(t, err)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestListQueryRefuses(t *testing.T) {
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
			_, err = jobLists.Query(values)
			var p *Problem
			if !errors.As(err, &p) || p.Field != c.field || p.Status != 400 {
				t.Errorf("got %v, want a problem with %s", err, c.field)
			}
		})
	}
}

// What a list of each state and order holds, on a real queue.
func TestLists(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	for _, c := range []struct{ query, want string }{
		{"jobs", "r1 r2 a/b ? f1 f2 s1"},
		{"jobs?by=id", "a/b b1 f1 f2 r1 r2 s1 w1 ?"},
		{"jobs?by=id&from=b&to=f2", "b1 f1 f2"},
		{"jobs?by=id&reverse=true&limit=2", "? w1"},
		{"jobs?state=ready", "r1 r2 a/b ?"},
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
		{"morgue?by=retries&from=25", "d1"},
		{"morgue?kind=dead", "d1"},
		{"jobs?kind=no+stock", "f1"},
		{"jobs?error=no+stock", "f1"},
		{"jobs?contains=r1", "r1"},
		{"jobs?contains=r&state=ready", "r1 r2"},
		{"morgue?contains=d&error=dead", "d1"},
		{"jobs?tag=vip&contains=n", "s1"}, {"jobs?tag=vi", ""},
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

// The pages of a list, followed by their cursors, are the list.
func TestListGoesOn(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	var got []string
	for target := ordersPath + "jobs?by=id&limit=2"; ; {
		answer := w.do("GET", target, "")
		expect(t, answer, 200)
		got = append(got, listedIDs(t, answer.Body.Bytes())...)
		var page struct {
			Next string
			More bool
		}
		must(t, json.Unmarshal(answer.Body.Bytes(), &page))
		if page.More != (page.Next != "") {
			t.Errorf("got more %v, next %q", page.More, page.Next)
		}
		if page.Next == "" {
			break
		}
		target = ordersPath + "jobs?by=id&limit=2&cursor=" + page.Next
		expect(t, w.do("GET", ordersPath+"jobs?by=due&cursor="+page.Next, ""), 400, "another query")
	}
	if want := "a/b b1 f1 f2 r1 r2 s1 w1 ?"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	expect(t, w.do("GET", ordersPath+"jobs?cursor=nonsense", ""), 400, "cursor is damaged")
}
