package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// anyQuery is the query of a route that looks at its parameters itself.
var anyQuery = []string{"*"}

// checkQuery refuses parameters that a route does not know, so that a misspelt limit is
// not a list without limit.
func checkQuery(raw string, known []string) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return NewProblem(http.StatusBadRequest, "query: %v", err)
	}
	if slices.Equal(known, anyQuery) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case len(known) == 0:
			return badField(name, "unknown query parameter; this route takes none")
		case !slices.Contains(known, name):
			return badField(name, "unknown query parameter; known are %s", strings.Join(known, ", "))
		case len(values[name]) > 1:
			return badField(name, "given %d times, want once", len(values[name]))
		}
	}
	return nil
}

// queueNamed is a queue by its name, whatever text that is.
func (a *api) queueNamed(ctx context.Context, name string) (*queue.Queue, error) {
	if err := queue.CheckName("queue", name); err != nil {
		return nil, NewProblem(http.StatusNotFound, "%v: %v", lowkiq.ErrUnknownQueue, err)
	}
	return a.client.Queue(ctx, name)
}

// body reads the whole body, as what is malformed must change nothing.
func (a *api) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	tooLarge := NewProblem(http.StatusRequestEntityTooLarge, "the body is longer than the limit of %d bytes: send it in parts", a.cfg.BodyLimit)
	if r.ContentLength > a.cfg.BodyLimit {
		return nil, tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, a.cfg.BodyLimit), r.ContentLength)
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit):
		return nil, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, NewProblem(http.StatusRequestTimeout, "the body did not arrive within %s, or nothing of it for %s", bodyTimeout, bodyPause)
	case Busy(err):
		return nil, NewProblem(http.StatusServiceUnavailable, "%v", err)
	case err != nil:
		return nil, NewProblem(http.StatusBadRequest, "read the body: %v", err)
	}
	return body, nil
}

// optional decodes a body that may be missing.
func (a *api) optional(w http.ResponseWriter, r *http.Request, v any, want string) error {
	body, err := a.body(w, r)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	return decodeBody(body, v, want)
}

// readAll reads a body of the announced length, -1 if that is unknown. What it holds grows with
// what has arrived: an announcement costs nothing.
func readAll(from io.Reader, length int64) ([]byte, error) {
	body := make([]byte, 0, 4096)
	for {
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
		if len(body) < cap(body) {
			continue
		}
		size := 2 * int64(cap(body))
		if length > int64(len(body)) {
			size = min(size, length+1) // one byte for the read that finds the end
		}
		body = append(make([]byte, 0, size), body...)
	}
}

// decodeBody reads one JSON object into v, and refuses fields that v does not have.
// want is an example of what would be right.
func decodeBody(body []byte, v any, want string) error {
	if !utf8.Valid(body) {
		return NewProblem(http.StatusBadRequest, "the body is not UTF-8; want %s", want)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed(body, err, dec.InputOffset(), want)
	}
	if rest := bytes.TrimLeft(body[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return located(NewProblem(http.StatusBadRequest, "want the end after one object"), body, len(body)-len(rest))
	}
	if pos := halfSurrogate(body); pos >= 0 { // it was read as U+FFFD: of an id that is another one
		return located(NewProblem(http.StatusBadRequest, "half of a surrogate pair (\\ud800 to \\udfff) is no text"), body, pos)
	}
	return nil
}

// halfSurrogate is where JSON has half of a surrogate pair, which no UTF-8 can carry; -1: nowhere.
func halfSurrogate(text []byte) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if r := escapedRune(text[i:]); !utf16.IsSurrogate(r) {
			i++ // what is escaped
		} else if utf16.DecodeRune(r, escapedRune(text[i+6:])) == utf8.RuneError {
			return i
		} else {
			i += 11
		}
	}
	return -1
}

// escapedRune is the code unit that \uXXXX at the beginning of a text stands for, -1 if it begins with something else.
func escapedRune(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

func malformed(body []byte, err error, offset int64, want string) error {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	name, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	switch {
	case errors.Is(err, io.EOF):
		return NewProblem(http.StatusBadRequest, "the body is empty; want %s", want)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return located(NewProblem(http.StatusBadRequest, "the body ends too early; want %s", want), body, len(body))
	case errors.As(err, &syntax):
		return located(NewProblem(http.StatusBadRequest, "%v; want %s", syntax, want), body, int(syntax.Offset)-1)
	case errors.As(err, &mistyped) && mistyped.Field == "":
		return located(NewProblem(http.StatusBadRequest, "got %s; want %s", mistyped.Value, want), body, 0)
	case errors.As(err, &mistyped):
		return located(badField(mistyped.Field, "got %s; want %s", mistyped.Value, want), body, int(mistyped.Offset)-1)
	case unknown:
		return located(badField(strings.Trim(name, `"`), "unknown field; want %s", want), body, int(offset))
	}
	return NewProblem(http.StatusBadRequest, "%v; want %s", err, want)
}

// located adds the place of the byte at pos.
func located(p *Problem, body []byte, pos int) *Problem {
	before := body[:max(0, min(pos, len(body)))]
	p.Line = 1 + bytes.Count(before, []byte{'\n'})
	p.Column = len(before) - bytes.LastIndexByte(before, '\n')
	return p
}
