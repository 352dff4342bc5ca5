package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each key takes what it should, and its error says what would be right.
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
		{"limit", `{}`, "want none or {concurrency, rate, burst}: none of them is there"},
		{"limit", `{"burst":2}`, "there is a burst, and no rate"},
		{"limit", `{"concurrency":0}`, "concurrency: want a whole number, 1 to 1000000, got 0"},
		{"limit", `{"rate":"100"}`, `rate: want a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h, got "100"`},
		{"limit", `{"rate":"0/s"}`, "want a rate"},
		{"limit", `{"rate":5}`, `got "5"`},
		{"groups", `"none"`, ""},
		{"groups", `{"by":"/"}`, ""},
		{"groups", `{"concurrency":2,"rate":"10/s"}`, ""},
		{"groups", `{}`, "want none or {by, concurrency, rate, burst}: none of them is there"},
		{"groups", `{"by":""}`, `by: want what ends the prefix of an id, 1 to 8 bytes, as in ":", got ""`},
		{"groups", `{"by":"123456789"}`, "1 to 8 bytes"},
		{"groups", `{"by":":","burst":2}`, "there is a burst, and no rate"},
		{"coalesce", `"latest"`, ""},
		{"coalesce", `"last"`, "want all or latest or once"},
		{"debounce", `"none"`, ""},
		{"debounce", `{"quiet":"2s","most":"30s"}`, ""},
		{"debounce", `{"quiet":"2s"}`, ""},
		{"debounce", `{"most":"2s"}`, "want none or {quiet, most}: quiet is not there"},
		{"debounce", `{"quiet":"2s","most":"1s"}`, "most is 1s, less than quiet, 2s"},
		{"debounce", `{"quiet":"48h"}`, "quiet: want"},
		{"limit", `20`, "want none or {concurrency, rate, burst}: want a mapping"},
		{"expire", `"never"`, ""},
		{"expire", `{"after":"1h"}`, ""},
		{"expire", `{"to":"drop"}`, ""},
		{"expire", `{"after":"1h","to":"morgue"}`, ""},
		{"expire", `{}`, "want never or {after, to}: neither is there"},
		{"expire", `{"after":"0s"}`, "after: want a duration, 1s to 8760h"},
		{"expire", `{"to":"bin"}`, `to: want morgue or drop, got "bin"`},
		{"expire", `"1h"`, "want never or {after, to}: want a mapping"},
		{"expire", `{"for":"1h"}`, `unknown key "for"`},
		{"stuck_after", `"0s"`, ""},
		{"stuck_after", `"5m"`, ""},
		{"stuck_after", `"10ms"`, "want a duration, 1s to 8760h"},
		{"handler_timeout", `"0s"`, ""},
		{"handler_timeout", `"1.5h"`, ""},
		{"handler_timeout", `30`, `want a duration, 0s to 8760h, as in "30s", got 30`},
		{"handler_timeout", `"-1s"`, "want a duration"},
		{"max_retry_count", `0`, ""},
		{"max_retry_count", `-1`, "0 to 1000000"},
		{"max_crashes", `0`, ""},
		{"max_crashes", `1`, "want 2 or more, or 0"},
		{"exhausted", `"block"`, ""},
		{"exhausted", `"drop"`, "skip or bury or block"},
		{"state", `"720h"`, ""},
		{"state", `"x"`, "want a duration"},
		{"retry_in", `{"base":"5s","power":2}`, ""},
		{"retry_in", `["10s","1m"]`, ""},
		{"retry_in", `[]`, "an empty list"},
		{"retry_in", `["x"]`, "want a duration"},
		{"retry_in", `{"pow":2}`, `unknown key "pow"`},
		{"retry_in", `{"power":11}`, "want a number, 0 to 10, got 11"},
		{"retry_in", `"1m"`, "want {base, power, jitter} or a list of durations"},
		{"retry_in", `null`, "want {base"},
		{"journal", `"all"`, ""},
		{"journal", `{"keep":50000,"for":"168h"}`, ""},
		{"journal", `"some"`, "want failures, all, none or {runs, keep, for}"},
		{"journal", `{"keep":0}`, "keep: want a whole number"},
		{"journal", `{"for":"1ms"}`, "for: want a duration, 1s"},
		{"morgue", `"all"`, ""},
		{"morgue", `{"keep":1000,"for":"2160h"}`, ""},
		{"morgue", `{}`, "want all or {keep, for}: neither is there"},
		{"morgue", `"some"`, "want all or {keep, for}: want a mapping"},
		{"morgue", `{"keep":0}`, "keep: want a whole number, 1 to 1000000000"},
		{"morgue", `{"runs":"all"}`, "unknown key \"runs\""},
		{"tracked", `["a","b"]`, ""},
		{"tracked", `[]`, ""},
		{"tracked", `["b","a","a"]`, `id "a" is there twice, want it once`},
		{"tracked", `[""]`, "0 bytes"},
		{"tracked", string(tooMany), "1001 ids, at most 1000"},
		{"tracked", `null`, "want a list of ids"},
		{"holds", `[{"id":"a"},{"prefix":"acme:","until":"2030-01-01T00:00:00Z","why":"sale"}]`, ""},
		{"holds", `[{}]`, "want an id, or a prefix of ids; to hold all of a queue, pause it"},
		{"holds", `[{"id":"a","prefix":"b"}]`, "not both"},
		{"holds", `[{"prefix":"` + strings.Repeat("x", 513) + `"}]`, "has 513 bytes, at most 512"},
		{"holds", `{"id":"a"}`, "want a list of holds"},
		{"max_payload_size", `"16MiB"`, ""},
		{"max_payload_size", `"17MiB"`, "1KiB to 16MiB"},
		{"max_id_payloads", `10`, ""},
		{"max_id_size", `"1GiB"`, ""},
		{"max_id_size", `1024`, "want a size"},
		{"shards", `8`, "shards does not change at run time: the count says"},
		{"handler", `{}`, "handler does not change at run time"},
		{"handler.http", `"x"`, "does not change at run time"},
		{"batchsize", `8`, `unknown rule "batchsize", did you mean "batch_size"?`},
		{"nonsense", `8`, `unknown rule "nonsense"; there are batch_size, `},
		{"batch_size", `{`, "no JSON"},
		{"tracked", `["` + strings.Repeat("x", maxValue) + `"]`, "at most 65536 are allowed"},
	} {
		seen[c.key] = seen[c.key] || c.fault == ""
		_, err := Check(c.key, json.RawMessage(c.value))
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

func TestDelay(t *testing.T) {
	t.Parallel()
	list := RetryIn{Delays: []time.Duration{time.Second, time.Minute}}
	got := []time.Duration{list.Delay(0), list.Delay(1), list.Delay(7)}
	if want := []time.Duration{time.Second, time.Minute, time.Minute}; !slices.Equal(got, want) {
		t.Errorf("a list: got %v, want %v", got, want)
	}
	power, jitter := 2.0, time.Duration(0)
	if got := (RetryIn{Power: &power, Jitter: &jitter}).Delay(3); got != 24*time.Second {
		t.Errorf("3^2 s + 15 s: got %s", got)
	}
	if got := (RetryIn{}).Delay(1_000_000); got != LongestDelay {
		t.Errorf("a steep formula: got %s, want %s", got, LongestDelay)
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{1 << 20: "1MiB", 3 << 10: "3KiB", 1 << 30: "1GiB", 1000: "1000 bytes"} {
		if got := SizeText(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
		if Size(want) != int64(n) && n != 1000 {
			t.Errorf("%s: got %d, want %d", want, Size(want), n)
		}
	}
}
