package redistest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Enough of RESP2 and RESP3 to tell where a request or a reply ends
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).

// parseRequest parses the request at the head of buf. It returns the words and the length in bytes, which is 0 if the
// request is not complete.
func parseRequest(buf []byte) (words []string, length int, err error) {
	header, at := findLine(buf, 0)
	if at == 0 {
		return nil, 0, nil
	}
	if !strings.HasPrefix(header, "*") {
		return strings.Fields(header), at, nil // an inline command, as from telnet
	}
	count, err := strconv.Atoi(header[1:])
	if err != nil {
		return nil, 0, fmt.Errorf("request of %q words", header)
	}
	for range count {
		start, end, err := findBulk(buf, at)
		if err != nil || end == 0 {
			return nil, 0, err
		}
		words = append(words, string(buf[start:end]))
		at = end + 2
	}
	return words, at, nil
}

// findBulk finds the bulk string at buf[at:]. end is 0 if it is not complete.
func findBulk(buf []byte, at int) (start, end int, err error) {
	header, start := findLine(buf, at)
	if start == 0 {
		return 0, 0, nil
	}
	size, err := strconv.Atoi(strings.TrimPrefix(header, "$"))
	if err != nil || size < 0 || !strings.HasPrefix(header, "$") {
		return 0, 0, fmt.Errorf("word with header %q; it must be a bulk string", header)
	}
	if len(buf) < start+size+2 {
		return 0, 0, nil
	}
	return start, start + size, nil
}

// replyLength returns the length of the reply at the head of buf, 0 if it is not complete. answers reports whether it
// answers a request, which a push message does not.
func replyLength(buf []byte) (length int, answers bool, err error) {
	end, err := skipReply(buf, 0)
	if err != nil || end == 0 {
		return 0, false, err
	}
	return end, buf[0] != '>', nil
}

// skipReply returns the end of the value at buf[at:], 0 if it is not complete.
func skipReply(buf []byte, at int) (int, error) {
	header, next := findLine(buf, at)
	if next == 0 {
		return 0, nil
	}
	if header == "" {
		return 0, fmt.Errorf("reply starts with an empty line")
	}
	switch header[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return next, nil
	}
	size, err := strconv.Atoi(header[1:])
	if err != nil {
		return 0, fmt.Errorf("reply with header %q", header)
	}
	switch header[0] {
	case '$', '=', '!':
		return skipBytes(buf, next, size), nil
	case '*', '~', '>':
		return skipReplies(buf, next, size)
	case '%':
		return skipReplies(buf, next, 2*size)
	case '|': // attributes come before the value that they describe
		return skipReplies(buf, next, 2*size+1)
	}
	return 0, fmt.Errorf("reply with header %q", header)
}

func skipBytes(buf []byte, at, size int) int {
	if size < 0 {
		return at // null
	}
	if len(buf) < at+size+2 {
		return 0
	}
	return at + size + 2
}

func skipReplies(buf []byte, at, count int) (int, error) {
	for range max(0, count) {
		end, err := skipReply(buf, at)
		if err != nil || end == 0 {
			return 0, err
		}
		at = end
	}
	return at, nil
}

// findLine returns the line at buf[at:] without its end, and the start of the next line, 0 if the line is not complete.
func findLine(buf []byte, at int) (text string, next int) {
	if at > len(buf) {
		return "", 0
	}
	size := bytes.Index(buf[at:], []byte("\r\n"))
	if size < 0 {
		return "", 0
	}
	return string(buf[at : at+size]), at + size + 2
}
