package audit

import (
	"fmt"
	"strings"
	"testing"
)

func TestHeaderOf(t *testing.T) {
	t.Parallel()
	for record, want := range map[string]header{
		"":  {},
		"x": {form: 'x'},
		"a\x00\x00\x00\x00\x00\x01\x02\x00\x00payload": {form: 'a', retry: -1, at: 258, n: 1},
		"j3 17 2 6 4 3\nboom1 3:abc":                   {form: 'j', retry: 3, at: 17, n: 2},
		"s-1 17 40 110 0 41 0\n":                       {form: 's', retry: -1, at: 17, n: 40},
		"s-1 17 40 110 0 41\n":                         {form: '?'},
		"j3 17 2 6 4 3 12 0\nboom1 3:abc":              {form: 'j', retry: 3, at: 17, n: 2, since: 12},
		"s-1 17 40 110 0 41 0 12 1\n":                  {form: 's', retry: -1, at: 17, n: 40, since: 12},
		"j3 17 2 6 4 3 12\nboom":                       {form: '?'},
		"p-1 17 40 110 0 41\n":                         {form: 'p', retry: -1, at: 17, n: 40},
		"a\x00\x00":                                    {form: '?'},
		"hello":                                        {form: '?'},
		"j3 17 2 6 4\nboom":                            {form: '?'},
		"jx 17 2 6 4 3\n":                              {form: '?'},
	} {
		if got := headerOf(record); got != want {
			t.Errorf("%q: got %+v, want %+v", record, got, want)
		}
	}
}

// Replies of a sweep have about a megabyte, whatever records have.
func TestSweepNext(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		count int64
		flat  []string
		want  int64
	}{
		{10, nil, 40},
		{400, []string{"id", "small"}, 1000},
		{10, []string{"a", large, "b", large}, 4},
		{2, []string{"a", large, "b", large, "c", large}, 1},
		{1, []string{"a", large}, 1},
	} {
		if got := sweepNext(c.count, c.flat); got != c.want {
			t.Errorf("after %d asked for, %d got: got %d, want %d", c.count, len(c.flat)/2, got, c.want)
		}
	}
}

// A sweep's suspicion is decided without the ready list where that is possible: a long one
// takes long to look through.
func TestWeigh(t *testing.T) {
	t.Parallel()
	job := header{form: 'a', retry: -1, at: 5, n: 1}
	for _, c := range []struct {
		name        string
		t           idFacts
		sure, maybe string
	}{
		{"ready or nowhere", idFacts{record: job}, "[]", "[no-entry two-places]"},
		{"in flight", idFacts{record: job, flight: 1}, "[]", "[two-places two-places]"},
		{"in flight twice", idFacts{record: job, flight: 2}, "[two-places]", "[two-places two-places two-places]"},
		{"no record", idFacts{}, "[]", "[no-record no-record]"},
		{"no record and due", idFacts{due: place{in: true}}, "[no-record]", "[no-record no-record no-record]"},
		{"late", idFacts{record: job, due: place{in: true, at: 6}}, "[wrong-time]", "[wrong-time two-places wrong-time two-places wrong-time]"},
	} {
		sure, maybe := c.t.weighFaults()
		if got := fmt.Sprint(sure); got != c.sure {
			t.Errorf("%s, sure: got %s, want %s", c.name, got, c.sure)
		}
		if got := fmt.Sprint(maybe); got != c.maybe {
			t.Errorf("%s, maybe: got %s, want %s", c.name, got, c.maybe)
		}
	}
}
