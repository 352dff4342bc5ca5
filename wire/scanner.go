package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/lowkiq/lowkiq"
)

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
