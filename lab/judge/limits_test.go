package judge

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Each limit: a history that keeps it and one that breaks just it.
func TestCheckLimits(t *testing.T) {
	const s = int64(time.Second)
	a, b := pushes("a", 1, 2, 3), pushes("b", 4)
	both := slices.Concat(a, b)
	of := func(limits ...Limit) Config { return Config{Limits: limits} }
	calls := func(n int) Limit { return Limit{Queue: queue, Concurrency: n} }
	rate := func(perSecond float64, burst int) Limit { return Limit{Queue: queue, Rate: perSecond, Burst: burst} }
	from := func(at, to int64, l Limit) Limit { l.From, l.To = time.Duration(at), time.Duration(to); return l }
	by := func(l Limit) Limit { l.By = "/"; return l }
	late := func(n int, l Limit) Limit { l.Late = n; return l }
	// at has calls of other ids with one payload each, a nanosecond long, at these times.
	at := func(prefix string, times ...int64) (r run) {
		for i, start := range times {
			id := fmt.Sprint(prefix, i)
			r.pushed = append(r.pushed, pushes(id, 1)...)
			r.calls = append(r.calls, ok(start, start+1, id, 1))
		}
		return r
	}
	plus := func(r, o run) run {
		return run{slices.Concat(r.pushed, o.pushed), slices.Concat(r.calls, o.calls), slices.Concat(r.deaths, o.deaths)}
	}
	twoAtOnce := run{pushed: both, calls: []*did{ok(11, 15, "a", 1, 2, 3), ok(12, 13, "b", 4).by("q", 2)}}
	oneBatch := run{pushed: both, calls: []*did{ok(11, 15, "a", 1, 2, 3), ok(11, 16, "b", 4)}}
	killed := run{pushed: both, calls: []*did{ok(11, 0, "b", 4), ok(20, 21, "a", 1, 2, 3).by("q", 2), ok(30, 31, "b", 4).by("q", 2)},
		deaths: []died{{"p", 15, 16}}}
	group := func(id string) run {
		return run{pushed: slices.Concat(pushes("c/1", 1), pushes(id, 1)), calls: []*did{ok(11, 15, "c/1", 1), ok(12, 13, id, 1).by("q", 2)}}
	}
	pair := at("x", 11, 11) // a batch of two ids: they start together
	large := plus(at("x", 11, 11, 11), at("y", 12))
	tests := []struct {
		name string
		cfg  Config
		run  run
		want []Kind // nil = good
	}{
		{"as many calls as there may be", of(calls(2)), twoAtOnce, nil},
		{"one too many", of(calls(1)), twoAtOnce, []Kind{Crowd}},
		{"of another queue", of(Limit{Queue: "other", Concurrency: 1}), twoAtOnce, nil},
		{"a batch of two ids is one call", of(calls(1)), oneBatch, nil},
		{"a killed call is over at the kill", of(calls(1)), killed, nil},
		{"before the limit holds", of(from(13, 0, calls(1))), twoAtOnce, nil},
		{"one began before the limit held", of(from(12, 0, calls(1))), twoAtOnce, nil},
		{"both began when it held", of(from(11, 0, calls(1))), twoAtOnce, []Kind{Crowd}},
		{"after the limit", of(from(1, 12, calls(1))), twoAtOnce, nil},
		{"of two limits the higher one", of(calls(1), from(12, 13, calls(2))), twoAtOnce, nil},
		{"after the higher one", of(calls(1), from(11, 12, calls(2))), twoAtOnce, []Kind{Crowd}},
		{"where another bounds nothing", of(calls(1), from(12, 13, calls(0))), twoAtOnce, nil},

		{"a group as a whole", of(by(calls(2))), group("c/2"), nil},
		{"one id too many of a group", of(by(calls(1))), group("c/2"), []Kind{Crowd}},
		{"two groups", of(by(calls(1))), group("d/2"), nil},
		{"no group", of(by(calls(1))), group("c"), nil},
		{"two ids of a group in a batch", of(by(calls(1))), at("c/", 11, 11), []Kind{Crowd}},

		{"a burst", of(rate(1, 3)), at("x", 11, 12, 13), nil},
		{"more than a burst", of(rate(1, 3)), at("x", 11, 12, 13, 14), []Kind{TooFast}},
		{"each one too many counts", of(rate(1, 3)), at("x", 11, 12, 13, 14, 15), []Kind{TooFast, TooFast}},
		{"at the rate", of(rate(10, 1)), at("x", s, s+s/10, s+s/5, s+3*s/10), nil},
		{"faster than the rate", of(rate(10, 1)), at("x", s, s+s/10, s+s/5-s/100), []Kind{TooFast}},
		{"a burst after a rest alone", of(rate(10, 2)), at("x", s, s+1, s+s/10, s+s/10+1), []Kind{TooFast}},
		{"those let go before may come late", of(late(2, rate(1, 1))), at("x", 11, 12, 13), nil},
		{"more than were let go before", of(late(2, rate(1, 1))), at("x", 11, 12, 13, 14), []Kind{TooFast}},
		{"a batch counts as many as it has", of(rate(1, 2)), plus(pair, at("y", 12)), []Kind{TooFast}},
		{"a batch larger than the burst", of(rate(1, 2)), at("x", 11, 11, 11), nil},
		{"one after a batch larger than the burst", of(rate(1, 2)), large, []Kind{TooFast}},
		{"one before a batch larger than the burst", of(rate(1, 2)), plus(at("y", 10), at("x", 11, 11, 11)), []Kind{TooFast}},
		{"another rate begins anew", of(from(1, 14, rate(1, 3)), from(14, 0, rate(1, 1))), at("x", 11, 12, 13, 14), nil},
		{"faster than the other rate", of(from(1, 14, rate(1, 3)), from(14, 0, rate(1, 1))), at("x", 11, 12, 13, 14, 15), []Kind{TooFast}},
		{"a rate of each group", of(by(rate(1, 1))), plus(at("c/", 11), at("d/", 12)), nil},
		{"faster than the rate of a group", of(by(rate(1, 1))), plus(plus(at("c/", 11), at("d/", 12)), at("c/x", 13)), []Kind{TooFast}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run.judged(t, test.cfg, test.want)
		})
	}
}

