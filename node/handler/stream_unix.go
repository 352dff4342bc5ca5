//go:build unix

package handler

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

// readLine returns one line of at most max bytes, without its newline, valid until
// the next read.
func readLine(r *bufio.Reader, max int) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(long)+len(part) > max+1 {
			return nil, fmt.Errorf("wrote an answer longer than %d bytes, beginning with %s", max, excerpt(append(long, part...), 100))
		}
		switch {
		case err == nil && long == nil:
			return part[:len(part)-1], nil
		case err == nil:
			long = append(long, part...)
			return long[:len(long)-1], nil
		case err == bufio.ErrBufferFull:
			long = append(long, part...)
		default:
			return nil, err
		}
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const tailBytes = 2 << 10

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[extra:])]
	}
}

// quote returns "; stderr: …", or nothing.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := bytes.TrimSpace(t.buf); len(text) > 0 {
		return "; stderr: " + string(bytes.ToValidUTF8(text, []byte("\ufffd")))
	}
	return ""
}

// lockedWriter makes a writer safe for several children.
type lockedWriter struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// lineLogger logs what it is given, which the children's readers cut at newlines.
type lineLogger struct {
	log     *slog.Logger
	command string
}

func (l *lineLogger) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		l.log.Info("handler stderr", "command", l.command, "line", string(bytes.TrimRight(line, "\r\n")))
	}
	return len(p), nil
}
