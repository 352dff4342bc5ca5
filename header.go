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

// MaxHeaderBytes is the maximum size of a payload's headers, as a JSON object.
const MaxHeaderBytes = 4 << 10

// Header has the headers of a payload, such as tags or a trace. It is a JSON object of strings, which is
// parsed on access. The zero value has no headers. Headers do not make payloads different: if equal
// payloads of an id wait together, the headers of the first stay.
//
// lowkiq knows these names:
//
//   - traceparent and tracestate (W3C Trace Context), which HTTP endpoints get as headers of the request
//   - tick and missed, which recurring pushes have
//   - hops, the number of follow-ups that led to this payload; see [Answer.Then]
//   - ended and error, how and why the payload before it ended, which pushes by the rule then have
//   - workflow, the id of the workflow whose end made the push
//   - tag, for searches; see [Header.Tags]
//   - expires, see [Header.Expires]
//   - payload, see [Header.Bytes]
type Header string

// Get returns the value of a name, or "".
func (h Header) Get(name string) string { return h.Map()[name] }

// Map returns all names with their values, or nil.
func (h Header) Map() (all map[string]string) {
	if h == "" || json.Unmarshal([]byte(h), &all) != nil {
		return nil
	}
	return all
}

// Tags returns the words of the header tag, which are separated by commas. It trims white space and drops
// repeated words.
func (h Header) Tags() (tags []string) {
	if !strings.Contains(string(h), `"tag":`) { // most payloads have none, and are not parsed
		return nil
	}
	for word := range strings.SplitSeq(h.Map()["tag"], ",") {
		if word = strings.TrimSpace(word); word != "" && !slices.Contains(tags, word) {
			tags = append(tags, word)
		}
	}
	return tags
}

// Expires returns the time of the header expires, which is an RFC 3339 time or seconds since 1970. ok is
// false without a valid time. No handler call that begins after that time gets the payload.
func (h Header) Expires() (at time.Time, ok bool) {
	if !strings.Contains(string(h), `"expires"`) { // most payloads have none, and are not parsed
		return at, false
	}
	text, there := h.Map()["expires"]
	at, err := parseExpires(text)
	return at, there && err == nil
}

// Bytes reports whether the header payload is "bytes". Handlers in other languages get such a payload in
// base64, even if its bytes are valid JSON. A push in base64 sets the header if its bytes are valid JSON.
func (h Header) Bytes() bool {
	if !strings.Contains(string(h), `"payload":`) { // most payloads have none, and are not parsed
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

// ErrHeader means that the headers of a push cannot be stored. The error names the header and the reason.
var ErrHeader = errors.New("bad header")

// NewHeader encodes headers, sorted by name. A name has 1 to 128 letters, digits or characters of
// !#$%&'*+-.^_`|~, as a field name of HTTP (RFC 9110). A value is any UTF-8 text. The whole has at most
// MaxHeaderBytes. Otherwise NewHeader returns an ErrHeader.
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

// maxHeaderName is the maximum length of a name in bytes.
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