// judged checks which faults a run has.
func (r *run) judged(t *testing.T, cfg Config, want []Kind) {
	t.Helper()
	v := r.check(t, cfg)
	var got []Kind
	for _, f := range v.Faults {
		got = append(got, f.Kind)
	}
	if !slices.Equal(got, want) || v.OK() != (want == nil) {
		t.Errorf("got OK %v, faults %v, want %v\n%s", v.OK(), got, want, v.Words())
	}
}

func TestCheckHolds(t *testing.T) {
	t.Parallel()
	held := func(prefix string, from, to time.Duration) Config {
		return Config{Holds: []Hold{{Queue: queue, Prefix: prefix, From: from, To: to}}}
	}
	r := run{pushed: pushes("ab", 1), calls: []*did{ok(5, 9, "ab", 1)}}
	r.judged(t, held("a", 1, 10), []Kind{Held})
	r.judged(t, held("ab", 5, 6), []Kind{Held})
	r.judged(t, held("b", 1, 10), nil)
	r.judged(t, held("a", 6, 10), nil) // what runs runs on
	r.judged(t, held("a", 1, 5), nil)
	r.judged(t, Config{Holds: []Hold{{Queue: "other", Prefix: "a", From: 1, To: 10}}}, nil)
}

// Of a queue whose rule is that the latest push is enough, a later one may take the place of one that waits.
func TestCheckLatest(t *testing.T) {
	t.Parallel()
	cfg := Config{Latest: []string{queue}, MaxDuplicates: -1, MaxUncaused: -1}
	pushed := pushes("a", 1, 2, 3)
	pushed = append(pushed, pushes("b", 7)...)
	pushed[2].At = 10
	last := ok(1, 2, "b", 7)
	for name, test := range map[string]struct {
		calls []*did
		want  []Kind
	}{
		"the last one": {[]*did{last, ok(11, 12, "a", 3)}, nil},
		"two of them":  {[]*did{last, ok(4, 5, "a", 2), ok(11, 12, "a", 3)}, nil},
		"a failure goes with what came meanwhile": {[]*did{last, ok(4, 5, "a", 2).fails(), ok(11, 12, "a", 2, 3)}, nil},
		"not the last one":                        {[]*did{last, ok(4, 5, "a", 2)}, []Kind{Lost}},
		"a call that began before it":             {[]*did{last, ok(9, 12, "a", 3)}, []Kind{Lost}},
		"a call that failed":                      {[]*did{last, ok(4, 5, "a", 2), ok(11, 12, "a", 3).fails()}, []Kind{Lost}},
		"none":                                    {[]*did{last}, []Kind{Lost, Lost, Lost}},
		"of another id":                           {[]*did{ok(11, 12, "a", 3)}, []Kind{Lost}},
		"an old one comes back":                   {[]*did{last, ok(4, 5, "a", 2), ok(11, 12, "a", 3), ok(13, 14, "a", 2)}, []Kind{WentBack}},
		"out of order in a call":                  {[]*did{last, {process: "p", fence: 1, id: "a", start: 11, end: 12, payloads: slices.Concat(loads("a", 3), loads("a", 2))}}, []Kind{Unsorted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run{pushed: pushed, calls: test.calls}
			r.judged(t, cfg, test.want)
		})
	}
	r := run{pushed: pushed, calls: []*did{last, ok(11, 12, "a", 3)}}
	if v := r.check(t, cfg); v.Replaced != 2 {
		t.Errorf("got %d payloads replaced, want 2", v.Replaced)
	}
	r.judged(t, Config{}, []Kind{Overtaken, Lost, Lost}) // in another queue
}
