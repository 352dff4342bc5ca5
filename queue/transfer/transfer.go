// Package transfer answers one question: how do jobs that another system kept come into a queue, each once?
//
// The other system is a source of [Entry] values with rising numbers. [Import] takes them in, and does nothing about those that
// were taken in before, also if their jobs have run since: whoever moves jobs here may be killed at any instant, and sends what
// the source still has once more. What was refused may come again later; until then no later entry of its id is taken in.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/queue"
)

// Entry is what a source keeps of one id: its waiting job, or what its morgue has.
type Entry struct {
	Number   int64 // 1 to 2^53, higher than that of each entry before it
	ID       string
	Payloads []Payload // of equal ones the smallest score counts; equal scores in this order
	// RetryCount is -1 for a job that has not failed.
	RetryCount int
	Due        int64  // us since 1970; 0 or past, however long: due now
	Error      string // the last one
	// Morgue: it is in the morgue, since Buried (us since 1970).
	Morgue bool
	Buried int64
	// Err says why the source cannot give the entry, if it cannot: it is refused, and later entries of its id with it.
	Err error
}

// Payload is data with a score.
type Payload struct {
	Score  float64
	Data   []byte
	Header lowkiq.Header
}

// Result is the answer to an entry.
type Result struct {
	// Before: it was taken in before; nothing was done.
	Before bool
	// Err: it was refused, or not sent (queue.ErrUnsent), or it is unknown whether it was taken in; see [Refused].
	Err error
}

// Errors of refused entries, beside those of pushes.
var (
	ErrBehind     = errors.New("an earlier entry of this id was refused")
	ErrNoPayloads = errors.New("an entry without payloads")
	ErrRetryCount = errors.New("retry count is out of range")
)

// refusal is why an entry was refused by the queue or by the source.
type refusal struct{ cause error }

func (e *refusal) Error() string { return e.cause.Error() }
func (e *refusal) Unwrap() error { return e.cause }

// Refused reports whether an entry was refused for what it is, or for what waits: it stays where it was, for a person. After any
// other error it is to be sent again.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// Most bytes of a source's name.
const maxSource = 200

// Import takes entries of a source in, in the order of their numbers. It answers each, and returns the first error of theirs.
//
//   - What waits for the id and the entry become one job: the payloads of both, of equal ones the smaller score, and of
//     equal scores those of the entry first, also before those of an earlier entry. The entry's retry count, due time and error hold; without an error, that of what
//     waits stays. An id that is blocked or held stays so, a blocked one with its own retry count. In quarantine, it keeps its
//     due time.
//   - An id in flight gets the entry when that flight ends, as a push: a fresh job, due at the entry's time, with its error. If
//     the flight comes back they are one job, with the flight's retry count and payloads first among equal scores.
//   - Entries of the morgue join what the queue's morgue has; what was buried last says why and when.
//   - Payloads are encoded by the queue's codec. Middlewares and rules that merge pushes are for pushes, and see none of it.
//   - The limits are those of pushes. An entry that exceeds them with what waits is refused as a whole; that equal payloads count once
//     is seen of entries of up to 500 payloads.
//   - A large entry goes in by parts, lowest scores first; each is a step by itself. A worker may run the first ones before the last is in, as it runs
//     an id with many payloads, piece by piece; what comes after such a run is a fresh job.
//
// After a refusal no later entry of the same id is taken in (ErrBehind) until it was taken in itself; other ids go on. After any
// other error, as when Redis is full, no later entry of the same shard is sent (queue.ErrUnsent).
//
// If a master has replicas, Import waits a moment until one of them has what was taken in, as the caller forgets it then.
func Import(ctx context.Context, q *queue.Queue, source string, entries ...Entry) ([]Result, error) {
	return ImportInParts(ctx, q, partPayloads, source, entries...)
}

