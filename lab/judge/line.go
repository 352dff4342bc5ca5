package judge

import (
	"hash/crc64"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Kinds of events, the first word of a line.
const (
	kindStart = "start"
	kindMore  = "more"
	kindEnd   = "end"
	kindFail  = "fail"
	kindDeath = "death"
)

const (
	// chunk is the maximum size of a write of several lines, in bytes.
	chunk = 4096
	// linePayloads keeps a line of payloads within a chunk.
	linePayloads = 32
	// lineError is how many bytes of an error a line keeps.
	lineError = 200
)

var crcTable = crc64.MakeTable(crc64.ECMA)

// Digest returns the crc64 (ECMA) of a payload, which the history keeps of it.
func Digest(payload []byte) uint64 { return crc64.Checksum(payload, crcTable) }

// lineOf begins a line with newline, kind, time and process. Because the newline comes first, a line that a kill cut short
// does not swallow the next line.
func lineOf(b []byte, kind string, t time.Duration, process string) []byte {
	b = append(b, '\n')
	b = append(b, kind...)
	b = appendInt(b, int64(t))
	return appendQuoted(b, process)
}

func finishLine(b []byte) []byte { return append(b, " ."...) }

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(append(b, ' '), n, 10) }

func appendQuoted(b []byte, s string) []byte { return strconv.AppendQuote(append(b, ' '), s) }

func appendPayloads(b []byte, payloads []lowkiq.Payload) []byte {
	for _, p := range payloads {
		b = strconv.AppendFloat(append(b, ' '), p.Score, 'g', -1, 64)
		b = strconv.AppendUint(append(b, ':'), Digest(p.Data), 16)
	}
	return b
}

// appendStart appends the start of a batch's job, in as many lines as it needs.
func appendStart(lines [][]byte, t time.Duration, process string, batch *lowkiq.Batch, job lowkiq.Job) [][]byte {
	first := min(len(job.Payloads), linePayloads)
	b := lineOf(nil, kindStart, t, process)
	b = appendInt(appendQuoted(b, batch.Shard.Queue), int64(batch.Shard.Index))
	b = appendInt(appendInt(b, batch.Fence), batch.Flight)
	b = appendInt(appendQuoted(b, job.ID), int64(len(job.Payloads)))
	lines = append(lines, finishLine(appendPayloads(b, job.Payloads[:first])))
	for rest := job.Payloads[first:]; len(rest) > 0; {
		n := min(len(rest), linePayloads)
		b := appendQuoted(appendQuoted(lineOf(nil, kindMore, t, process), batch.Shard.Queue), job.ID)
		lines = append(lines, finishLine(appendPayloads(b, rest[:n])))
		rest = rest[n:]
	}
	return lines
}

// endLine returns the line for the end of a call that began at began. A nil err is a success.
func endLine(t time.Duration, process string, began time.Duration, queue, id string, err error) []byte {
	kind := kindEnd
	if err != nil {
		kind = kindFail
	}
	b := appendInt(lineOf(nil, kind, t, process), int64(began))
	b = appendQuoted(appendQuoted(b, queue), id)
	if err != nil {
		text := err.Error()
		b = appendQuoted(b, text[:min(len(text), lineError)])
	}
	return finishLine(b)
}

// deathLine returns the line for the death of a process. killed is 0 if the time is not known.
func deathLine(process string, killed, reaped time.Duration) []byte {
	return finishLine(appendInt(lineOf(nil, kindDeath, reaped, process), int64(killed)))
}
