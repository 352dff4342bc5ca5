// Package envelope answers one question: how is what was pushed stored, also if it has more to say
// than its data?
//
//	payload in an envelope = 00 4C | u16 n | n bytes of headers (JSON object of strings) | u8 m | m bytes of address | data
//
// Numbers are big endian. Any other payload is stored as it is, but for one that begins as an
// envelope does: it gets one without headers. Scripts need to know what makes two payloads equal
// (bare in lua/lib/record.lua), and who wants to know the payload's end, its address
// (lua/lib/tell.lua):
//
//	r<token> <ms> <channel>   a call: the reply is kept so long under the token, and told on the channel
//
// Other addresses are for releases to come: this one tells them nothing.
package envelope

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
)

const (
	first, second = 0x00, 'L'
	fixed         = 5 // bytes of an envelope without headers and address
)

// MaxAddress is the longest address, bytes. MaxKeep is the longest time for which a reply is kept.
const (
	MaxAddress = 200
	MaxKeep    = 7 * 24 * time.Hour
)

// Caller is who made a call: its reply is kept under the token for a while, and told on the channel.
type Caller struct {
	Token   string // letters, digits, _ and -
	Keep    time.Duration
	Channel string
}

// Address is that of a call.
func Address(token string, keep time.Duration, channel string) string {
	return fmt.Sprintf("r%s %d %s", token, max(1, keep.Milliseconds()), channel)
}

var addressRule = regexp.MustCompile(`^r([a-zA-Z0-9_-]+) ([0-9]{1,9}) ((?s:.+))$`)

// ParseAddress reads what Address has written; ok is false of any other address.
func ParseAddress(address string) (c Caller, ok bool) {
	words := addressRule.FindStringSubmatch(address)
	if words == nil {
		return c, false
	}
	ms, _ := strconv.Atoi(words[2])
	c = Caller{words[1], time.Duration(ms) * time.Millisecond, words[3]}
	return c, ms > 0 && c.Keep <= MaxKeep
}

func marked[T string | []byte](payload T) bool {
	return len(payload) > 1 && payload[0] == first && payload[1] == second
}

// Wrap returns what is stored of a payload with these headers and this address; both may be "".
func Wrap(header lowkiq.Header, address string, data []byte) []byte {
	if header == "" && address == "" && !marked(data) {
		return data
	}
	n := len(header)
	stored := make([]byte, 0, fixed+n+len(address)+len(data))
	stored = append(stored, first, second, byte(n>>8), byte(n))
	stored = append(stored, header...)
	stored = append(stored, byte(len(address)))
	stored = append(stored, address...)
	return append(stored, data...)
}

// Content is what is in an envelope.
type Content struct {
	Header  lowkiq.Header
	Address string // "" if nobody waits for the payload's end
	Data    string
}

// Open returns what is stored, all of which points into it; ok is false if it begins as an envelope
// does and is none.
func Open(stored string) (c Content, ok bool) {
	if !marked(stored) {
		return Content{Data: stored}, true
	}
	if len(stored) < fixed {
		return c, false
	}
	n := int(stored[2])<<8 | int(stored[3])
	if len(stored) < fixed+n {
		return c, false
	}
	data := fixed + n + int(stored[4+n])
	if len(stored) < data {
		return c, false
	}
	return Content{lowkiq.Header(stored[4 : 4+n]), stored[fixed+n : data], stored[data:]}, true
}
