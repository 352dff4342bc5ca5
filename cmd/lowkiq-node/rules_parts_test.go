package main

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq/web"
)

// TestPartsOfRules checks that setting a part of a mapping keeps the other given parts. A part that nobody gave follows
// its source. A given part stays, even if it equals its source.
func TestPartsOfRules(t *testing.T) {
	t.Parallel()
	burst, most := []string{"burst"}, []string{"most"}
	for _, c := range []struct {
		was     string
		assumed []string
		name    string
		value   string
		want    string
	}{
		{`{"burst":20,"concurrency":20,"rate":"100/s"}`, nil, "limit.rate", `"50/s"`, `{"burst":20,"concurrency":20,"rate":"50/s"}`},
		{`{"burst":100,"rate":"100/s"}`, burst, "limit.rate", `"50/s"`, `{"rate":"50/s"}`},
		{`{"burst":10,"concurrency":10,"rate":"600/m"}`, nil, "limit.rate", `"300/m"`, `{"burst":10,"concurrency":10,"rate":"300/m"}`},
		{`{"burst":100,"rate":"100/s"}`, burst, "limit.burst", `7`, `{"burst":7,"rate":"100/s"}`},
		{`{"by":":","burst":1,"rate":"1/s"}`, burst, "groups.rate", `"50/s"`, `{"by":":","rate":"50/s"}`},
		{`{"most":"20s","quiet":"2s"}`, most, "debounce.quiet", `"30s"`, `{"quiet":"30s"}`},
		{`{"most":"20s","quiet":"2s"}`, nil, "debounce.quiet", `"5s"`, `{"most":"20s","quiet":"5s"}`},
		{`{"most":"20s","quiet":"2s"}`, nil, "debounce.quiet", `"30s"`, ""},
		{`{"most":"20s","quiet":"2s"}`, most, "debounce.most", `"1m"`, `{"most":"1m","quiet":"2s"}`},
		{`"none"`, nil, "limit.concurrency", `3`, `{"concurrency":3}`},
		{`"none"`, nil, "limit.rat", `3`, ""},
		{`"none"`, nil, "limit.burst", `3`, ""},
		{`"none"`, nil, "limits.rate", `"5/s"`, ""},
	} {
		key := map[byte]string{'l': "limit", 'g': "groups", 'd': "debounce"}[c.name[0]]
		set := map[string]json.RawMessage{c.name: json.RawMessage(c.value)}
		err := completeParts(set, &web.Rules{Rules: []web.Rule{{Key: key, Value: json.RawMessage(c.was), From: "default", Assumed: c.assumed}}})
		var got, want any
		if err == nil {
			err = json.Unmarshal(set[key], &got)
		}
		same := c.want == "" || json.Unmarshal([]byte(c.want), &want) == nil && reflect.DeepEqual(got, want)
		if (err == nil) == (c.want == "") || !same || err == nil && len(set) != 1 {
			t.Errorf("%s of %s: got %s, %v, want %s", c.name, c.was, set[key], err, c.want)
		}
	}
	set := map[string]json.RawMessage{"limit.rate": json.RawMessage(`"5/s"`)}
	if err := completeParts(set, &web.Rules{Rules: []web.Rule{{Key: "limit", Value: json.RawMessage("null")}}}); err == nil {
		t.Errorf("got %s where the rest is not known, want an error", set)
	}
}
