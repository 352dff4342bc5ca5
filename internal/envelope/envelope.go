// Package envelope answers one question: how is what was pushed stored, also if it has more to say
// than its data?
//
//	payload in an envelope = 00 4C | u16 n | n bytes of headers (JSON object of strings) | u8 m | m bytes of address | data
//
// Numbers are big endian. Any other payload is stored as it is, but for one that begins as an
// envelope does: it gets one without headers. Scripts need to know of it only what makes two
// payloads equal (bare in lua/lib/record.lua). The address, who wants to know the payload's end, is
// for releases to come: this one writes none, and passes over what another wrote.
package envelope

import "github.com/lowkiq/lowkiq"

const (
	first, second = 0x00, 'L'
	fixed         = 5 // bytes of an envelope without headers and address
)

func marked[T string | []byte](payload T) bool {
	return len(payload) > 1 && payload[0] == first && payload[1] == second
}

// Wrap returns what is stored of a payload with these headers; header may be "".
func Wrap(header lowkiq.Header, data []byte) []byte {
	if header == "" && !marked(data) {
		return data
	}
	n := len(header)
	stored := make([]byte, 0, fixed+n+len(data))
	stored = append(stored, first, second, byte(n>>8), byte(n))
	stored = append(stored, header...)
	stored = append(stored, 0)
	return append(stored, data...)
}

// Open returns the headers and the data of what is stored, which both point into it; ok is false if
// it begins as an envelope does and is none.
func Open(stored string) (header lowkiq.Header, data string, ok bool) {
	if !marked(stored) {
		return "", stored, true
	}
	if len(stored) < fixed {
		return "", "", false
	}
	n := int(stored[2])<<8 | int(stored[3])
	if len(stored) < fixed+n {
		return "", "", false
	}
	address := int(stored[4+n])
	if len(stored) < fixed+n+address {
		return "", "", false
	}
	return lowkiq.Header(stored[4 : 4+n]), stored[fixed+n+address:], true
}
