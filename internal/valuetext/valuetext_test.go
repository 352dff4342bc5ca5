package valuetext

import (
	"encoding/json"
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

func TestText(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{`"30s"`: "30s", "10": "10", "null": "", "": "", `{"a":1}`: `{"a":1}`} {
		if got := Text(json.RawMessage(value)); got != want {
			t.Errorf("%s: got %s, want %s", value, got, want)
		}
	}
}
