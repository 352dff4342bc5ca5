package main

import (
	"encoding/json"
	"testing"

	"github.com/lowkiq/lowkiq/web"
)

// TestPartsOfRules: a part of a mapping is set beside the others as they were; a burst that was the old rate's default goes with it.
func TestPartsOfRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ was, name, value, want string }{
		{`{"burst":20,"concurrency":20,"rate":"100/s"}`, "limit.rate", `"50/s"`, `{"burst":20,"concurrency":20,"rate":"50/s"}`},
		{`{"burst":100,"rate":"100/s"}`, "limit.rate", `"50/s"`, `{"rate":"50/s"}`},
		{`"none"`, "limit.concurrency", `3`, `{"concurrency":3}`},
		{`"none"`, "limit.rat", `3`, ""},
		{`"none"`, "limit.burst", `3`, ""},
		{`"none"`, "limits.rate", `"5/s"`, ""},
	} {
		set := map[string]json.RawMessage{c.name: json.RawMessage(c.value)}
		err := whole(set, &web.Rules{Rules: []web.Rule{{Key: "limit", Value: json.RawMessage(c.was), From: "default"}}})
		if got := string(set["limit"]); (err == nil) == (c.want == "") || err == nil && (got != c.want || len(set) != 1) {
			t.Errorf("%s of %s: got %s, %v, want %s", c.name, c.was, got, err, c.want)
		}
	}
	set := map[string]json.RawMessage{"limit.rate": json.RawMessage(`"5/s"`)}
	if err := whole(set, &web.Rules{Rules: []web.Rule{{Key: "limit", Value: json.RawMessage("null")}}}); err == nil {
		t.Errorf("got %s where the rest is not known, want an error", set)
	}
}
