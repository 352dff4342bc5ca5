// Package packed reads the records of jobs in Redis. Scripts write them: lua/lib/record.lua describes
// the forms of records, lua/lib/spill.lua the payloads of crowded ids.
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
	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// ErrDamaged means that a record cannot be read.
var ErrDamaged = errors.New("damaged record")

// ErrLater means that a record has the form of a later release. It is not damaged, and this release must
// not change it.
var ErrLater = errors.New("record of a later release")

// IsLater reports whether a record is of a later release. The forms of this release begin with small
// letters, the forms of later releases with capital letters.
func IsLater(record string) bool { return record != "" && record[0] >= 'A' && record[0] <= 'Z' }

// Bytes returns the bytes of a string from Redis without a copy. go-redis makes each reply string from a
// buffer of its own and keeps no reference. So a handler may change its payload without changing others.
func Bytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Micros decodes a big endian 7-byte integer.
func Micros(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

// Decode decodes a record. It appends the payloads to slab, which the job refers to, and returns the slab.
// Payloads are sorted: lowest score first, equal scores in push order (I3).
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
		score := math.Float64frombits(binary.BigEndian.Uint64(Bytes(record[8:16])))
		if !isFinite(score) {
			return job, slab, fmt.Errorf("job %q: %w: score %v", id, ErrDamaged, score)
		}
		slab = append(slab, lowkiq.Payload{Score: score})
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
			if !isFinite(p.Score) {
				return job, slab[:first], fmt.Errorf("job %q: %w: score %v", id, ErrDamaged, p.Score)
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

// isFinite reports whether a score can be ordered and written as JSON.
func isFinite(score float64) bool { return !math.IsNaN(score) && !math.IsInf(score, 0) }

// Open decodes a stored payload into p. called reports whether a caller waits for its end.
func Open(stored string, p *lowkiq.Payload) (called bool, err error) {
	content, ok := envelope.Open(stored)
	if !ok {
		return false, ErrDamaged
	}
	p.Header, p.Data = content.Header, Bytes(content.Data)
	return content.Address != "", nil
}

// openOnly decodes the only payload of a job.
func openOnly(stored string, job *lowkiq.Job, p *lowkiq.Payload) error {
	called, err := Open(stored, p)
	if called {
		job.Callers = 1
	}
	return err
}

// SortPayloads sorts payloads, lowest score first. Equal scores stay in push order (I3).
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

// DecodeHead decodes "j<retry> <at> <count> <bytes> <errlen> <next>\n<error>". The head of a crowded job has
// one more word, and the head of a postponed job has two.
func DecodeHead(record string, job *lowkiq.Job) (rest string, count int, err error) {
	line, rest, ok := strings.Cut(record[1:], "\n")
	n, err := HeadWords(record[0], line)
	if !ok || err != nil || n[2] < 0 || n[4] < 0 || n[4] > int64(len(rest)) {
		return "", 0, ErrDamaged
	}
	job.RetryCount, job.PerformAt, job.WaitingSince, job.Error = int(n[0]), time.UnixMicro(n[1]), Since(n), rest[:n[4]]
	return rest[n[4]:], int(n[2]), nil
}

// HeadWords decodes the numbers that the heads of all forms have. The last number is the time when a
// postponed job began to wait, or 0.
func HeadWords(form byte, line string) (n [7]int64, err error) {
	words := strings.Split(line, " ")
	if form == 's' && len(words) > 6 {
		words = slices.Delete(words, 6, 7) // the shift matters only to scripts
	} else if form == 's' {
		return n, ErrDamaged
	}
	switch len(words) {
	case 6:
	case 8:
		words = words[:7] // the group mark matters only to scripts
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

// Since returns the time when a job with these numbers began to wait.
func Since(n [7]int64) time.Time { return time.UnixMicro(cmp.Or(n[6], n[1])) }

// KeyBytes is the length of a key in the spill: 8 bytes that sort as scores do, and 12 digits for the place
// among equal scores.
const KeyBytes = 20

// KeyScore decodes the score of a key, a double that is encoded so that bytes sort as scores do.
func KeyScore(key string) float64 {
	bits := binary.BigEndian.Uint64(Bytes(key[:8]))
	if bits>>63 == 1 {
		return math.Float64frombits(bits &^ (1 << 63))
	}
	return math.Float64frombits(^bits)
}

// decodeKeyed decodes a key, 4 bytes of length, and the payload.
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

// DecodePayload decodes "<score> <len>:<payload>".
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

// Spilled is a payload of a crowded id. It is a member of spill, or a field of spillx without a Key.
type Spilled struct{ Space, ID, Key, Payload string }

// SpillPrefix returns the prefix of the payloads of an id in the spill.
func SpillPrefix(space, id string) string { return space + strconv.Itoa(len(id)) + ":" + id + ":" }

// ParseSpill parses "w<len id>:<id>:" and the payload. If placed, a key stands before the payload.
func ParseSpill(name string, placed bool) (e Spilled, ok bool) {
	if name == "" || name[0] != 'w' && name[0] != 'm' {
		return e, false
	}
	length, rest, _ := strings.Cut(name[1:], ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 1 || strconv.Itoa(n) != length || len(rest)-1 < n || rest[n] != ':' {
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
