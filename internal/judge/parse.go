package judge

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// payload is what a line says of one.
type payload struct {
	score  float64
	digest uint64
}

// event is a parsed line. Its slices are valid until the next line is parsed.
type event struct {
	kind     string
	t        int64 // start: began; end, fail: ended; death: reaped
	began    int64 // end, fail: start of the call
	killed   int64 // death: 0 = unknown
	process  []byte
	queue    []byte
	id       []byte
	shard    int64
	fence    int64
	flight   int64
	count    int64 // start: payloads of the call
	payloads []payload
}

var errTorn = errors.New(`no " ." at its end`)

// parse reads a line into e, reusing e's memory.
func (e *event) parse(line []byte) error {
	*e = event{payloads: e.payloads[:0]}
	body, whole := bytes.CutSuffix(line, []byte(" ."))
	if !whole {
		return errTorn
	}
	f := fields{rest: body}
	kind := f.word()
	e.t = f.int()
	e.process = f.quoted()
	switch string(kind) {
	case kindStart:
		e.kind = kindStart
		e.queue, e.shard, e.fence, e.flight = f.quoted(), f.int(), f.int(), f.int()
		e.id, e.count = f.quoted(), f.int()
		e.payloads = f.payloads(e.payloads)
	case kindMore:
		e.kind = kindMore
		e.queue, e.id = f.quoted(), f.quoted()
		e.payloads = f.payloads(e.payloads)
	case kindEnd:
		e.kind = kindEnd
		e.began, e.queue, e.id = f.int(), f.quoted(), f.quoted()
	case kindFail:
		e.kind = kindFail
		e.began, e.queue, e.id = f.int(), f.quoted(), f.quoted()
		f.quoted()
	case kindDeath:
		e.kind = kindDeath
		e.killed = f.int()
	default:
		return fmt.Errorf("unknown kind of event %q", kind)
	}
	if f.err == nil && len(f.rest) > 0 {
		return fmt.Errorf("surplus %q", f.rest)
	}
	return f.err
}

// fields takes a line apart, field by field; the first error stays.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) word() []byte {
	word, rest, _ := bytes.Cut(f.rest, []byte(" "))
	f.rest = rest
	if len(word) == 0 && f.err == nil {
		f.err = errors.New("too few fields")
	}
	return word
}

func (f *fields) int() int64 {
	word := f.word()
	n, err := strconv.ParseInt(string(word), 10, 64)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("%q is not an integer", word)
	}
	return n
}

// quoted takes a quoted string. Most have no escapes and cost no allocation.
func (f *fields) quoted() []byte {
	if len(f.rest) > 0 && f.rest[0] == '"' {
		if n := bytes.IndexAny(f.rest[1:], `"\`); n >= 0 && f.rest[1+n] == '"' {
			s := f.rest[1 : 1+n]
			f.rest = bytes.TrimPrefix(f.rest[n+2:], []byte(" "))
			return s
		}
	}
	prefix, err := strconv.QuotedPrefix(string(f.rest))
	if err == nil {
		f.rest = bytes.TrimPrefix(f.rest[len(prefix):], []byte(" "))
		s, err := strconv.Unquote(prefix)
		if err == nil {
			return []byte(s)
		}
	}
	if f.err == nil {
		f.err = fmt.Errorf("want a quoted string at %.40q", f.rest)
	}
	return nil
}

func (f *fields) payloads(into []payload) []payload {
	for f.err == nil && len(f.rest) > 0 {
		word := f.word()
		score, digest, _ := bytes.Cut(word, []byte(":"))
		s, err1 := strconv.ParseFloat(string(score), 64)
		d, err2 := strconv.ParseUint(string(digest), 16, 64)
		if err1 != nil || err2 != nil {
			f.err = fmt.Errorf("%q is not score:digest", word)
			return into
		}
		into = append(into, payload{s, d})
	}
	return into
}
