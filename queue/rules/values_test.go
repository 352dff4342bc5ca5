package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/text/bounds"
)

// Each key accepts its valid values, and its error says what would be right.
func TestCheck(t *testing.T) {
	t.Parallel()
	many := make([]string, MaxTracked+1)
	for i := range many {
		many[i] = fmt.Sprint("id", i)
	}
	tooMany, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range []struct{ key, value, fault string }{
		{"batch_size", `1000`, ""},
		{"batch_size", `0`, "want a whole number, 1 to 1000, got 0"},
		{"batch_size", `1.5`, "got 1.5"},
		{"batch_size", `"7"`, `got "7"`},
		{"batch_size", `null`, "got null"},
		{"concurrency", `8`, ""},
		{"shard_concurrency", `1001`, "1 to 1000"},
		{"shard_concurrency", `4`, ""},
		{"prefetch", `7`, ""},
		{"scheduler", `"seq"`, ""},
		{"scheduler", `"fifo"`, `want lag or seq, got "fifo"`},
		{"priority", `9`, ""},
		{"priority", `0`, ""},
		{"priority", `10`, "want a whole number, 0 to 9, got 10"},
		{"limit", `"none"`, ""},
		{"limit", `{"concurrency":20,"rate":"100/s","burst":20}`, ""},
		{"limit", `{"rate":"1/h"}`, ""},
		{"limit", `{}`, "want none or {concurrency, rate, burst}, got {}"},
		{"limit", `{"burst":2}`, "there is a burst without a rate"},
		{"limit", `{"concurrency":0}`, "concurrency: want a whole number, 1 to 1000000, got 0"},
		{"limit", `{"rate":"100"}`, `limit.rate: want a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h, got "100"`},
		{"limit", `{"rate":"0/s"}`, "want a rate"},
		{"limit", `{"rate":5}`, `got 5`},
		{"groups", `"none"`, ""},
		{"groups", `{"by":"/"}`, ""},
		{"groups", `{"concurrency":2,"rate":"10/s"}`, ""},
		{"groups", `{}`, "want none or {by, concurrency, rate, burst}, got {}"},
		{"groups", `{"by":""}`, `by: want what ends the prefix of an id, 1 to 8 bytes, as in ":", got ""`},
		{"groups", `{"by":"123456789"}`, "1 to 8 bytes"},
		{"groups", `{"by":":","burst":2}`, "there is a burst without a rate"},
		{"coalesce", `"latest"`, ""},
		{"coalesce", `"last"`, "want all or latest or once"},
		{"debounce", `"none"`, ""},
		{"debounce", `{"quiet":"2s","most":"30s"}`, ""},
		{"debounce", `{"quiet":"2s"}`, ""},
		{"debounce", `{"most":"2s"}`, "must be none or {quiet, most}; quiet is missing"},
		{"debounce", `{"quiet":"2s","most":"1s"}`, "debounce.most: 1s is less than quiet, 2s"},
		{"debounce", `{"quiet":"48h"}`, "quiet: want"},
		{"limit", `20`, "want none or {concurrency, rate, burst}, got 20"},
		{"then", `{"done":"billing","dead":"alerts"}`, ""},
		{"then", `{"dead":"alerts"}`, ""},
		{"then", `"none"`, ""},
		{"then", `{}`, "want none or {done, dead}, got {}"},
		{"then", `{"dead":"a queue"}`, `then.dead: want the name of a queue, got "a queue"`},
		{"then", `{"dead":"lowkiq.workflows"}`, `then.dead: names that begin with "lowkiq." belong to lowkiq; want another queue, got "lowkiq.workflows"`},
		{"then", `{"done":7}`, "then.done: want the name of a queue, got 7"},
		{"expire", `"never"`, ""},
		{"expire", `{"after":"1h"}`, ""},
		{"expire", `{"to":"drop"}`, ""},
		{"expire", `{"after":"1h","to":"morgue"}`, ""},
		{"expire", `{}`, "want never or {after, to}, got {}"},
		{"expire", `{"after":"0s"}`, "after: want a duration, 1s to 8760h"},
		{"expire", `{"to":"bin"}`, `to: want morgue or drop, got "bin"`},
		{"expire", `"1h"`, `want never or {after, to}, got "1h"`},
		{"expire", `{"for":"1h"}`, `expire.for: unknown key; want never or {after, to}`},
		{"stuck_after", `"0s"`, ""},
		{"stuck_after", `"5m"`, ""},
		{"stuck_after", `"10ms"`, "want a duration, 0s or 1s to 8760h"},
		{"handler_timeout", `"0s"`, ""},
		{"handler_timeout", `"1ms"`, ""},
		{"handler_timeout", `"1ns"`, `want a duration, 0s or 1ms to 8760h, as in "30s", got "1ns"`},
		{"retry_in", `["0s","1ns"]`, `want a duration, 0s or 1ms to 8760h, as in "30s", got "1ns"`},
		{"retry_in", `{"base":"1us"}`, "0s or 1ms to 8760h"},
		{"state", `"999us"`, "0s or 1ms to"},
		{"stuck_after", `"1ms"`, "want a duration, 0s or 1s to"},
		{"handler_timeout", `"1.5h"`, ""},
		{"handler_timeout", `30`, `want a duration, 0s or 1ms to 8760h, as in "30s", got 30`},
		{"handler_timeout", `"-1s"`, "want a duration"},
		{"max_retry_count", `0`, ""},
		{"max_retry_count", `-1`, "0 to 1000000"},
		{"max_crashes", `0`, ""},
		{"max_crashes", `1`, "want a whole number, 0 or 2 to 1000000, got 1"},
		{"exhausted", `"block"`, ""},
		{"exhausted", `"drop"`, "skip or bury or block"},
		{"state", `"720h"`, ""},
		{"state", `"x"`, "want a duration"},
		{"retry_in", `{"base":"5s","power":2}`, ""},
		{"retry_in", `["10s","1m"]`, ""},
		{"retry_in", `[]`, "an empty list"},
		{"retry_in", `["x"]`, "want a duration"},
		{"retry_in", `{"pow":2}`, "retry_in.pow: unknown key"},
		{"retry_in", `{"power":11}`, "want a number, 0 to 10, got 11"},
		{"retry_in", `"1m"`, "want {base, power, jitter} or a list of durations"},
		{"retry_in", `null`, "want {base"},
		{"journal", `"all"`, ""},
		{"journal", `{"keep":50000,"for":"168h"}`, ""},
		{"journal", `"some"`, `want failures, all, none or {runs, keep, for}, got "some"`},
		{"journal", `{"keep":0}`, "keep: want a whole number"},
		{"journal", `{"for":"1ms"}`, "for: want a duration, 1s"},
		{"morgue", `"all"`, ""},
		{"morgue", `{"keep":1000,"for":"2160h"}`, ""},
		{"morgue", `{}`, "want all or {keep, for}, got {}"},
		{"morgue", `"some"`, `want all or {keep, for}, got "some"`},
		{"morgue", `{"keep":0}`, "keep: want a whole number, 1 to 1000000000"},
		{"morgue", `{"runs":"all"}`, "morgue.runs: unknown key"},
		{"tracked", `["a","b"]`, ""},
		{"tracked", `[]`, ""},
		{"tracked", `["b","a","a"]`, `id "a" is there twice, want it once`},
		{"tracked", `[""]`, "0 bytes"},
		{"tracked", string(tooMany), "1001 ids, at most 1000"},
		{"tracked", `null`, "want a list of ids"},
		{"holds", `[{"id":"a"},{"prefix":"acme:","until":"2030-01-01T00:00:00Z","why":"sale"}]`, ""},
		{"holds", `[{}]`, "there must be an id or a prefix of ids; to hold all of a queue, pause it"},
		{"holds", `[{"id":"a","prefix":"b"}]`, "not both"},
		{"holds", `[{"prefix":"` + strings.Repeat("x", 513) + `"}]`, "has 513 bytes, at most 512"},
		{"holds", `{"id":"a"}`, "want a list of holds"},
		{"max_payload_size", `"16MiB"`, ""},
		{"max_payload_size", `"17MiB"`, "want a size, 1B to 16MiB, as in"},
		{"max_id_payloads", `10`, ""},
		{"max_id_size", `"1GiB"`, ""},
		{"max_id_size", `1024`, "want a size"},
		{"shards", `8`, "shards does not change at run time: the count says"},
		{"handler", `{}`, "handler does not change at run time"},
		{"handler.http", `"x"`, "does not change at run time"},
		{"batchsize", `8`, `unknown rule "batchsize", did you mean "batch_size"?`},
		{"nonsense", `8`, `unknown rule "nonsense"; there are batch_size, `},
		{"batch_size", `{`, "not JSON"},
		{"tracked", `["` + strings.Repeat("x", maxValue) + `"]`, "at most 65536 are allowed"},
	} {
		seen[c.key] = seen[c.key] || c.fault == ""
		_, err := Compact(c.key, json.RawMessage(c.value))
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s %s: got %v", c.key, c.value, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || !errors.Is(err, ErrValue)):
			t.Errorf("%s %.60s: got %v, want an ErrValue with %q", c.key, c.value, err, c.fault)
		}
	}
	for _, key := range Keys() {
		if !seen[key] {
			t.Errorf("%s: no value that it takes is tried", key)
		}
	}
}

