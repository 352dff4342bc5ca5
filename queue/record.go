package queue

import (
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
)

// The packed record of a job; lua/record.lua describes the forms.

var errRecord = errors.New("damaged record")

// errLater is a record of a form that this release does not know. It is sound, and not
// this release's to touch.
var errLater = errors.New("record of a later release")

// isLater reports whether a record is of a later release: the forms of this one begin
// with small letters, those that are to come with capital ones.
func isLater(record string) bool { return record != "" && record[0] >= 'A' && record[0] <= 'Z' }

// bytesOf gives the bytes of a string that came from Redis. go-redis makes each reply
// string from a buffer of its own and hands it to us alone, so a handler may even
// change its payload without touching anything else.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// us7 reads a big endian 7-byte integer.
func us7(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

// decodeJob reads a record, appending its payloads to slab, of which the job keeps a
// part; it returns the slab. Payloads are sorted: lowest score first, equal scores in
// push order (I3).
func decodeJob(id, record string, slab []lowkiq.Payload) (lowkiq.Job, []lowkiq.Payload, error) {
	job := lowkiq.Job{ID: id, RetryCount: -1}
	first := len(slab)
	switch {
	case len(record) >= 10 && record[0] == 'a':
		us := us7(record[1:])
		score := us + int64(record[8])<<8 + int64(record[9])
		job.PerformAt = time.UnixMicro(us)
		slab = append(slab, lowkiq.Payload{Score: float64(score) / 1e6, Data: bytesOf(record[10:])})
	case len(record) >= 16 && record[0] == 'e':
		job.PerformAt = time.UnixMicro(us7(record[1:]))
		bits := binary.BigEndian.Uint64(bytesOf(record[8:16]))
		slab = append(slab, lowkiq.Payload{Score: math.Float64frombits(bits), Data: bytesOf(record[16:])})
	case len(record) > 0 && (record[0] == 'j' || record[0] == 's' || record[0] == 'p'):
		rest, count, err := decodeHead(record, &job)
		if err != nil {
			return job, slab, fmt.Errorf("job %q: %w", id, err)
		}
		if record[0] == 's' {
			return job, slab, nil
		}
		for range count {
			var p lowkiq.Payload
			decode := decodePayload
			if record[0] == 'p' {
				decode = decodeKeyed
			}
			if p, rest, err = decode(rest); err != nil {
				return job, slab, fmt.Errorf("job %q: %w", id, err)
			}
			slab = append(slab, p)
		}
	case isLater(record):
		return job, slab, fmt.Errorf("job %q: %w: form %q", id, errLater, record[0])
	default:
		return job, slab, fmt.Errorf("job %q: %w %.20q", id, errRecord, record)
	}
	job.Payloads = slab[first:len(slab):len(slab)]
	if len(job.Payloads) > 1 {
		sortPayloads(job.Payloads)
	}
	return job, slab, nil
}

func sortPayloads(payloads []lowkiq.Payload) {
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

// decodeHead reads "j<retry> <at> <count> <bytes> <errlen> <next>\n<error>", with one word more of a crowded job.
func decodeHead(record string, job *lowkiq.Job) (rest string, count int, err error) {
	line, rest, ok := strings.Cut(record[1:], "\n")
	n, err := headWords(record[0], line)
	if !ok || err != nil || n[4] < 0 || n[4] > int64(len(rest)) {
		return "", 0, errRecord
	}
	job.RetryCount, job.PerformAt, job.Error = int(n[0]), time.UnixMicro(n[1]), rest[:n[4]]
	return rest[n[4]:], int(n[2]), nil
}

// headWords reads the numbers of a head that all forms have.
func headWords(form byte, line string) (n [6]int64, err error) {
	words := strings.Split(line, " ")
	if form == 's' && len(words) == len(n)+1 {
		words = words[:len(n)] // the last one is of interest to scripts only
	} else if form == 's' || len(words) != len(n) {
		return n, errRecord
	}
	for i, word := range words {
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return n, errRecord
		}
	}
	return n, nil
}

// Before a payload in the spill stands its key: 8 bytes that are in the order of scores, and 12 digits for its place
// among equal ones.
const keyBytes = 20

// keyScore reads the score of a key: a double in an order that can be compared byte by byte.
func keyScore(key string) float64 {
	bits := binary.BigEndian.Uint64(bytesOf(key[:8]))
	if bits>>63 == 1 {
		return math.Float64frombits(bits &^ (1 << 63))
	}
	return math.Float64frombits(^bits)
}

// decodeKeyed reads a key, 4 bytes of length, the payload.
func decodeKeyed(s string) (p lowkiq.Payload, rest string, err error) {
	if len(s) < keyBytes+4 {
		return p, "", errRecord
	}
	n := int64(binary.BigEndian.Uint32(bytesOf(s[keyBytes : keyBytes+4])))
	data := s[keyBytes+4:]
	if n > int64(len(data)) {
		return p, "", errRecord
	}
	return lowkiq.Payload{Score: keyScore(s), Data: bytesOf(data[:n])}, data[n:], nil
}

// decodePayload reads "<score> <len>:<payload>".
func decodePayload(s string) (p lowkiq.Payload, rest string, err error) {
	score, s, ok1 := strings.Cut(s, " ")
	length, s, ok2 := strings.Cut(s, ":")
	n, err1 := strconv.Atoi(length)
	p.Score, err = strconv.ParseFloat(score, 64)
	if !ok1 || !ok2 || err1 != nil || err != nil || n < 0 || n > len(s) {
		return p, "", errRecord
	}
	p.Data = bytesOf(s[:n])
	return p, s[n:], nil
}
