package redistest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Enough of RESP2 and RESP3 to tell where a request or a reply ends
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).

// parseRequest reads the request at the head of buf: its words and its length in
// bytes, 0 if it is not complete yet.
func parseRequest(buf []byte) (words []string, length int, err error) {
	header, at := line(buf, 0)
	if at == 0 {
		return nil, 0, nil
	}
	if !strings.HasPrefix(header, "*") {
		return strings.Fields(header), at, nil // inline, as from a telnet
	}
	count, err := strconv.Atoi(header[1:])
	if err != nil {
		return nil, 0, fmt.Errorf("request of %q words", header)
	}
	for range count {
		start, end, err := bulk(buf, at)
		if err != nil || end == 0 {
			return nil, 0, err
		}
		words = append(words, string(buf[start:end]))
		at = end + 2
	}
	return words, at, nil
}

// bulk finds the bulk string at buf[at:]; end is 0 if it is not complete yet.
func bulk(buf []byte, at int) (start, end int, err error) {
	header, start := line(buf, at)
	if start == 0 {
		return 0, 0, nil
	}
	size, err := strconv.Atoi(strings.TrimPrefix(header, "$"))
	if err != nil || size < 0 || !strings.HasPrefix(header, "$") {
		return 0, 0, fmt.Errorf("word with header %q, want a bulk string", header)
	}
	if len(buf) < start+size+2 {
		return 0, 0, nil
	}
	return start, start + size, nil
}

// replyLength returns the length of the reply at the head of buf, 0 if it is not
// complete yet, and whether it answers a request: push messages do not.
func replyLength(buf []byte) (length int, answers bool, err error) {
	end, err := skipReply(buf, 0)
	if err != nil || end == 0 {
		return 0, false, err
	}
	return end, buf[0] != '>', nil
}

// skipReply returns where the value at buf[at:] ends, 0 if it is not complete yet.
func skipReply(buf []byte, at int) (int, error) {
	header, next := line(buf, at)
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
	case '|': // attributes stand before the value they describe
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

// line returns the line at buf[at:] without its end, and where the next one
// starts, 0 if the line is not complete yet.
func line(buf []byte, at int) (text string, next int) {
	if at > len(buf) {
		return "", 0
	}
	size := bytes.Index(buf[at:], []byte("\r\n"))
	if size < 0 {
		return "", 0
	}
	return string(buf[at : at+size]), at + size + 2
}