// ImportInParts is [Import] with parts of at most so many payloads: tests reach many parts with few payloads.
func ImportInParts(ctx context.Context, q *queue.Queue, most int, source string, entries ...Entry) ([]Result, error) {
	if err := checkSource(source); err != nil {
		return nil, err
	}
	last := int64(0)
	for i := range entries {
		if n := entries[i].Number; n <= last || n > 1<<53 {
			return nil, fmt.Errorf("source %s: entry %d follows entry %d: want numbers that rise, from 1 to 2^53", source, n, last)
		}
		last = entries[i].Number
	}
	rules, err := q.Storing(ctx)
	if err != nil {
		return nil, err
	}
	w := &work{q: q, rules: rules, field: fieldOf(source), entries: entries, results: make([]Result, len(entries)), most: most}
	for i := range w.results {
		w.results[i].Err = errUnanswered
	}
	w.now = redisNow(ctx, q, entries)
	w.run(ctx)
	for i := range w.results {
		if err := w.results[i].Err; err != nil {
			return w.results, err
		}
	}
	return w.results, nil
}

// redisNow is the time in Redis (us) by which due times of the past are known; 0 if none is named, or Redis does not say.
func redisNow(ctx context.Context, q *queue.Queue, entries []Entry) int64 {
	if !slices.ContainsFunc(entries, func(e Entry) bool { return e.Due > 0 }) {
		return 0
	}
	now, err := q.Shard(0).DB().Time(ctx)
	if err != nil {
		return 0
	}
	return now.UnixMicro()
}

// time is when the entry is due, or was buried (us).
func (e *Entry) time() int64 {
	if e.Morgue {
		return e.Buried
	}
	return e.Due
}

// Check says why an entry is refused whatever the queue has: what Import says of it before it asks Redis.
func Check(entry *Entry, rules *queue.PushRules) error {
	if err := envelope.CheckID(entry.ID); err != nil {
		return err
	}
	stored, size, err := prepare(entry, rules)
	switch {
	case err != nil:
		return err
	case len(stored) > rules.Payloads:
		return fmt.Errorf("job %q: %w: %d is the limit, the entry has %d", entry.ID, queue.ErrTooManyPayloads, rules.Payloads, len(stored))
	case size > rules.IDPayload:
		return fmt.Errorf("job %q: %w: %d is the limit, the entry has %d", entry.ID, queue.ErrTooManyBytes, rules.IDPayload, size)
	}
	return nil
}

// prepare makes an entry's payloads those that are stored, lowest score first, equal ones once; or says why it is refused.
func prepare(entry *Entry, rules *queue.PushRules) (stored []Payload, size int, err error) {
	switch {
	case entry.Err != nil:
		return nil, 0, fmt.Errorf("job %q: %w", entry.ID, entry.Err)
	case len(entry.Payloads) == 0:
		return nil, 0, fmt.Errorf("job %q: %w", entry.ID, ErrNoPayloads)
	case entry.RetryCount < -1 || entry.RetryCount > math.MaxInt32:
		return nil, 0, fmt.Errorf("job %q: %w: %d, want -1 to %d", entry.ID, ErrRetryCount, entry.RetryCount, math.MaxInt32)
	}
	at := time.Time{}
	if when := entry.time(); when > 0 { // one that a push would refuse as a delay is a time of the past here
		at = time.UnixMicro(max(when, lowkiq.MinPerformAt*1e6))
	}
	stored = make([]Payload, 0, len(entry.Payloads))
	var places map[string]int // of data, if there is more than one
	if len(entry.Payloads) > 1 {
		places = make(map[string]int, len(entry.Payloads))
	}
	for _, p := range entry.Payloads {
		data := p.Data
		if rules.Codec.Encode != nil {
			if data, err = rules.Codec.Encode(data); err != nil {
				return nil, 0, fmt.Errorf("job %q: encode: %w", entry.ID, err)
			}
		}
		data = envelope.Wrap(p.Header, "", data)
		push := lowkiq.Push{ID: entry.ID, Payload: data, Score: &p.Score, PerformAt: at}
		if err := envelope.Check(&push, rules.PayloadBytes, rules.IDPayload); err != nil {
			return nil, 0, err
		}
		if k, ok := places[string(data)]; ok {
			stored[k].Score = min(stored[k].Score, p.Score)
			continue
		}
		if places != nil {
			places[string(data)] = len(stored)
		}
		stored, size = append(stored, Payload{Score: p.Score, Data: data}), size+len(data)
	}
	slices.SortStableFunc(stored, func(x, y Payload) int { return cmp.Compare(x.Score, y.Score) })
	return stored, size, nil
}
