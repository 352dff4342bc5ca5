// Package packed reads what Redis keeps of a job: the packed record, whose forms
// lua/lib/record.lua describes, and the payloads of crowded ids, for which
// lua/lib/spill.lua does. Scripts write them.
package packed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
)

// ErrDamaged is a record that cannot be read.
var ErrDamaged = errors.New("damaged record")

// ErrLater is a record of a form that this release does not know. It is sound, and not
// this release's to touch.
var ErrLater = errors.New("record of a later release")

// IsLater reports whether a record is of a later release: the forms of this one begin
// with small letters, those that are to come with capital ones.
func IsLater(record string) bool { return record != "" && record[0] >= 'A' && record[0] <= 'Z' }

// Bytes gives the bytes of a string that came from Redis. go-redis makes each reply
// string from a buffer of its own and hands it to us alone, so a handler may even
// change its payload without touching anything else.
func Bytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Micros reads a big endian 7-byte integer.
func Micros(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

// Decode reads a record, appending its payloads to slab, of which the job keeps a
// part; it returns the slab. Payloads are sorted: lowest score first, equal scores in
// push order (I3).
func Decode(id, record string, slab []lowkiq.Payload) (lowkiq.Job, []lowkiq.Payload, error) {
	job := lowkiq.Job{ID: id, RetryCount: -1}
	first := len(slab)
	switch {
	case len(record) >= 10 && record[0] == 'a':
		us := Micros(record[1:])
		score := us + int64(record[8])<<8 + int64(record[9])
		job.PerformAt = time.UnixMicro(us)
		job.WaitingSince = job.PerformAt
		slab = append(slab, lowkiq.Payload{Score: float64(score) / 1e6})
		if err := openOnly(record[10:], &job, &slab[first]); err != nil {
			return job, slab[:first], fmt.Errorf("job %q: %w", id, err)
		}
	case len(record) >= 16 && record[0] == 'e':
		job.PerformAt = time.UnixMicro(Micros(record[1:]))
		job.WaitingSince = job.PerformAt
		bits := binary.BigEndian.Uint64(Bytes(record[8:16]))
		slab = append(slab, lowkiq.Payload{Score: math.Float64frombits(bits)})
		if err := openOnly(record[16:], &job, &slab[first]); err != nil {
			return job, slab[:first], fmt.Errorf("job %q: %w", id, err)
		}
	case len(record) > 0 && (record[0] == 'j' || record[0] == 's' || record[0] == 'p'):
		rest, count, err := DecodeHead(record, &job)
		if err != nil {
			return job, slab, fmt.Errorf("job %q: %w", id, err)
		}
		if record[0] == 's' {
			return job, slab, nil
		}
		for range count {
			var p lowkiq.Payload
			var called bool
			decode := DecodePayload
			if record[0] == 'p' {
				decode = decodeKeyed
			}
			if p, called, rest, err = decode(rest); err != nil {
				return job, slab, fmt.Errorf("job %q: %w", id, err)
			}
			if called {
				job.Callers++
			}
			slab = append(slab, p)
		}
	case IsLater(record):
		return job, slab, fmt.Errorf("job %q: %w: form %q", id, ErrLater, record[0])
	default:
		return job, slab, fmt.Errorf("job %q: %w %.20q", id, ErrDamaged, record)
	}
	job.Payloads = slab[first:len(slab):len(slab)]
	if len(job.Payloads) > 1 {
		SortPayloads(job.Payloads)
	}
	return job, slab, nil
}

// Open gives a payload what is stored of it: its headers and its data. called: somebody waits for
// its end.
func Open(stored string, p *lowkiq.Payload) (called bool, err error) {
	content, ok := envelope.Open(stored)
	if !ok {
		return false, ErrDamaged
	}
	p.Header, p.Data = content.Header, Bytes(content.Data)
	return content.Address != "", nil
}

// openOnly is Open of the only payload of a job.
func openOnly(stored string, job *lowkiq.Job, p *lowkiq.Payload) error {
	called, err := Open(stored, p)
	if called {
		job.Callers = 1
	}
	return err
}

// SortPayloads puts the lowest score first, and leaves equal ones in push order (I3).
func SortPayloads(payloads []lowkiq.Payload) {
	slices.SortStableFunc(payloads, func(x, y lowkiq.Payload) int {
		switch {
		case x.Score < y.Score:
			return -1
		case x.Score > y.Score:
			return 1
		}
		return 0
	})
}

// DecodeHead reads "j<retry> <at> <count> <bytes> <errlen> <next>\n<error>", with one word more of
// a crowded job, and one more of a job that was put off.
func DecodeHead(record string, job *lowkiq.Job) (rest string, count int, err error) {
	line, rest, ok := strings.Cut(record[1:], "\n")
	n, err := HeadWords(record[0], line)
	if !ok || err != nil || n[4] < 0 || n[4] > int64(len(rest)) {
		return "", 0, ErrDamaged
	}
	job.RetryCount, job.PerformAt, job.WaitingSince, job.Error = int(n[0]), time.UnixMicro(n[1]), Since(n), rest[:n[4]]
	return rest[n[4]:], int(n[2]), nil
}

// HeadWords reads the numbers of a head that all forms have; the last one is since when the job waits, 0 if it was not put off.
func HeadWords(form byte, line string) (n [7]int64, err error) {
	words := strings.Split(line, " ")
	if form == 's' && len(words) > 6 {
		words = slices.Delete(words, 6, 7) // it is of interest to scripts only
	} else if form == 's' {
		return n, ErrDamaged
	}
	switch len(words) {
	case 6:
	case 8:
		words = words[:7] // whether its group did that is of interest to scripts only
	default:
		return n, ErrDamaged
	}
	for i, word := range words {
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return n, ErrDamaged
		}
	}
	return n, nil
}

