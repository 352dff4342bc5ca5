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
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// checkQuery refuses parameters that a route does not know. A misspelt limit must not become a list without
// limit.
func checkQuery(raw string, params []param) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return NewProblem(http.StatusBadRequest, "query: %v", err)
	}
	known := namesOf(params)
	if slices.Equal(known, namesOf(anyQuery)) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case len(known) == 0:
			return badField(name, "unknown query parameter; this route takes none")
		case !slices.Contains(known, name):
			return badField(name, "unknown query parameter; known are %s", strings.Join(known, ", "))
		case len(values[name]) > 1:
			return badField(name, "given %d times, must be given once", len(values[name]))
		}
	}
	return nil
}

// queueNamed returns a queue by its name, which may be any text.
func (a *api) queueNamed(ctx context.Context, name string) (*protocol.Queue, error) {
	if err := protocol.CheckName("queue", name); err != nil {
		return nil, NewProblem(http.StatusNotFound, "%v: %v", lowkiq.ErrUnknownQueue, err)
	}
	return a.client.Queue(ctx, name)
}

// readBody reads the whole body before anything is done. A request with a malformed body must change nothing. An
// announced length beyond the limit is refused at once. The bytes that arrive are bounded as well, because a client
// need not announce a length.
func (a *api) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	tooLarge := NewProblem(http.StatusRequestEntityTooLarge, "the body is longer than the limit of %d bytes; send it in parts", a.cfg.BodyLimit)
	if r.ContentLength > a.cfg.BodyLimit {
		return nil, tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, a.cfg.BodyLimit), r.ContentLength)
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit):
		return nil, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, NewProblem(http.StatusRequestTimeout, "the body did not arrive within %s, or no part of it arrived for %s", bodyTimeout, bodyPause)
	case errors.Is(err, memory.ErrBusy), errors.Is(err, memory.ErrTooLarge):
		return nil, err
	case err != nil:
		return nil, NewProblem(http.StatusBadRequest, "read the body: %v", err)
	}
	return body, nil
}

// readOptionalBody decodes a body that may be missing.
func (a *api) readOptionalBody(w http.ResponseWriter, r *http.Request, v any, shape string) error {
	body, err := a.readBody(w, r)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	return decodeBody(body, v, shape)
}

// readAll reads a body of the announced length, which is -1 if it is unknown. Its memory grows with the
// bytes that have arrived, so that an announcement alone costs nothing.
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

// decodeBody reads a single JSON object into v, and refuses fields that v does not have. A misspelt field must
// not be taken for a field that was left out. Its errors say that the body must be like shape.
func decodeBody(body []byte, v any, shape string) error {
	if !utf8.Valid(body) {
		return NewProblem(http.StatusBadRequest, "the body is not UTF-8; it must be %s", shape)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return newBodyProblem(body, err, dec.InputOffset(), shape)
	}
	if rest := bytes.TrimLeft(body[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return addLocation(NewProblem(http.StatusBadRequest, "nothing may follow the object"), body, len(body)-len(rest))
	}
	if pos := halfSurrogate(body); pos >= 0 { // it was decoded to U+FFFD, which would be another id
		return addLocation(NewProblem(http.StatusBadRequest, "half of a surrogate pair (\\ud800 to \\udfff) is no text"), body, pos)
	}
	return nil
}

// halfSurrogate returns the offset of half of a surrogate pair in JSON, which UTF-8 cannot carry. It returns -1 if there is none.
func halfSurrogate(text []byte) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if r := escapedRune(text[i:]); !utf16.IsSurrogate(r) {
			i++ // the escaped character
		} else if utf16.DecodeRune(r, escapedRune(text[i+6:])) == utf8.RuneError {
			return i
		} else {
			i += 11
		}
	}
	return -1
}

// escapedRune returns the code unit of \uXXXX at the beginning of a text, and -1 for any other beginning.
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

func newBodyProblem(body []byte, err error, offset int64, shape string) error {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	name, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	switch {
	case errors.Is(err, io.EOF):
		return NewProblem(http.StatusBadRequest, "the body is empty; it must be %s", shape)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return addLocation(NewProblem(http.StatusBadRequest, "the body ends too early; it must be %s", shape), body, len(body))
	case errors.As(err, &syntax):
		return addLocation(NewProblem(http.StatusBadRequest, "%v; the body must be %s", syntax, shape), body, int(syntax.Offset)-1)
	case errors.As(err, &mistyped) && mistyped.Field == "":
		return addLocation(NewProblem(http.StatusBadRequest, "got %s; the body must be %s", mistyped.Value, shape), body, 0)
	case errors.As(err, &mistyped):
		return addLocation(badField(mistyped.Field, "got %s; the body must be %s", mistyped.Value, shape), body, int(mistyped.Offset)-1)
	case unknown:
		return addLocation(badField(strings.Trim(name, `"`), "unknown field; the body must be %s", shape), body, int(offset))
	}
	return NewProblem(http.StatusBadRequest, "%v; the body must be %s", err, shape)
}

// addLocation adds the line and the column of the byte at pos.
func addLocation(p *Problem, body []byte, pos int) *Problem {
	before := body[:max(0, min(pos, len(body)))]
	p.Line = 1 + bytes.Count(before, []byte{'\n'})
	p.Column = len(before) - bytes.LastIndexByte(before, '\n')
	return p
}
