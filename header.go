package lowkiq

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxHeaderBytes is the most that the headers of a payload may have, as a JSON object, bytes.
const MaxHeaderBytes = 4 << 10

// Header is what a payload says beside its data: tags, a trace, whatever the pusher wants the
// handler to know. It is a JSON object of strings, parsed when it is asked; the zero value is none.
// Headers are no part of what makes two payloads equal: of equal payloads of an id that wait
// together, the one that waited first keeps its headers.
//
// Names that mean something to lowkiq: traceparent and tracestate (W3C Trace Context), which HTTP
// endpoints get as headers of their request; tick and missed, which recurring pushes have; tag, by which people tell
// payloads apart; expires, see [Header.Expires]; payload, see [Header.Bytes].
type Header string

// Get returns the value of a name, "" if there is none.
func (h Header) Get(name string) string { return h.Map()[name] }

// Map returns all names with their values, nil if there are none.
func (h Header) Map() (all map[string]string) {
	if h == "" || json.Unmarshal([]byte(h), &all) != nil {
		return nil
	}
	return all
}

// Tags are the words of the header tag, which has them with commas between, each once and without the white space around it.
func (h Header) Tags() (tags []string) {
	if !strings.Contains(string(h), `"tag":`) { // of most: nothing is parsed
		return nil
	}
	for word := range strings.SplitSeq(h.Map()["tag"], ",") {
		if word = strings.TrimSpace(word); word != "" && !slices.Contains(tags, word) {
			tags = append(tags, word)
		}
	}
	return tags
}

// Expires is the time of the header expires: an RFC 3339 time, or seconds since 1970. No handler that has not begun
// by then gets the payload. ok is false if there is none.
func (h Header) Expires() (at time.Time, ok bool) {
	if !strings.Contains(string(h), `"expires"`) { // of most: nothing is parsed
		return at, false
	}
	text, there := h.Map()["expires"]
	at, err := parseExpires(text)
	return at, there && err == nil
}

// Bytes reports whether the header payload says bytes. Such a payload comes to handlers in base64, also if its bytes could be
// read as JSON. What is pushed in base64 has the header where that matters.
func (h Header) Bytes() bool {
	if !strings.Contains(string(h), `"payload":`) { // of most: nothing is parsed
		return false
	}
	return h.Map()["payload"] == "bytes"
}

func parseExpires(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if seconds, bad := strconv.ParseFloat(text, 64); bad == nil && seconds >= MinPerformAt && seconds <= MaxPerformAt {
		return time.UnixMicro(int64(seconds * 1e6)), nil
	}
	if err != nil {
		return at, fmt.Errorf("%w: expires is %.40q, want a time as in \"2026-01-02T15:04:05Z\", or seconds since 1970, from %d to %d", ErrHeader, text, int64(MinPerformAt), int64(MaxPerformAt))
	}
	return at, nil
}

// ErrHeader: a push has headers that cannot be stored. The error says which one, and why.
var ErrHeader = errors.New("bad header")

// NewHeader makes a payload's headers of [Push.Header], with their names in order; for tests of
// handlers, too. A name has 1 to 128 letters, digits or any of !#$%&'*+-.^_`|~ (those of a field of
// HTTP, RFC 9110); a value is any text of UTF-8. All of it has MaxHeaderBytes at most, else it is an
// ErrHeader.
func NewHeader(all map[string]string) (Header, error) {
	if len(all) == 0 {
		return "", nil
	}
	for name, value := range all {
		if err := checkHeaderName(name); err != nil {
			return "", err
		}
		if !utf8.ValidString(value) {
			return "", fmt.Errorf("%w: the value of %q is not UTF-8", ErrHeader, name)
		}
		if name == "expires" {
			if _, err := parseExpires(value); err != nil {
				return "", err
			}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrHeader, err)
	}
	if len(text) > MaxHeaderBytes {
		return "", fmt.Errorf("%w: all are %d bytes, at most %d are allowed", ErrHeader, len(text), MaxHeaderBytes)
	}
	return Header(text), nil
}

// maxHeaderName is the longest name, bytes.
const maxHeaderName = 128

func checkHeaderName(name string) error {
	if name == "" || len(name) > maxHeaderName {
		return fmt.Errorf("%w: name %.40q has %d bytes, want 1 to %d", ErrHeader, name, len(name), maxHeaderName)
	}
	for i := range len(name) {
		if c := name[i]; !tokenByte(c) {
			return fmt.Errorf("%w: name %q: want letters, digits and !#$%%&'*+-.^_`|~ alone", ErrHeader, name)
		}
	}
	return nil
}

func tokenByte(c byte) bool {
	switch {
	case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		return true
	}
	switch c {
	case '!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~':
		return true
	}
	return false
}
