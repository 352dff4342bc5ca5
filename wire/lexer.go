package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
)

// maxDepth bounds the nesting of a payload, as encoding/json does.
const maxDepth = 10_000

// lexer walks over a JSON text (RFC 8259) and checks it. It is stricter than
// encoding/json in one point: text that is not UTF-8 is no JSON.
//
// encoding/json/v2 and its jsontext, which check UTF-8 and say where a fault is, may replace
// this file when they are out of experiment (GOEXPERIMENT=jsonv2 today).
type lexer struct {
	src    []byte
	pos    int
	keyPos int  // where the object's key read last begins
	spaced bool // white space was seen between tokens since the flag was cleared
}

// fault is a violation of the grammar at an offset.
type fault struct {
	pos    int
	reason string
}

func (f *fault) Error() string { return f.reason }

func (l *lexer) fault(format string, args ...any) *fault {
	return &fault{l.pos, fmt.Sprintf(format, args...)}
}

// unexpected is the fault of the byte at pos, or of the end of the text.
func (l *lexer) unexpected(want string) *fault {
	if l.pos >= len(l.src) {
		return l.fault("unexpected end of JSON, want %s", want)
	}
	r, size := utf8.DecodeRune(l.src[l.pos:])
	if r == utf8.RuneError && size == 1 {
		return l.fault("invalid UTF-8")
	}
	return l.fault("unexpected character %s, want %s", strconv.QuoteRune(r), want)
}

// peek returns the byte at pos, 0 at the end of the text.
func (l *lexer) peek() byte {
	if l.pos < len(l.src) {
		return l.src[l.pos]
	}
	return 0
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func (l *lexer) space() {
	for l.pos < len(l.src) && isSpace(l.src[l.pos]) {
		l.pos++
		l.spaced = true
	}
}

func (l *lexer) expect(c byte) *fault {
	if l.peek() != c {
		return l.unexpected(strconv.QuoteRune(rune(c)))
	}
	l.pos++
	return nil
}

// value moves past one value.
func (l *lexer) value(depth int) *fault {
	switch c := l.peek(); {
	case c == '"':
		_, err := l.str()
		return err
	case c == '{':
		return l.object(depth, func([]byte) *fault { return l.value(depth + 1) })
	case c == '[':
		return l.array(depth, func(int) *fault { return l.value(depth + 1) })
	case c == '-' || '0' <= c && c <= '9':
		return l.number()
	case c == 't':
		return l.literal("true")
	case c == 'f':
		return l.literal("false")
	case c == 'n':
		return l.literal("null")
	}
	return l.unexpected("a value")
}

// object moves past an object; field gets each key, quotes included, and must move
// past its value.
func (l *lexer) object(depth int, field func(key []byte) *fault) *fault {
	if depth >= maxDepth {
		return l.fault("nested deeper than %d", maxDepth)
	}
	if err := l.expect('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		if l.space(); first && l.peek() == '}' {
			break
		}
		if l.peek() != '"' {
			return l.unexpected("a field's name in double quotes")
		}
		l.keyPos = l.pos
		key, err := l.str()
		if err != nil {
			return err
		}
		l.space()
		if err := l.expect(':'); err != nil {
			return err
		}
		l.space()
		if err := field(key); err != nil {
			return err
		}
		if l.space(); l.peek() != ',' {
			break
		}
		l.pos++
	}
	if l.peek() != '}' {
		return l.unexpected("',' or '}'")
	}
	l.pos++
	return nil
}

// array moves past an array; element gets each index and must move past its value.
func (l *lexer) array(depth int, element func(i int) *fault) *fault {
	if depth >= maxDepth {
		return l.fault("nested deeper than %d", maxDepth)
	}
	if err := l.expect('['); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if l.space(); i == 0 && l.peek() == ']' {
			break
		}
		if err := element(i); err != nil {
			return err
		}
		if l.space(); l.peek() != ',' {
			break
		}
		l.pos++
	}
	if l.peek() != ']' {
		return l.unexpected("',' or ']'")
	}
	l.pos++
	return nil
}

