package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// answer is what a handler said, as read.
type answer struct {
	ok     *bool
	reason *string
	failed lowkiq.Failed
	flight *int64
	fields []string // seen
}

// ParseAnswer reads a handler's answer to batch, and returns what a Go handler would have returned:
// nil when every job is done, [lowkiq.Failed] when some failed or, with a [lowkiq.Bury], are never
// to be tried again, else the failure of the whole batch. An [*Error] means that text is no answer
// at all. An answer that names an id which is not in the batch is a failure of the whole batch,
// because what the handler meant cannot be told.
func ParseAnswer(text []byte, batch *lowkiq.Batch) error {
	if string(text) == `{"ok":true}` {
		return nil
	}
	d := decoder{lexer: lexer{src: text}}
	a, err := d.answer()
	if err != nil {
		return d.located(err)
	}
	if a.flight != nil && *a.flight != batch.Flight {
		return errorAt(text, 0, "flight", fmt.Sprintf("is %d, but the batch has %d: this answers another batch", *a.flight, batch.Flight))
	}
	switch {
	case a.ok != nil && a.failed != nil:
		return errorAt(text, 0, "", `answer has both "ok" and "failed" or "bury", want one of them`)
	case a.failed != nil && a.reason != nil:
		return errorAt(text, 0, "error", `given beside "failed" or "bury"; each id has its own, and a batch that failed as a whole is {"ok":false,"error":"..."}`)
	case a.failed != nil:
		return a.perID(batch)
	case a.ok == nil:
		return errorAt(text, 0, "", `answer has neither "ok" nor "failed" nor "bury"`)
	case *a.ok && a.reason != nil:
		return errorAt(text, 0, "error", `given although "ok" is true`)
	case *a.ok:
		return nil
	case a.reason == nil || *a.reason == "":
		return errors.New("handler answered ok: false, without an error")
	}
	return errors.New(*a.reason)
}

// perID is the answer per id, if the ids are those of the batch.
func (a *answer) perID(batch *lowkiq.Batch) error {
	if len(a.failed) == 0 {
		return nil
	}
	known := 0
	for i := range batch.Jobs {
		if _, ok := a.failed[batch.Jobs[i].ID]; ok {
			known++
		}
	}
	if known == len(a.failed) {
		return a.failed
	}
	ids := make(map[string]bool, len(batch.Jobs))
	for i := range batch.Jobs {
		ids[batch.Jobs[i].ID] = true
	}
	for id := range a.failed {
		if !ids[id] {
			return fmt.Errorf("handler named %q as failed, which is not in the batch: all of it counts as failed", id)
		}
	}
	return a.failed // the batch named an id twice
}

func (d *decoder) answer() (a answer, err *fault) {
	if d.space(); d.peek() != '{' {
		return a, d.unexpected(`an answer such as {"ok":true}`)
	}
	err = d.object(0, func(key []byte) *fault {
		at := d.pos
		d.field = string(key[1 : len(key)-1])
		if err := d.answerField(key, &a); err != nil {
			err.pos = max(err.pos, at)
			return err
		}
		d.field = ""
		return nil
	})
	if err != nil {
		return a, err
	}
	if d.space(); d.pos < len(d.src) {
		return a, d.unexpected("the end after the answer")
	}
	return a, nil
}

func (d *decoder) answerField(key []byte, a *answer) *fault {
	if slices.Contains(a.fields, d.field) {
		return &fault{reason: "given twice"}
	}
	a.fields = append(a.fields, d.field)
	switch string(key) {
	case `"ok"`:
		return d.boolean(&a.ok)
	case `"error"`:
		reason, err := d.text()
		a.reason = &reason
		return err
	case `"flight"`:
		return d.integer(&a.flight)
	case `"failed"`:
		return d.failures(a, d.decodeKey, failure)
	case `"failed_base64"`:
		return d.failures(a, d.decodeKey64, failure)
	case `"bury"`:
		return d.failures(a, d.decodeKey, burial)
	case `"bury_base64"`:
		return d.failures(a, d.decodeKey64, burial)
	}
	d.field = ""
	return d.fault("unknown field %s in an answer (known: ok, error, failed, failed_base64, bury, bury_base64, flight)", key)
}

func (d *decoder) boolean(into **bool) *fault {
	start := d.pos
	if err := d.value(1); err != nil {
		return err
	}
	switch string(d.src[start:d.pos]) {
	case "true":
		*into = new(true)
	case "false":
		*into = new(false)
	default:
		return &fault{reason: "must be true or false"}
	}
	return nil
}

func (d *decoder) integer(into **int64) *fault {
	start := d.pos
	if err := d.value(1); err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(d.src[start:d.pos]), 10, 64)
	if err != nil {
		return &fault{reason: "must be the number that the batch has"}
	}
	*into = &n
	return nil
}

func failure(reason string) error { return errors.New(reason) }
func burial(reason string) error  { return lowkiq.Bury{Reason: reason} }

// failures reads an object of ids and errors.
func (d *decoder) failures(a *answer, decodeKey func([]byte) (string, *fault), kind func(string) error) *fault {
	if d.peek() != '{' {
		return d.wrongKind(`must be an object of ids and errors, such as {"a":"no such account"}`)
	}
	if a.failed == nil {
		a.failed = lowkiq.Failed{}
	}
	return d.object(1, func(key []byte) *fault {
		id, err := decodeKey(key)
		if err != nil {
			return err
		}
		reason, err := d.text()
		if err != nil {
			return err
		}
		if a.failed[id] != nil {
			return &fault{reason: fmt.Sprintf("id %q is named twice", id)}
		}
		a.failed[id] = kind(reason)
		return nil
	})
}

func (d *decoder) decodeKey(raw []byte) (string, *fault) {
	id, ok := decode(raw)
	if !ok {
		return "", &fault{reason: `half of a surrogate pair (\ud800 to \udfff) is no text`}
	}
	return id, nil
}

func (d *decoder) decodeKey64(raw []byte) (string, *fault) {
	l := decoder{lexer: lexer{src: raw}}
	return l.base64Text()
}

// Error says what was wrong in the text that was read, and where.
type Error struct {
	Line   int    // first line is 1; a [Scanner] counts the lines of the stream
	Column int    // first byte of the line is 1
	Field  string // "score", or "[2].score" for the third element of an array; may be empty
	Reason string // what is wrong and what would be right
}

// Error returns "line 3, column 7: score: must be a number".
func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Detail())
}

// Detail returns the error without its place: "score: must be a number".
func (e *Error) Detail() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// errorAt is an Error at the byte offset pos of src.
func errorAt(src []byte, pos int, field, reason string) *Error {
	before := src[:min(pos, len(src))]
	return &Error{
		Line:   1 + bytes.Count(before, []byte{'\n'}),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Field:  field,
		Reason: reason,
	}
}
