package valuetext

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10": `10`, "1.5": `1.5`, "30s": `"30s"`, "1MiB": `"1MiB"`, "all": `"all"`, "{base: 1m, power: 2}": `{"base":"1m","power":2}`, "[10s, 1m]": `["10s","1m"]`,
		`"10"`: `"10"`, "true": "true", "": "", "null": "", "{": "", "a: b: c": "", "{1: 2}": `{"1":2}`,
	} {
		got, err := Parse(text)
		if string(got) != want || (err == nil) == (want == "") {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
}

// A short text does not become a long value, however it is nested.
func TestParseIsBounded(t *testing.T) {
	t.Parallel()
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 5; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8))
	}
	for _, text := range []string{laughs, "&a [*a]", "a: &a {b: 1}\nc: {<<: *a}", strings.Repeat("[", 1<<13)} {
		if value, err := Parse(text); err == nil {
			t.Errorf("%.60q: got %d bytes, want an error", text, len(value))
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{`"30s"`: "30s", "10": "10", "null": "", "": "", `{"a":1}`: `{"a":1}`} {
		if got := Text(json.RawMessage(value)); got != want {
			t.Errorf("%s: got %s, want %s", value, got, want)
		}
	}
}

func TestWritten(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": "", "null": "", `"30s"`: "30s", "10": "10", `{}`: "{}", `[]`: "[]",
		`{"rate":"100/s","burst":20,"concurrency":5}`: "{burst: 20, concurrency: 5, rate: 100/s}",
		`["10s","1m"]`: "[10s, 1m]",
		`{"by":":","when":"2026-01-02T15:04:05Z","no":"true","n":"10","e":"","u":null,"deep":{"a":[1,"x y"]}}`: `{by: ":", deep: {a: [1, "x y"]}, e: "", n: "10", no: "true", u: null, when: "2026-01-02T15:04:05Z"}`,
		`{"a\"b":"<\n>"}`: `{"a\"b": "<\n>"}`,
	} {
		got := Format(json.RawMessage(value))
		if got != want {
			t.Errorf("%s: got %s, want %s", value, got, want)
		}
		if value == "" || value == "null" || value == `"30s"` || value == "10" {
			continue
		}
		back, err := Parse(got)
		var was, is any
		if err != nil || json.Unmarshal([]byte(value), &was) != nil || json.Unmarshal(back, &is) != nil || !reflect.DeepEqual(was, is) {
			t.Errorf("%s is read as %s, %v, want %s", got, back, err, value)
		}
	}
}
