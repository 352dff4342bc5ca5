package lowkiq

import (
	"fmt"
	"hash/crc32"
	"log/slog"
	"time"
)

// Queue is a name and a shard count. The rules for its jobs (retries, batch size and so on) belong
// to the nodes that handle it.
type Queue struct {
	Name   string // letters, digits, '.', '_' and '-', at most MaxQueueName of them
	Shards int    // number of shards, 1 to MaxShards; fixed once the queue is registered in Redis
}

// Shard is a part of a queue, and the unit of ownership.
type Shard struct {
	Queue string
	Index int
}

// String returns "queue/index".
func (s Shard) String() string { return fmt.Sprintf("%s/%d", s.Queue, s.Index) }

// LogValue is the same for logs, of any format.
func (s Shard) LogValue() slog.Value { return slog.StringValue(s.String()) }

// ShardOf returns the index of the shard that holds id: crc32 (IEEE) of the id modulo the number
// of shards, as in Ruby's Lowkiq. It panics if shards < 1.
func ShardOf(id string, shards int) int {
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(shards))
}

// Push is a payload on its way in, and the job it is for.
type Push struct {
	ID      string // what the job is about; 1 to MaxIDBytes bytes of any value
	Payload []byte // may be empty; equal payloads of one id waiting together are one
	// Score orders the payloads of an id, lowest first; equal scores keep push order. nil means the
	// time of the push by Redis's clock in unix seconds, made strictly increasing per shard, so
	// that payloads are handled in push order. Above 2^53 a float64 rounds integers, and neighbours
	// tie: time.Now().UnixMicro() is kept, UnixNano() is not.
	Score *float64
	// PerformAt is the earliest time at which the job may run, MinPerformAt to MaxPerformAt. The
	// zero time.Time means now. It counts for an id that is not waiting yet; an id that waits keeps
	// its due time.
	PerformAt time.Time
	// Header is what the payload says beside its data; see [Header] and [NewHeader].
	Header map[string]string
	// ReplyTo is the address to which the payload's end is told. Calls set it (queue.Client.Call), and
	// middlewares leave it; "" else. Payloads are equal only if it is the same.
	ReplyTo string
}

// Job is an id with the payloads that wait for it.
type Job struct {
	ID        string
	Payloads  []Payload // lowest score first; equal scores in push order (I3)
	PerformAt time.Time // when it became, or becomes, due
	// WaitingSince is since when it waits, or will: PerformAt, unless it was put off without a failure. Then it is when it was due
	// before that.
	WaitingSince time.Time
	RetryCount   int    // failures in a row, less one: -1 for a job that never failed, or was made fresh again
	Error        string // what the last failure said, for people; it stays until an attempt succeeds
	Callers      int    // calls that wait for the end of these payloads: a result (see [Answer]) is for them
	// State is what an earlier answer for the id left, if the queue's rules keep states; nil if
	// there is none. See [Answer.State].
	State []byte
}

// Payload is one pushed value of a job.
type Payload struct {
	Score  float64
	Data   []byte
	Header Header
}

// Limits of what a push may carry. A job beyond a limit is refused by itself; the other jobs of
// the same push are not affected.
const (
	MaxIDBytes      = 512       // longest job id, bytes
	MaxPayloadBytes = 1 << 20   // longest payload, bytes (default; queue.PushRules.PayloadBytes)
	MaxPayloads     = 10_000    // payloads waiting for one id (default)
	MaxIDPayload    = 16 << 20  // bytes of payloads waiting for one id (default)
	MaxShards       = 1_000_000 // shards of one queue
	MaxQueueName    = 128       // longest queue or cluster name, bytes

	// Due times, unix seconds: from September 2001, so that a delay is not taken for a time, to
	// March 2242, so that milliseconds are not; microseconds of these are exact in the doubles by
	// which Redis sorts.
	MinPerformAt = 1_000_000_000
	MaxPerformAt = 1 << 33
)