// str moves past a string and returns it as written, quotes included.
func (l *lexer) str() ([]byte, *fault) {
	start, ascii := l.pos, true
	for l.pos++; l.pos < len(l.src); l.pos++ {
		switch c := l.src[l.pos]; {
		case c == '"':
			l.pos++
			if raw := l.src[start:l.pos]; ascii || utf8.Valid(raw) {
				return raw, nil
			}
			l.pos = start
			return nil, l.fault("string is not valid UTF-8")
		case c == '\\':
			if err := l.escape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, l.fault("control character %q in a string, want an escape such as \\n", rune(c))
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, l.unexpected("the closing '\"' of a string")
}

// escape checks the escape at pos and moves to its last byte.
func (l *lexer) escape() *fault {
	l.pos++
	c := l.peek()
	if c != 'u' {
		if c == 0 || bytes.IndexByte([]byte(`"\/bfnrt`), c) < 0 {
			return l.unexpected(`an escape, one of \" \\ \/ \b \f \n \r \t \u`)
		}
		return nil
	}
	for range 4 {
		l.pos++
		if c := l.peek() | 0x20; (c < '0' || c > '9') && (c < 'a' || c > 'f') || l.peek() < '0' {
			return l.unexpected(`four hexadecimal digits after \u`)
		}
	}
	return nil
}

// number moves past a number.
func (l *lexer) number() *fault {
	if l.peek() == '-' {
		l.pos++
	}
	if l.peek() == '0' {
		l.pos++
	} else if !l.digits() {
		return l.unexpected("a digit")
	}
	if l.peek() == '.' {
		if l.pos++; !l.digits() {
			return l.unexpected("a digit")
		}
	}
	if l.peek()|0x20 == 'e' {
		if l.pos++; l.peek() == '+' || l.peek() == '-' {
			l.pos++
		}
		if !l.digits() {
			return l.unexpected("a digit")
		}
	}
	return nil
}

func (l *lexer) digits() bool {
	start := l.pos
	for c := l.peek(); '0' <= c && c <= '9'; c = l.peek() {
		l.pos++
	}
	return l.pos > start
}

func (l *lexer) literal(word string) *fault {
	if !bytes.HasPrefix(l.src[l.pos:], []byte(word)) {
		return l.unexpected("a value")
	}
	l.pos += len(word)
	return nil
}

// Scanner reads NDJSON of any length, one job a line, in constant memory. A bad
// line does not stop it.
type Scanner struct {
	r    *bufio.Reader
	max  int
	buf  []byte // a line longer than the reader's buffer is gathered here
	line int
}

// errLong marks a line beyond the limit; the whole line has been read past.
var errLong = errors.New("line too long")

// NewScanner reads from r. A line of more than maxLine bytes is an error of that
// line.
func NewScanner(r io.Reader, maxLine int) *Scanner {
	return &Scanner{r: bufio.NewReaderSize(r, 64<<10), max: maxLine}
}

// Next returns the next job and the number of its line; the first line is 1. Lines
// of white space are skipped, but counted. An [*Error] concerns this line only, go
// on after it. Any other error ends the stream: io.EOF at its end, or what the
// reader said, with the number of the line that was being read.
func (s *Scanner) Next() (line int, p lowkiq.Push, err error) {
	for {
		text, err := s.read()
		if err != nil && err != errLong {
			return s.line, p, err
		}
		s.line++
		if err == errLong {
			return s.line, p, &Error{s.line, s.max + 1, "", fmt.Sprintf("line is longer than %d bytes", s.max)}
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		p, err = ParseJob(text)
		if bad, ok := err.(*Error); ok {
			bad.Line += s.line - 1
		}
		return s.line, p, err
	}
}

// read returns the next line without its newline, valid until the next call.
func (s *Scanner) read() ([]byte, error) {
	s.buf = s.buf[:0]
	for size := 0; ; {
		part, err := s.r.ReadSlice('\n')
		size += len(part)
		if err == io.EOF && size == 0 {
			return nil, io.EOF
		}
		whole := err == nil || err == io.EOF
		if !whole && err != bufio.ErrBufferFull {
			return nil, fmt.Errorf("read line %d: %w", s.line+1, err)
		}
		if whole && err == nil {
			part = part[:len(part)-1]
			size--
		}
		switch {
		case size > s.max && whole:
			return nil, errLong
		case size > s.max: // read past the rest, keeping nothing
		case whole && len(s.buf) == 0:
			return part, nil
		default:
			s.buf = append(s.buf, part...)
		}
		if whole {
			return s.buf, nil
		}
	}
}

// decode returns the text of a checked string, given with its quotes. It reports
// false for half a surrogate pair, which no UTF-8 can carry.
func decode(raw []byte) (string, bool) {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		if raw[i] != 'u' {
			out = append(out, unescaped(raw[i]))
			continue
		}
		r := hex4(raw[i+1:])
		i += 4
		if utf16.IsSurrogate(r) {
			if !bytes.HasPrefix(raw[i+1:], []byte(`\u`)) {
				return "", false
			}
			if r = utf16.DecodeRune(r, hex4(raw[i+3:])); r == utf8.RuneError {
				return "", false
			}
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), true
}

func hex4(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // the lexer has checked them
	return rune(n)
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// compact appends a checked JSON text without the white space between its tokens.
func compact(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		start := i
		if src[i] == '"' {
			for i++; src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
			i++
			dst = append(dst, src[start:i]...)
			continue
		}
		if !isSpace(src[i]) {
			dst = append(dst, src[i])
		}
		i++
	}
	return dst
}
