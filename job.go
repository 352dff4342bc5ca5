package lowkiq

import (
	"fmt"
	"log/slog"
	"math/bits"
	"time"
)

// Queue is a name and a number of shards. The rules for its jobs, such as retries and batch size,
// belong to the nodes that handle it.
type Queue struct {
	Name   string // letters, digits, '.', '_' and '-', at most MaxQueueName of them
	Shards int    // number of shards, 1 to MaxShards; for a registered queue, only a reshard changes it
}

// Shard is a part of a queue, and the unit of ownership.
type Shard struct {
	Queue string
	Index int
}

// String returns "queue/index".
func (s Shard) String() string { return fmt.Sprintf("%s/%d", s.Queue, s.Index) }

// LogValue returns the value of String for logs.
func (s Shard) LogValue() slog.Value { return slog.StringValue(s.String()) }

// ShardOf returns the index of the shard that holds id. It spreads ids that differ in a few digits
// more evenly than a random function would (ADR 31). It panics if shards < 1.
func ShardOf(id string, shards int) int {
	if shards < 1 {
		panic(fmt.Sprintf("lowkiq: shard of %q: there are %d shards, and there must be at least 1", id, shards))
	}
	var h uint32
	for i := range len(id) {
		h = h*shardFactor + uint32(id[i])
	}
	return int(uint64(bits.Reverse32(h)) * uint64(shards) >> 32)
}

// shardFactor is 53 modulo 64. These six bits decide how names that differ in a few digits spread over
// up to 64 shards (ADR 31). The other bits are bits of the golden ratio.
const shardFactor = 0x9e377275

// Push is a payload and the id of its job.
type Push struct {
	ID      string // the entity that the job is about; 1 to MaxIDBytes bytes of any value
	Payload []byte // may be empty; equal payloads of an id that wait together become one payload
	// Score orders the payloads of an id, lowest first. Equal scores keep push order. nil stands for
	// the time of the push by Redis's clock, in seconds since 1970. These default scores rise strictly
	// within a shard, so payloads without a score are handled in push order. A float64 rounds integers
	// above 2^53: time.Now().UnixMicro() is exact, UnixNano() is not.
	Score *float64
	// PerformAt is the earliest time when the job may run, from MinPerformAt to MaxPerformAt. The
	// zero time.Time stands for now. An id that waits already keeps its due time.
	PerformAt time.Time
	// Urgent puts the id before all ids of its shard that are not urgent, from the moment when it is due
	// until its waiting payloads are handled. The payloads of the id keep their order, and no run is
	// interrupted.
	Urgent bool
	// Header has the headers of the payload; see [Header] and [NewHeader].
	Header map[string]string
	// ReplyTo is the address for the reply when the payload ends. queue.Client.Call sets it, and
	// middlewares must keep it. Payloads with different addresses are not equal.
	ReplyTo string
}

// Job is an id with its waiting payloads.
type Job struct {
	ID        string
	Payloads  []Payload // lowest score first; equal scores in push order (I3)
	PerformAt time.Time // its due time
	// WaitingSince is the time when the job began to wait. It is PerformAt, unless the job was
	// postponed. A postponed job keeps the time when it was due first.
	WaitingSince time.Time
	RetryCount   int    // failures in a row minus 1; -1 for a job that has not failed since it was new or requeued
	Error        string // the text of the last failure; it stays until a call succeeds
	Callers      int    // number of calls that wait for the end of these payloads, and get the result (see [Answer])
	// State is the state of the id, if the queue's rules keep states. nil if there is none. See
	// [Answer.State].
	State []byte
}

// Payload is a pushed value of a job.
type Payload struct {
	Score  float64
	Data   []byte
	Header Header
}

// Limits of a push. A job beyond a limit is refused; the other jobs of the push are not affected.
const (
	MaxIDBytes      = 512      // bytes of an id
	MaxPayloadBytes = 1 << 20  // bytes of a payload (default; see rules.Push)
	MaxPayloads     = 10_000   // waiting payloads of an id (default)
	MaxIDPayload    = 16 << 20 // bytes of the waiting payloads of an id (default)
	MaxShards       = 10_000   // shards of a queue
	MaxQueueName    = 128      // bytes of the name of a queue or cluster

	// Due times, seconds since 1970. They begin in September 2001, so that a delay in seconds is refused
	// as a time. They end in March 2242, so that a time in milliseconds is refused, too. Redis sorts by
	// doubles, which are exact for microseconds in this range.
	MinPerformAt = 1_000_000_000
	MaxPerformAt = 1 << 33
)
