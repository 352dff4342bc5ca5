package valuetext

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// FuzzParse checks that text of a person is refused, or gives JSON whose text reads as the same JSON. The JSON is not
// many times as long.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"10", "-0.", "1.5", "30s", "{base: 1m, power: 2}", "[10s, 1m]", `"10"`, "true", "null", "{1: 2}", "~", "0x10", "1e400", ".inf", ".nan", "2026-01-02", "!!binary aGk=", "- a\n- b", "|\n  x\n",
		"a: &a [x, x]\nb: [*a, *a]", "&a [*a]", "{? a : b}", "{a: 1, a: 2}", "\"\\ud800\"", "{\"\": [null]}", "'it''s'", "[[[[]]]]", "- [a]: b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := Parse(text)
		if err != nil {
			return
		}
		if !json.Valid(value) || len(value) > 100+40*len(text) {
			t.Fatalf("%q: got %.200q of %d bytes", text, value, len(value))
		}
		written := Format(value)
		if strings.Trim(text, " ") == "" || written == "" || value[0] == '"' { // a text stands alone without its quotes
			return
		}
		if len(written) > maxText { // its escapes are longer than what they stand for
			return
		}
		again, err := Parse(written)
		var was, is any // as values: -0 is written 0
		_, _ = json.Unmarshal(value, &was), json.Unmarshal(again, &is)
		if err != nil || !reflect.DeepEqual(was, is) {
			t.Errorf("%q is %s, written %q, which is %s, %v", text, value, written, again, err)
		}
	})
}

// FuzzWritten checks that all JSON has a text.
func FuzzWritten(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"x: y",null,true]}`, `["10","a b",{}]`, `"x"`, "null", "", "{", `{"\u0000":"\n"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		_ = Text(value)
		if written := Format(value); len(written) > 100+12*len(value) {
			t.Errorf("%q: got %d bytes", value, len(written))
		}
	})
}
