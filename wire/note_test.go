package wire

import (
	"errors"
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq"
)

func TestParseNotes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Note{
		`{"note":{"a":{"progress":0.4,"log":"page 12","state":{"page":12}}}}`: {{"a", lowkiq.Note{Progress: .4, Log: "page 12", State: []byte(`{"page":12}`)}}},
		` { "note" : {"a":{"progress":1},"b":{"log":"x"}} } `:                 {{"a", lowkiq.Note{Progress: 1}}, {"b", lowkiq.Note{Log: "x"}}},
		`{"note_base64":{"/w==":{"state":{"$base64":"/wA="}}}}`:               {{"\xff", lowkiq.Note{State: []byte{0xff, 0}}}},
		`{"note":{"a":{"state":""}}}`:                                         {{"a", lowkiq.Note{State: []byte{}}}},
		`{"note":{}}`:                                                         nil,
	} {
		if got, ok, err := ParseNotes([]byte(text)); !ok || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, %v, want %+v", text, got, ok, err, want)
		}
	}
	for _, text := range []string{`{"ok":true}`, `{"notes":{}}`, `note`, ``, `{}`, `[{"note":{}}]`} {
		if got, ok, err := ParseNotes([]byte(text)); ok || err != nil || got != nil {
			t.Errorf("%s: got %+v, %v, %v, want that it is none", text, got, ok, err)
		}
	}
	for text, want := range map[string]string{
		`{"note":{"a":{"progress":2}}}`:              `line 1, column 26: id "a": progress: must be a number from 0 to 1`,
		`{"note":{"a":{"progress":"x"}}}`:            `line 1, column 26: id "a": progress: must be a number from 0 to 1`,
		`{"note":{"a":{"state":null}}}`:              `line 1, column 15: id "a": state: a note cannot delete it: an answer can`,
		`{"note":{"a":{"done":1}}}`:                  `line 1, column 15: id "a": unknown field "done" (known: progress, log, state)`,
		`{"note":{"a":{"log":"x","log":"y"}}}`:       `line 1, column 25: id "a": log: given twice`,
		`{"note":{"a":1}}`:                           `line 1, column 10: id "a": must be an object with progress, log or state, such as {"progress":0.4}`,
		`{"note":1}`:                                 `line 1, column 2: must be an object of ids and notes, such as {"a":{"progress":0.4}}`,
		`{"note":{"a":{"progress":0.4}},"ok":true}`:  `line 1, column 37: unknown field "ok" beside a note (known: note, note_base64)`,
		`{"note":{"a":{"progress":0.4}}}{"ok":true}`: `line 1, column 32: unexpected character '{', want the end after the notes`,
		`{"note":{"a":`:                              ``,
	} {
		_, ok, err := ParseNotes([]byte(text))
		var bad *Error
		if !ok || !errors.As(err, &bad) || want != "" && err.Error() != want {
			t.Errorf("%s: got %v, %v, want %q", text, ok, err, want)
		}
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add(`{"note":{"a":{"progress":0.4,"log":"page 12","state":{"page":12}}}}`)
	f.Add(`{"note_base64":{"/w==":{"state":{"$base64":"/wA="}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		notes, ok, err := ParseNotes([]byte(text))
		if !ok && (notes != nil || err != nil) || err != nil && notes != nil {
			t.Errorf("%q: got %+v, %v, %v", text, notes, ok, err)
		}
		for _, n := range notes {
			if !(n.Progress >= 0 && n.Progress <= 1) {
				t.Errorf("%q: got progress %v", text, n.Progress)
			}
		}
	})
}