// Since is since when a job with these numbers waits.
func Since(n [7]int64) time.Time { return time.UnixMicro(cmp.Or(n[6], n[1])) }

// KeyBytes is the length of the key before a payload in the spill: 8 bytes that are in the order of
// scores, and 12 digits for its place among equal ones.
const KeyBytes = 20

// KeyScore reads the score of a key: a double in an order that can be compared byte by byte.
func KeyScore(key string) float64 {
	bits := binary.BigEndian.Uint64(Bytes(key[:8]))
	if bits>>63 == 1 {
		return math.Float64frombits(bits &^ (1 << 63))
	}
	return math.Float64frombits(^bits)
}

// decodeKeyed reads a key, 4 bytes of length, the payload.
func decodeKeyed(s string) (p lowkiq.Payload, called bool, rest string, err error) {
	if len(s) < KeyBytes+4 {
		return p, false, "", ErrDamaged
	}
	n := int64(binary.BigEndian.Uint32(Bytes(s[KeyBytes : KeyBytes+4])))
	data := s[KeyBytes+4:]
	if n > int64(len(data)) {
		return p, false, "", ErrDamaged
	}
	p.Score = KeyScore(s)
	called, err = Open(data[:n], &p)
	return p, called, data[n:], err
}

// DecodePayload reads "<score> <len>:<payload>".
func DecodePayload(s string) (p lowkiq.Payload, called bool, rest string, err error) {
	score, s, ok1 := strings.Cut(s, " ")
	length, s, ok2 := strings.Cut(s, ":")
	n, err1 := strconv.Atoi(length)
	p.Score, err = strconv.ParseFloat(score, 64)
	if !ok1 || !ok2 || err1 != nil || err != nil || n < 0 || n > len(s) {
		return p, false, "", ErrDamaged
	}
	called, err = Open(s[:n], &p)
	return p, called, s[n:], err
}

// Spilled is a payload of a crowded id: a member of spill, or a field of spillx; then Key is "".
type Spilled struct{ Space, ID, Key, Payload string }

// ParseSpill reads "w<len id>:<id>:", for a member followed by a key, then the
// payload.
func ParseSpill(name string, placed bool) (e Spilled, ok bool) {
	if name == "" || name[0] != 'w' && name[0] != 'm' {
		return e, false
	}
	length, rest, _ := strings.Cut(name[1:], ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 1 || len(rest) < n+1 || rest[n] != ':' {
		return e, false
	}
	e = Spilled{Space: name[:1], ID: rest[:n], Payload: rest[n+1:]}
	if placed {
		if len(e.Payload) < KeyBytes {
			return e, false
		}
		e.Key, e.Payload = e.Payload[:KeyBytes], e.Payload[KeyBytes:]
	}
	return e, true
}
