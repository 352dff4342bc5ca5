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

// lexer walks over a JSON text (RFC 8259) and checks it. It is stricter than encoding/json in one
// point: text that is not UTF-8 is not JSON.
//
// encoding/json/v2 and its jsontext check UTF-8 and report the place of an error. They may replace
// this file once they are no longer experimental (GOEXPERIMENT=jsonv2 today).
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

func (l *lexer) faultf(format string, args ...any) *fault {
	return &fault{l.pos, fmt.Sprintf(format, args...)}
}

// unexpected returns the fault of the byte at pos, or of the end of the text.
func (l *lexer) unexpected(want string) *fault {
	if l.pos >= len(l.src) {
		return l.faultf("unexpected end of JSON, want %s", want)
	}
	r, size := utf8.DecodeRune(l.src[l.pos:])
	if r == utf8.RuneError && size == 1 {
		return l.faultf("invalid UTF-8")
	}
	if r == '\ufeff' {
		return l.faultf("a byte order mark (BOM), want %s: save the text as UTF-8 without one", want)
	}
	return l.faultf("unexpected character %s, want %s", strconv.QuoteRune(r), want)
}

// peek returns the byte at pos, 0 at the end of the text.
func (l *lexer) peek() byte {
	if l.pos < len(l.src) {
		return l.src[l.pos]
	}
	return 0
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func (l *lexer) skipSpace() {
	for l.pos < len(l.src) && isSpace(l.src[l.pos]) {
		l.pos++
		l.spaced = true
	}
}

func (l *lexer) expectByte(c byte) *fault {
	if l.peek() != c {
		return l.unexpected(strconv.QuoteRune(rune(c)))
	}
	l.pos++
	return nil
}

// skipValue moves past a value.
func (l *lexer) skipValue(depth int) *fault {
	switch c := l.peek(); {
	case c == '"':
		_, err := l.readString()
		return err
	case c == '{':
		return l.walkObject(depth, func([]byte) *fault { return l.skipValue(depth + 1) })
	case c == '[':
		return l.walkArray(depth, func(int) *fault { return l.skipValue(depth + 1) })
	case c == '-' || '0' <= c && c <= '9':
		return l.skipNumber()
	case c == 't':
		return l.skipLiteral("true")
	case c == 'f':
		return l.skipLiteral("false")
	case c == 'n':
		return l.skipLiteral("null")
	}
	return l.unexpected("a value")
}

// walkObject moves past an object. field gets each key with its quotes and must move past its
// value.
func (l *lexer) walkObject(depth int, field func(key []byte) *fault) *fault {
	if depth >= maxDepth {
		return l.faultf("nested deeper than %d", maxDepth)
	}
	if err := l.expectByte('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		if l.skipSpace(); first && l.peek() == '}' {
			break
		}
		if l.peek() != '"' {
			return l.unexpected("a field's name in double quotes")
		}
		l.keyPos = l.pos
		key, err := l.readString()
		if err != nil {
			return err
		}
		l.skipSpace()
		if err := l.expectByte(':'); err != nil {
			return err
		}
		l.skipSpace()
		if err := field(key); err != nil {
			return err
		}
		if l.skipSpace(); l.peek() != ',' {
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

// walkArray moves past an array. element gets each index and must move past its value.
func (l *lexer) walkArray(depth int, element func(i int) *fault) *fault {
	if depth >= maxDepth {
		return l.faultf("nested deeper than %d", maxDepth)
	}
	if err := l.expectByte('['); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if l.skipSpace(); i == 0 && l.peek() == ']' {
			break
		}
		if err := element(i); err != nil {
			return err
		}
		if l.skipSpace(); l.peek() != ',' {
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

// readString moves past a string and returns it as written, with its quotes.
func (l *lexer) readString() ([]byte, *fault) {
	start, ascii := l.pos, true
	for l.pos++; l.pos < len(l.src); l.pos++ {
		switch c := l.src[l.pos]; {
		case c == '"':
			l.pos++
			if raw := l.src[start:l.pos]; ascii || utf8.Valid(raw) {
				return raw, nil
			}
			l.pos = start
			return nil, l.faultf("string is not valid UTF-8")
		case c == '\\':
			if err := l.checkEscape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, l.faultf("control character %q in a string, want an escape such as \\n", rune(c))
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, l.unexpected("the closing '\"' of a string")
}

// checkEscape checks the escape at pos and moves to its last byte.
func (l *lexer) checkEscape() *fault {
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

// skipNumber moves past a number.
func (l *lexer) skipNumber() *fault {
	if l.peek() == '-' {
		l.pos++
	}
	if l.peek() == '0' {
		l.pos++
	} else if !l.skipDigits() {
		return l.unexpected("a digit")
	}
	if l.peek() == '.' {
		if l.pos++; !l.skipDigits() {
			return l.unexpected("a digit")
		}
	}
	if l.peek()|0x20 == 'e' {
		if l.pos++; l.peek() == '+' || l.peek() == '-' {
			l.pos++
		}
		if !l.skipDigits() {
			return l.unexpected("a digit")
		}
	}
	return nil
}

func (l *lexer) skipDigits() bool {
	start := l.pos
	for c := l.peek(); '0' <= c && c <= '9'; c = l.peek() {
		l.pos++
	}
	return l.pos > start
}

func (l *lexer) skipLiteral(word string) *fault {
	if !bytes.HasPrefix(l.src[l.pos:], []byte(word)) {
		return l.unexpected("a value")
	}
	l.pos += len(word)
	return nil
}

// Scanner reads NDJSON of any length, with a job on each line, in constant memory. A bad line does
// not stop it.
type Scanner struct {
	r    *bufio.Reader
	max  int
	buf  []byte // a line longer than the reader's buffer is gathered here
	line int
}

// errLong is the error of a line that is too long. All of the line has been read.
var errLong = errors.New("line too long")

// NewScanner returns a scanner of r. A line of more than maxLine bytes is an error of that line.
func NewScanner(r io.Reader, maxLine int) *Scanner {
	return &Scanner{r: bufio.NewReaderSize(r, 64<<10), max: maxLine}
}

// Next returns the next job and the number of its line. The first line is 1. It skips lines of
// white space but counts them. An [*Error] concerns this line only, so the caller may continue. Any
// other error ends the stream: io.EOF at its end, or the error of the reader with the number of the
// line being read.
func (s *Scanner) Next() (line int, p lowkiq.Push, err error) {
	for {
		text, err := s.readLine()
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

// readLine returns the next line without its newline, valid until the next call.
func (s *Scanner) readLine() ([]byte, error) {
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
		case size > s.max: // skip the rest of the line
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

// decodeString returns the text of a checked string, which has its quotes. It reports false for
// half of a surrogate pair, which UTF-8 cannot represent.
func decodeString(raw []byte) (string, bool) {
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
			out = append(out, unescapeByte(raw[i]))
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

func unescapeByte(c byte) byte {
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

// compactJSON appends a checked JSON text without the white space between its tokens.
func compactJSON(dst, src []byte) []byte {
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
