package browse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// Verdict is how an attempt ended that came to nothing.
type Verdict string

// The verdicts.
const (
	AttemptFailed    Verdict = "failed"    // its handler failed; a retry was spent
	AttemptExhausted Verdict = "exhausted" // its handler failed, and no retry was left
	AttemptCrashed   Verdict = "crashed"   // its worker died while the id ran alone
)

// Attempt is one that came to nothing. Successes are not noted: they cost nothing.
type Attempt struct {
	At         time.Time // by Redis's clock; of a crash, when the shard was seized
	ID         string
	Shard      int
	RetryCount int // of the job after the attempt: one less than its failures in a row, so -1 before the first one
	Verdict    Verdict
	Instance   string // whose attempt it was
	Error      string // first line of the error, at most 200 bytes
}

// attemptsKept is how many of a shard are kept, as lua/lib/attempt.lua has it.
const attemptsKept = 64

var errAttempt = errors.New("unknown entry in the list of attempts")

// Attempts lists the attempts of an id that came to nothing, newest first, as far as its
// shard remembers: it keeps the last 64 of all its ids.
func (j *Jobs) Attempts(ctx context.Context, id string) ([]Attempt, error) {
	all, err := j.attempts(ctx, j.q.Of(id))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(a Attempt) bool { return a.ID != id }), nil
}

// RecentAttempts lists the attempts of the whole queue that came to nothing, newest
// first, at most limit.
func (j *Jobs) RecentAttempts(ctx context.Context, limit int) ([]Attempt, error) {
	all, err := j.attempts(ctx, j.shards...)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(x, y Attempt) int { return y.At.Compare(x.At) })
	return all[:min(len(all), max(0, limit))], nil
}

// attempts reads the lists of shards, in pipelines of a bounded size.
func (j *Jobs) attempts(ctx context.Context, shards ...*queue.Shard) (all []Attempt, err error) {
	for part := range slices.Chunk(shards, 100) {
		cmds := make([]redisdb.Cmd, len(part))
		for i, s := range part {
			cmds[i] = redisdb.Cmd{"LRANGE", s.Keys().Attempts, 0, attemptsKept - 1}
		}
		replies, err := j.db.Pipeline(ctx, "list attempts of queue "+j.q.Name, cmds...)
		if err != nil {
			return nil, err
		}
		for i, reply := range replies {
			for _, entry := range redisdb.Texts(reply) {
				a, err := decodeAttempt(entry)
				if err != nil {
					return nil, fmt.Errorf("shard %s: %w", part[i], err)
				}
				a.Shard = part[i].Index
				all = append(all, a)
			}
		}
	}
	return all, nil
}

// decodeAttempt reads "us retry kind idlen instancelen\n", id, instance, error.
func decodeAttempt(entry string) (a Attempt, err error) {
	head, rest, ok := strings.Cut(entry, "\n")
	words := strings.Split(head, " ")
	if !ok || len(words) != 5 {
		return a, fmt.Errorf("%w: %.40q", errAttempt, entry)
	}
	var n [5]int64
	for _, i := range []int{0, 1, 3, 4} {
		if n[i], err = strconv.ParseInt(words[i], 10, 64); err != nil {
			return a, fmt.Errorf("%w: %.40q", errAttempt, entry)
		}
	}
	id, instance := n[3], n[3]+n[4]
	if id < 0 || instance < id || instance > int64(len(rest)) {
		return a, fmt.Errorf("%w: %.40q", errAttempt, entry)
	}
	return Attempt{
		At: time.UnixMicro(n[0]), RetryCount: int(n[1]), Verdict: Verdict(words[2]),
		ID: rest[:id], Instance: rest[id:instance], Error: strings.ToValidUTF8(rest[instance:], ""),
	}, nil
}
