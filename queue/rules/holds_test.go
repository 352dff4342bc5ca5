package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// TestHolds checks that a hold replaces an earlier hold of the same ids, that ended holds go, the
// limit of holds, and that none is left after all are undone.
func TestHolds(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	in := map[string]Setting{}
	add := func(h Hold) error {
		value, _, err := WithHold(in, h, now)
		if err == nil {
			if value, err = Compact("holds", value); err == nil {
				in["holds"] = Setting{Value: value}
			}
		}
		return err
	}
	all := func() (text string) {
		v, err := Set{Settings: in}.Apply(Rules{}, now)
		if err != nil {
			t.Fatal(err)
		}
		for i := range v.Holds {
			text += v.Holds[i].String() + v.Holds[i].Why + " "
		}
		return text
	}
	for _, h := range []Hold{{ID: "a"}, {Prefix: "a"}, {ID: "b", Until: now.Add(time.Minute), Why: "1"}, {ID: "a", Why: "2", By: changes.Who{Name: "ann"}}} {
		if err := add(h); err != nil {
			t.Fatal(err)
		}
	}
	if got := all(); got != `prefix "a" "b"1 "a"2 ` {
		t.Errorf("got %q, want a once, and both others", got)
	}
	now = now.Add(time.Minute)
	if got := all(); got != `prefix "a" "a"2 ` {
		t.Errorf("a minute later: got %q, want that b is over", got)
	}
	if _, _, err := WithoutHold(in, Hold{ID: "b"}, now); !errors.Is(err, ErrSame) {
		t.Errorf("to undo one that is over: got %v, want ErrSame", err)
	}
	for _, bad := range []Hold{{}, {ID: "a", Prefix: "b"}, {ID: "\xff"}, {Prefix: strings.Repeat("x", 513)}} {
		if err := add(bad); !errors.Is(err, ErrValue) {
			t.Errorf("%+v: got %v, want ErrValue", bad, err)
		}
	}
	value, was, err := WithoutHold(in, Hold{Prefix: "a"}, now)
	in["holds"] = Setting{Value: value}
	if got := all(); err != nil || got != `"a"2 ` || was == nil || was.Prefix != "a" {
		t.Errorf("undone: got %q, %v, want a2", got, err)
	}
	if value, _, err := WithoutHold(in, Hold{ID: "a"}, now); value != nil || err != nil {
		t.Errorf("the last one undone: got %s, %v, want nothing", value, err)
	}
	many := make([]Hold, MaxHolds-1)
	for i := range many {
		many[i] = Hold{ID: fmt.Sprint(i)}
	}
	if value, err = json.Marshal(many); err != nil {
		t.Fatal(err)
	}
	in["holds"] = Setting{Value: value}
	if err := add(Hold{ID: "the last one"}); err != nil {
		t.Fatal(err)
	}
	if err := add(Hold{ID: "one more"}); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), "1000") {
		t.Errorf("one more than the limit: got %v", err)
	}
	if err := add(Hold{ID: "7", Why: "again"}); err != nil {
		t.Errorf("one that is there, at the limit: got %v", err)
	}
	c := Change{Set: map[string]json.RawMessage{"holds": json.RawMessage(`[{"id":"a"}]`)}}
	if err := c.Check(); !errors.Is(err, ErrValue) {
		t.Errorf("set as a whole: got %v, want ErrValue", err)
	}
}

// TestHeldIDs checks that an id's own hold comes first, then the hold of the longest prefix.
func TestHeldIDs(t *testing.T) {
	t.Parallel()
	h := NewHeld([]Hold{{Prefix: "ac"}, {ID: "acme:1"}, {Prefix: "acme:"}, {Prefix: "x"}, {ID: "x*"}, {ID: "b"}})
	for id, want := range map[string]string{"acme:1": `"acme:1"`, "acme:2": `prefix "acme:"`, "ac": `prefix "ac"`, "acm": `prefix "ac"`, "a": "", "x": `prefix "x"`, "x*": `"x*"`, "": "", "bx": ""} {
		got := ""
		if of := h.Of(id); of != nil {
			got = of.String()
		}
		if got != want || h.Holds(id) != (want != "") {
			t.Errorf("%q: held by %q, want %q", id, got, want)
		}
	}
	for text, want := range map[string]string{"acme:1": `prefix "acme:"`, "acme:": `prefix "acme:"`, "acme": `prefix "ac"`, "a": "", "b": ""} {
		got := ""
		if of := h.Covering(&Hold{Prefix: text}); of != nil {
			got = of.String()
		}
		if got != want {
			t.Errorf("all ids with the prefix %q: held by %s, want %s", text, got, want)
		}
	}
	if of := h.Covering(&Hold{ID: "acme:1"}); of == nil || of.ID != "acme:1" {
		t.Errorf("acme:1: held by %v, want its own hold", of)
	}
	var none *Held
	if none.Covering(&Hold{ID: "a"}) != nil || none.Holds("a") || NewHeld(nil) != nil {
		t.Error("without holds an id is held")
	}
}

// TestHoldsInSets checks that the holds of a set in JSON are those that have not ended.
func TestHoldsInSets(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Millisecond)
	end := now.Add(time.Hour)
	holds := []Hold{{ID: "a", At: now, Until: end, Why: "x", By: changes.Who{Role: "admin"}}, {Prefix: "b", At: now, Until: now.Add(-1)}}
	value, err := json.Marshal(holds)
	if err != nil {
		t.Fatal(err)
	}
	set := Set{Settings: map[string]Setting{"holds": {Value: value}}}
	if v, err := set.Apply(Rules{}, now); err != nil || !reflect.DeepEqual(v.Holds, Holds(holds[:1])) || !set.NextEnd(v.Holds, now).Equal(end) {
		t.Errorf("got %+v, %v, want the first alone", v.Holds, err)
	}
	if end := set.NextEnd(nil, now); !end.IsZero() {
		t.Errorf("settings without an end: got %v", end)
	}
	set.Settings["batch_size"] = Setting{Value: json.RawMessage("2"), Until: now.Add(time.Minute)}
	set.Settings["prefetch"] = Setting{Value: json.RawMessage("2"), Until: now.Add(-time.Minute)}
	if next := set.NextEnd(holds[:1], now); !next.Equal(now.Add(time.Minute)) {
		t.Errorf("got %v, want the end of batch_size", next)
	}
}
