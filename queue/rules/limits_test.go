package rules

import (
	"encoding/json"
	"testing"
	"time"
)

// written is a rule as people see it.
func written(key string, r Rules) ([]byte, error) { return json.Marshal(r.Bases(1, nil)[key].Value) }

// Groups are written and read like limits. The group of an id ends at its first separator.
func TestGroups(t *testing.T) {
	for want, groups := range map[string]Groups{
		`"none"`:                            {},
		`{"by":"/"}`:                        {By: "/"},
		`{"by":"::","concurrency":2}`:       {By: "::", Limit: Limit{Concurrency: 2}},
		`{"burst":9,"by":":","rate":"9/s"}`: {By: ":", Limit: Limit{Rate: Rate{9, time.Second}, Burst: 9}},
	} {
		text, err := written("groups", Rules{Groups: groups})
		if err != nil || string(text) != want {
			t.Errorf("%+v is written as %s, %v, want %s", groups, text, err, want)
		}
		var read Rules
		if err := read.Set("groups", text); err != nil || read.Groups != groups {
			t.Errorf("%s is read as %+v, %v, want %+v", text, read.Groups, err, groups)
		}
	}
	var read Rules
	if err := read.Set("groups", []byte(`{"concurrency":2}`)); err != nil || read.Groups.By != ":" {
		t.Errorf("without by: got %+v, %v, want it to be a colon", read.Groups, err)
	}
	for _, c := range []struct{ by, id, want string }{
		{":", "acme:7", "acme:"}, {":", "acme:eu:7", "acme:"}, {":", "acme", ""}, {":", ":7", ":"}, {"::", "a:b::c", "a:b::"}, {"", "acme:7", ""},
	} {
		if got := (Groups{By: c.by}).Of(c.id); got != c.want {
			t.Errorf("by %q %q is in group %q, want %q", c.by, c.id, got, c.want)
		}
	}
}

// Settings with a limit reach other processes as text, which is read as the same limit.
func TestLimitAsText(t *testing.T) {
	for want, limit := range map[string]Limit{
		`"none"`:                                      {},
		`{"concurrency":20}`:                          {Concurrency: 20},
		`{"burst":7,"rate":"100/s"}`:                  {Rate: Rate{100, time.Second}, Burst: 7},
		`{"burst":1,"rate":"5/m"}`:                    {Rate: Rate{5, time.Minute}, Burst: 1},
		`{"burst":2,"concurrency":1,"rate":"7200/h"}`: {Concurrency: 1, Rate: Rate{7200, time.Hour}, Burst: 2},
	} {
		text, err := written("limit", Rules{Limit: limit})
		if err != nil || string(text) != want {
			t.Errorf("%+v is written as %s, %v, want %s", limit, text, err, want)
		}
		var read Rules
		if err := read.Set("limit", text); err != nil || read.Limit != limit {
			t.Errorf("%s is read as %+v, %v, want %+v", text, read.Limit, err, limit)
		}
	}
	for _, text := range []string{`{}`, `{"burst":3}`, `{"rate":"5/d"}`, `{"concurrency":0}`, `7`} {
		read := Rules{Limit: Limit{Concurrency: 3}}
		if err := read.Set("limit", []byte(text)); err == nil || read.Limit != (Limit{Concurrency: 3}) {
			t.Errorf("%s is read as %+v, %v, want an error and no change", text, read.Limit, err)
		}
	}
}
