package terminal

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"order-17 é 漢 👍":    "order-17 é 漢 👍",
		"\x1b[2Jgone":       `\x1b[2Jgone`,
		"\x1b]0;title\x07":  `\x1b]0;title\x07`,
		"c1 \u009b31m":      `c1 \u009b31m`,
		"left \u202e right": `left \u202e right`,
		"a\nb\tc":           `a\x0ab\x09c`,
		"not \xff utf-8":    `not \xff utf-8`,
		"\ufffd is one":     "\ufffd is one",
	} {
		if got := EscapeText(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := EscapeExcept("one\ntwo\x1b", "\n"); got != "one\ntwo\\x1b" {
		t.Errorf("got %q, want the line break kept and the escape not", got)
	}
}

// JSON that is made plain says what it said.
func TestPlainJSON(t *testing.T) {
	t.Parallel()
	want := map[string]string{"id": "a\u009b\u007f\u202e👍\U000e0001\n"}
	text, err := json.MarshalIndent(want, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	safe := EscapeJSON(text)
	for _, r := range string(safe) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			t.Errorf("got %q, which has %U", safe, r)
		}
	}
	var got map[string]string
	if err := json.Unmarshal(safe, &got); err != nil || got["id"] != want["id"] {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// The log, which is JSON where nobody looks at a terminal, speaks to none later either.
func TestLogSpeaksToNoTerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(EscapingWriter{&out}, nil))
	log.Warn("handler failed", "id", "x\u009b2J\u202ey")
	for _, r := range out.String() {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("got %q, which has %U", out.String(), r)
		}
	}
	var got struct{ ID string }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got.ID != "x\u009b2J\u202ey" {
		t.Errorf("got %q, %v, want the id as it is", got.ID, err)
	}
}
