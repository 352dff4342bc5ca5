package rules

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// FuzzCompact checks that a value is refused, or is stored as JSON that is accepted again and takes
// effect.
func FuzzCompact(f *testing.F) {
	for key, values := range map[string][]string{
		"batch_size": {"10", "0", "1e3", "1.5"}, "limit": {`{"concurrency":5,"rate":"100/s","burst":20}`, `{"rate":"1/h"}`, "null"},
		"groups": {`{"by":":","rate":"5/m"}`, `{"by":"","concurrency":1}`}, "retry_in": {`{"base":"1m","power":2}`, `["10s","1m"]`, "[]", `{"base":"1ns"}`},
		"handler_timeout": {`"30s"`, `"1ns"`, `"0s"`}, "journal": {`"failures"`, `{"runs":"all","keep":100,"for":"1h"}`}, "morgue": {`{"keep":10,"for":"1h"}`},
		"expire": {`"3s"`, `{"after":"1m","to":"drop"}`}, "debounce": {`"1s"`, `{"quiet":"1s","most":"1m"}`}, "tracked": {`["a","b"]`, `["a","a"]`},
		"holds": {`[{"id":"a"},{"prefix":"b"}]`}, "max_payload_size": {`"1MiB"`, `"999999999GiB"`}, "scheduler": {`"lag"`}, "stuck_after": {`"1m"`}, "other": {"1"},
	} {
		for _, value := range values {
			f.Add(key, value)
		}
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		kept, err := Compact(key, json.RawMessage(value))
		if err != nil {
			return
		}
		again, err := Compact(key, kept)
		if err != nil || !bytes.Equal(again, kept) || !json.Valid(kept) || len(kept) > len(value) {
			t.Fatalf("%s: %q is kept as %q, which is kept as %q, %v", key, value, kept, again, err)
		}
		set := Set{Rev: 1, Settings: map[string]Setting{key: {Value: kept}}}
		text, err := json.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Parse("q", string(text))
		if err != nil {
			t.Fatalf("%s: %q: the set cannot be read: %v", key, kept, err)
		}
		v, err := read.Apply(Rules{}, time.Unix(1, 0))
		if err != nil {
			t.Fatalf("%s: %q is not in force: %v", key, kept, err)
		}
		if r := v.RetryIn; !r.IsZero() {
			for _, count := range []int{0, 1, 1 << 40} {
				if d := r.Delay(count); d < 0 || d > LongestDelay {
					t.Errorf("%q: got a delay of %s", kept, d)
				}
			}
		}
		if err := v.Check(); err != nil {
			t.Errorf("%s: %q was taken, and is no such rule: %v", key, kept, err)
		}
	})
}

// FuzzParse checks that an unreadable part of a queue's rules in Redis is named, and that the rest
// takes effect.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"rev":3,"set":{"batch_size":{"value":10,"by":{"role":"admin"},"at":"2026-01-02T15:04:05Z","until":"2026-01-02T16:04:05Z"}}}`,
		`{"rev":1,"set":{"holds":{"value":[{"id":"a","by":{}}]},"later":{"value":{"x":1}}}}`, `{"set":{"tracked":{"value":["a"]}},"last":["m"]}`, `{"set":{"limit":{}}}`, "[]", "{",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Parse("q", text)
		if err != nil {
			return
		}
		now := time.Unix(1_767_225_600, 0)
		v, bad := set.Apply(Rules{}, now)
		in := set.InForce(now)
		if len(in) > len(set.Settings) || bad == nil && len(in) == 0 && !reflect.DeepEqual(v, Rules{}) {
			t.Errorf("%q: got %d in force of %d, %+v", text, len(in), len(set.Settings), v)
		}
		again, err := json.Marshal(set)
		if err != nil {
			return // a time that JSON does not have
		}
		if twice, err := Parse("q", string(again)); err != nil || twice.Rev != set.Rev || len(twice.Settings) != len(set.Settings) {
			t.Errorf("%q: got %s, which is read as %+v, %v", text, again, twice, err)
		}
		_ = Show(nil, set, now)
	})
}

// FuzzRate checks that a rate is refused, or that its text is read as the same rate.
func FuzzRate(f *testing.F) {
	for _, seed := range []string{"100/s", "5/m", "1/h", "0/s", "01/s", "+5/m", "1000001/s", "/s", "1/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r, again Rate
		if r.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Errorf("%q: got %v, and once more %v, %v", text, r, again, err)
		}
	})
}