// TestDelay checks that the formula is that of Ruby's Lowkiq, and that no count makes a delay
// overflow a time.Duration.
func TestDelay(t *testing.T) {
	t.Parallel()
	zero, two, second := time.Duration(0), 2.0, time.Second
	for _, c := range []struct {
		name      string
		r         RetryIn
		count     int
		low, high time.Duration
	}{
		{"Lowkiq's, first", RetryIn{}, 0, 15 * time.Second, 45 * time.Second},
		{"Lowkiq's, third", RetryIn{}, 2, 31 * time.Second, 121 * time.Second},
		{"formula", RetryIn{Base: &second, Power: &two, Jitter: &zero}, 3, 10 * time.Second, 10 * time.Second},
		{"power alone", RetryIn{Power: &two, Jitter: &zero}, 3, 24 * time.Second, 24 * time.Second},
		{"huge", RetryIn{}, 1_000_000, LongestDelay, LongestDelay},
		{"list", RetryIn{Delays: []time.Duration{1, 2}}, 0, 1, 1},
		{"list's end repeats", RetryIn{Delays: []time.Duration{1, 2}}, 9, 2, 2},
	} {
		for range 100 {
			if got := c.r.Delay(c.count); got < c.low || got > c.high {
				t.Fatalf("%s: got %s, want %s to %s", c.name, got, c.low, c.high)
			}
		}
	}
}

