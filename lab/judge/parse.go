package judge

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// payload is a payload as a line has it.
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

// parse parses a line into e and reuses the memory of e.
func (e *event) parse(line []byte) error {
	*e = event{payloads: e.payloads[:0]}
	body, whole := bytes.CutSuffix(line, []byte(" ."))
	if !whole {
		return errTorn
	}
	f := fields{rest: body}
	kind := f.nextWord()
	e.t = f.nextInt()
	e.process = f.nextQuoted()
	switch string(kind) {
	case kindStart:
		e.kind = kindStart
		e.queue, e.shard, e.fence, e.flight = f.nextQuoted(), f.nextInt(), f.nextInt(), f.nextInt()
		e.id, e.count = f.nextQuoted(), f.nextInt()
		e.payloads = f.nextPayloads(e.payloads)
	case kindMore:
		e.kind = kindMore
		e.queue, e.id = f.nextQuoted(), f.nextQuoted()
		e.payloads = f.nextPayloads(e.payloads)
	case kindEnd:
		e.kind = kindEnd
		e.began, e.queue, e.id = f.nextInt(), f.nextQuoted(), f.nextQuoted()
	case kindFail:
		e.kind = kindFail
		e.began, e.queue, e.id = f.nextInt(), f.nextQuoted(), f.nextQuoted()
		f.nextQuoted()
	case kindDeath:
		e.kind = kindDeath
		e.killed = f.nextInt()
	default:
		return fmt.Errorf("unknown kind of event %q", kind)
	}
	if f.err == nil && len(f.rest) > 0 {
		return fmt.Errorf("surplus %q", f.rest)
	}
	return f.err
}

// fields splits a line into fields. It keeps the first error.
type fields struct {
	rest []byte
	err  error
}

// nextWord returns the text up to the next space. An empty text is an error.
func (f *fields) nextWord() []byte {
	word, rest, _ := bytes.Cut(f.rest, []byte(" "))
	f.rest = rest
	if len(word) == 0 && f.err == nil {
		f.err = errors.New("too few fields")
	}
	return word
}

func (f *fields) nextInt() int64 {
	word := f.nextWord()
	n, err := strconv.ParseInt(string(word), 10, 64)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("%q is not an integer", word)
	}
	return n
}

// nextQuoted returns a quoted string. Most strings have no escapes and need no allocation.
func (f *fields) nextQuoted() []byte {
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

// nextPayloads appends the payloads of all remaining words to into. The digest is hexadecimal.
func (f *fields) nextPayloads(into []payload) []payload {
	for f.err == nil && len(f.rest) > 0 {
		word := f.nextWord()
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
