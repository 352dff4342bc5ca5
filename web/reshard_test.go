package web

import (
	"testing"
)

// A reshard is estimated, begun, shown and cancelled. A request that cannot be met is refused with the reason, and changes
// nothing.
func TestReshard(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	const path = "/api/v1/queues/orders/reshard"
	entries := func() string {
		t.Helper()
		all, err := w.client.Registry().Entries(t.Context())
		must(t, err)
		text := ""
		if all["orders"].Reshard != nil {
			text = "resharding"
		}
		return text
	}
	expect(t, w.do("GET", path, ""), 200, `{"queue":"orders","phase":"none","from":`)
	for _, c := range []struct {
		body, want string
		status     int
	}{
		{`{"shards":0}`, "0 shards; the number must be between 1 and 10000", 400},
		{`{"shards":-1}`, "-1 shards", 400},
		{`{"shards":1000001}`, "1000001 shards", 400},
		{`{"shards":"many"}`, "shards", 400},
		{`{"shards":7,"patience":"0s"}`, `patience: \"0s\" must be a time above 0`, 400},
		{`{"shards":7,"patience":"48h"}`, "patience", 400},
		{`{"shards":7,"max_pause":"-1s"}`, "max_pause", 400},
		{`{"shards":7,"max_pause":"1us"}`, "--max-pause", 409},
		{``, `it must be like {\"shards\":64`, 400},
	} {
		expect(t, w.do("POST", path, c.body), c.status, c.want)
		if entries() != "" {
			t.Fatalf("%s has begun a reshard", c.body)
		}
	}
	expect(t, w.do("POST", "/api/v1/queues/nowhere/reshard", `{"shards":7}`), 404, "unknown queue")
	expect(t, w.do("GET", "/api/v1/queues/nowhere/reshard", ""), 404, "unknown queue")
	expect(t, w.do("DELETE", path, ""), 409, "it is not being resharded")
	expect(t, w.do("POST", path, `{"shards":7,"dry_run":true}`), 200, `"phase":"none"`, `"estimate":{"jobs":`)
	if entries() != "" {
		t.Fatal("a dry run has begun a reshard")
	}
	expect(t, w.do("POST", path, `{"shards":7,"patience":"1h"}`), 200, `"phase":"draining"`, `"to":7`, `"waits_for":[`)
	expect(t, w.do("POST", path, `{"shards":7}`), 200, `"phase":"draining"`) // the same request shows the reshard that is under way
	expect(t, w.do("POST", path, `{"shards":9}`), 409, "it is being resharded to 7 shards; wait for its end, or take it back")
	expect(t, w.do("GET", path, ""), 200, `"phase":"draining"`)
	expect(t, w.do("GET", "/api/v1/queues/orders", ""), 200, `"reshard":{"phase":"draining"`, `"kind":"resharding"`)
	expect(t, w.do("GET", "/api/v1/queues", ""), 200, `"reshard":{"phase":"draining"`)
	expect(t, w.do("DELETE", path, ""), 200, `"phase":"none"`)
	expect(t, w.do("POST", path, `{"shards":9}`), 200, `"to":9`)
}
