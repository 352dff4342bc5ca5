package wire

import (
	"bytes"
	"encoding/base64"
)

// payload reads any value as the bytes to store.
func (d *decoder) payload() ([]byte, *fault) {
	start := d.pos
	d.spaced = false
	if err := d.value(1); err != nil {
		return nil, err
	}
	raw := d.src[start:d.pos]
	if string(raw) == `""` {
		return nil, nil
	}
	if value, ok := envelope(raw); ok {
		return d.bytes(value)
	}
	return d.keep(raw), nil
}

// bytes decodes the value of an envelope.
func (d *decoder) bytes(value []byte) ([]byte, *fault) {
	bad := &fault{reason: "$base64 must be a string of standard base64 with padding"}
	if value[0] != '"' {
		return nil, bad
	}
	text, ok := decode(value)
	if !ok {
		return nil, bad
	}
	out, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, bad
	}
	return out, nil
}

// keep copies a checked payload, without white space between its tokens.
func (d *decoder) keep(raw []byte) []byte {
	if d.arena == nil {
		d.arena = make([]byte, 0, len(raw))
	}
	start := len(d.arena)
	if d.spaced {
		d.arena = compact(d.arena, raw)
	} else {
		d.arena = append(d.arena, raw...)
	}
	kept := d.arena[start:]
	return kept[:len(kept):len(kept)]
}

// envelope reports whether checked JSON is an object with the one key $base64, and
// returns the value of the key as written.
func envelope(raw []byte) ([]byte, bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, false
	}
	l := lexer{src: raw, pos: 1}
	if l.space(); l.peek() != '"' {
		return nil, false
	}
	key, _ := l.str()
	if string(key) != `"$base64"` {
		if bytes.IndexByte(key, '\\') < 0 {
			return nil, false
		}
		if name, _ := decode(key); name != "$base64" {
			return nil, false
		}
	}
	l.space()
	l.pos++ // the colon
	l.space()
	start := l.pos
	if l.value(1) != nil {
		return nil, false
	}
	value := raw[start:l.pos]
	l.space()
	return value, l.peek() == '}'
}
