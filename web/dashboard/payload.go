package dashboard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How much of payloads a page shows.
const (
	shownPayloads     = 50
	shownPayloadBytes = 8 << 10
)

// payloadText is a payload as people may read it.
type payloadText struct {
	Text string
	Form string // JSON, text, base64 or empty
	Size int
	Cut  bool
}

// textOf shows a payload: JSON with line breaks, bytes that are no text as base64, and
// only the beginning of what is long.
func textOf(data []byte) payloadText {
	p := payloadText{Size: len(data), Form: "text"}
	switch {
	case len(data) == 0:
		p.Form = "empty"
		return p
	case !isText(data):
		p.Form, p.Cut = "base64", len(data) > shownPayloadBytes
		p.Text = base64.StdEncoding.EncodeToString(data[:min(len(data), shownPayloadBytes)])
		return p
	}
	text := string(data)
	var pretty bytes.Buffer
	if len(data) <= 1<<20 && json.Indent(&pretty, data, "", "  ") == nil {
		p.Form, text = "JSON", pretty.String()
	}
	p.Text = cutText(text, shownPayloadBytes)
	p.Cut = len(p.Text) < len(text)
	return p
}

// isText reports whether data can be read as it is.
func isText(data []byte) bool {
	return utf8.Valid(data) && bytes.IndexFunc(data, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	}) < 0
}

// cutText shortens text to at most n bytes, between two characters.
func cutText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// beginning is the start of a payload in one line.
func beginning(data []byte, n int) string {
	if len(data) == 0 {
		return "empty"
	}
	head := data[:min(len(data), n+utf8.UTFMax)]
	for len(head) > 0 && len(head) < len(data) && !utf8.Valid(head) && len(head) > n {
		head = head[:len(head)-1]
	}
	if !isText(head) {
		return cutText("base64 "+base64.StdEncoding.EncodeToString(head), n) + "…"
	}
	line := cutText(strings.Join(strings.Fields(string(head)), " "), n)
	if len(line) < len(data) && len(data) > n {
		line += "…"
	}
	return line
}