// TestDefaultsAreThoseOfTheModule checks that the limits that package lowkiq names are the
// defaults.
func TestDefaultsAreThoseOfTheModule(t *testing.T) {
	t.Parallel()
	if got, want := (Push{}).WithDefaults(), (Push{PayloadBytes: lowkiq.MaxPayloadBytes, Payloads: lowkiq.MaxPayloads, IDPayload: lowkiq.MaxIDPayload, Coalesce: CoalesceAll}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestCheckOfAProgram checks that rules of a program have the same bounds as in a file, and that
// contradictions are refused.
func TestCheckOfAProgram(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Rules{
		"": {BatchSize: 1000, MaxRetryCount: -1, HandlerTimeout: -1, MaxCrashes: -1, State: -1, Limit: Limit{Rate: Rate{5, time.Minute}}, Push: Push{Debounce: NoDebounce}},
		"batch_size: want a whole number, 1 to 1000, got 1001":              {BatchSize: 1001},
		"batch_size: want a whole number, 1 to 1000, got -1":                {BatchSize: -1},
		"max_crashes: want a whole number, 0 or 2 to 1000000, got 1":        {MaxCrashes: 1},
		`exhausted: want skip or bury or block, got "drop"`:                 {Exhausted: "drop"},
		"limit.burst: there is a burst without a rate":                      {Limit: Limit{Burst: 3}},
		"limit.rate: want a rate":                                           {Limit: Limit{Rate: Rate{5, 3 * time.Minute}}},
		"groups.concurrency: want a whole number":                           {Groups: Groups{Limit: Limit{Concurrency: -2}}},
		"debounce.most: 1s is less than quiet, 2s":                          {Push: Push{Debounce: Debounce{2 * time.Second, time.Second}}},
		"priority: it is 3 and needs scheduler lag":                         {Priority: 3, Scheduler: Seq},
		"max_payload_size: 2MiB is more than max_id_size, 1MiB":             {Push: Push{PayloadBytes: 2 << 20, IDPayload: 1 << 20}},
		`handler_timeout: want a duration, 0s or 1ms to 8760h, as in "30s"`: {HandlerTimeout: 1},
		`journal.keep: want a whole number, 1 to 1000000000, got -5`:        {Journal: Journal{Keep: -5}},
	} {
		err := r.Check()
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrValue) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", r, err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{1 << 20: "1MiB", 3 << 10: "3KiB", 1 << 30: "1GiB", 1000: "1000B"} {
		if got := bounds.SizeText(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
		if bounds.Size(want) != int64(n) {
			t.Errorf("%s: got %d, want %d", want, bounds.Size(want), n)
		}
	}
}

// TestContradictions checks that each contradiction names both rules, and that all contradictions
// are reported at once.
func TestContradictions(t *testing.T) {
	t.Parallel()
	r := Rules{Priority: 3, Scheduler: Seq, Push: Push{PayloadBytes: 2 << 20, IDPayload: 1 << 20}}
	got := map[string]string{}
	for _, err := range r.Contradictions() {
		got[err.Key] = err.Other
	}
	if want := map[string]string{"priority": "scheduler", "max_payload_size": "max_id_size"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := r.Check(); err == nil || !strings.Contains(err.Error(), "priority: ") || !strings.Contains(err.Error(), "max_payload_size: ") {
		t.Errorf("got %v, want both", err)
	}
}
