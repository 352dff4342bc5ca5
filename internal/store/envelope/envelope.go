// Package envelope encodes payloads that have headers or an address.
//
//	payload in an envelope = 00 4C | u16 n | n bytes of headers (JSON object of strings) | u8 m | m bytes of address | data
//
// Numbers are big endian. Other payloads are stored unchanged. But data that begins like an envelope
// gets an envelope without headers. Scripts compare payloads without their headers (bare in
// lua/lib/record.lua), and send a reply to the address when the payload ends (lua/lib/tell.lua):
//
//	r<token> <ms> <channel>   the address of a call: keep the reply under the token for that many
//	                          milliseconds, and publish it on the channel
//	f<workflow> <member>      the address of a member: tell the workflow how the payload has ended
//
// An address has at most one part of each kind, with the byte 1F between. Only the handler of workflows may push
// members ([Members]), so nobody else can forge the end of a member.
// Scripts send nothing to other forms.
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

// MaxAddress is the maximum length of an address in bytes. MaxKeep is the maximum time that a reply is kept.
const (
	MaxAddress = 200
	MaxKeep    = 7 * 24 * time.Hour
)

// Caller is the parsed address of a call.
type Caller struct {
	Token   string // letters, digits, _ and -
	Keep    time.Duration
	Channel string
}

// Address returns the address of a call.
func Address(token string, keep time.Duration, channel string) string {
	return fmt.Sprintf("r%s %d %s", token, max(1, keep.Milliseconds()), channel)
}

var addressRule = regexp.MustCompile(`^r([a-zA-Z0-9_-]+) ([0-9]{1,9}) ([^\x1f]+)$`)

// partEnd separates the parts of an address.
const partEnd = "\x1f"

// MemberAddress returns the address of a workflow's member. reply is the address of a call that waits for the same
// payload, or "".
func MemberAddress(workflow, member, reply string) string {
	address := "f" + workflow + " " + member
	if reply != "" {
		return reply + partEnd + address
	}
	return address
}

// memberRule matches the address of a member. A workflow is an id without white space.
var memberRule = regexp.MustCompile(`^f[^\s\x1f]+ [^\x1f]+$`)

// ParseAddress parses the result of Address. ok is false for any other address.
func ParseAddress(address string) (c Caller, ok bool) {
	words := addressRule.FindStringSubmatch(address)
	if words == nil {
		return c, false
	}
	ms, _ := strconv.Atoi(words[2])
	c = Caller{words[1], time.Duration(ms) * time.Millisecond, words[3]}
	return c, ms > 0 && c.Keep <= MaxKeep
}

func hasMark[T string | []byte](payload T) bool {
	return len(payload) > 1 && payload[0] == first && payload[1] == second
}

// Wrap returns the stored form of a payload. header and address may be "".
func Wrap(header lowkiq.Header, address string, data []byte) []byte {
	if header == "" && address == "" && !hasMark(data) {
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

// Content has the parts of an envelope.
type Content struct {
	Header  lowkiq.Header
	Address string // "" if no caller waits for the payload's end
	Data    string
}

// Open returns the parts of a stored payload, without a copy. ok is false if it begins like an envelope and is
// damaged.
func Open(stored string) (c Content, ok bool) {
	if !hasMark(stored) {
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
