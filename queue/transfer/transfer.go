// Package transfer moves jobs between a queue and another system, each job once.
//
// The other system is a source of [Entry] values with rising numbers. [Import] takes entries in. It
// ignores entries that it has taken in before, even if their jobs have run since. So a program that
// moves jobs may be killed at any moment, and sends everything that its source still has once more.
// An entry that was refused may be sent again later. Until it is taken in, no later entry of its id
// is.
//
// In the other direction, [Export] takes jobs out of a queue.
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
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Entry is what a source keeps for an id: its waiting job, or its buried payloads.
type Entry struct {
	Number   int64 // 1 to 2^53, higher than the number of each entry before it
	ID       string
	Payloads []Payload // the smallest score of equal payloads counts; equal scores keep this order
	// RetryCount is -1 for a job that has not failed.
	RetryCount int
	Due        int64  // us since 1970; 0 or any time in the past means due now
	Error      string // the last error
	// Morgue means that the entry is in the morgue, since Buried (us since 1970).
	Morgue bool
	Buried int64
	// Err is not nil if the source cannot provide the entry. It is then refused, and later entries
	// of its id with it.
	Err error
}

// Payload is data with a score.
type Payload struct {
	Score  float64
	Data   []byte
	Header lowkiq.Header
}

// Result is the result of importing an entry.
type Result struct {
	// Before means that the entry was taken in before, and nothing was done.
	Before bool
	// Err is not nil if the entry was refused, was not sent (queue.ErrUnsent), or may or may not
	// have been taken in. See [Refused].
	Err error
}

// Errors of refused entries, besides the errors of pushes.
var (
	ErrBehind     = errors.New("an earlier entry of this id was refused")
	ErrNoPayloads = errors.New("an entry without payloads")
	ErrRetryCount = errors.New("retry count is out of range")
)

// refusal is the error of an entry that the queue or the source refused.
type refusal struct{ cause error }

func (e *refusal) Error() string { return e.cause.Error() }
func (e *refusal) Unwrap() error { return e.cause }

// Refused reports whether an entry was refused because of its contents or of the waiting payloads.
// Such an entry stays in its source for a person to look at. After any other error it must be sent
// again.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// maxSource is the maximum number of bytes in a source's name.
const maxSource = 200

// Import takes entries of a source in, in the order of their numbers. It returns a result for each,
// and the first error of them.
//
//   - The waiting payloads of the id and the entry become one job. Of equal payloads the smaller score counts.
//     Among equal scores the payloads of the entry come first, also before those of an earlier entry. The job
//     gets the entry's retry count, due time and error. Without an error, the error of the waiting job stays.
//     An id that is blocked or held stays so, and a blocked id keeps its retry count. In quarantine, an id
//     keeps its due time.
//   - An id in flight gets the entry when that flight ends, like a push: a fresh job, due at the entry's time,
//     with its error. If the flight is recovered they become one job, with the flight's retry count, and the
//     flight's payloads first among equal scores.
//   - Entries of the morgue join the buried payloads of the queue. The latest burial says why and when.
//   - The queue's codec encodes payloads. Middlewares and rules that merge pushes apply only to pushes.
//   - The limits are those of pushes. An entry that exceeds them together with the waiting payloads is refused
//     as a whole. Equal payloads count once, which is checked for entries of up to 500 payloads.
//   - A large entry is sent in parts, lowest scores first, and each part is a step by itself. A worker may run
//     the first parts before the last part is in, as it runs an id with many payloads piece by piece. The
//     parts after such a run are a fresh job.
//
// After a refusal no later entry of the same id is taken in (ErrBehind) until the refused entry is.
// Other ids continue. After any other error, for example if Redis is full, no later entry of the
// same shard is sent (queue.ErrUnsent).
//
// If a master has replicas, Import waits a moment until one of them has the imported entries,
// because the caller deletes them then.
func Import(ctx context.Context, q *protocol.Queue, source string, entries ...Entry) ([]Result, error) {
	return ImportInParts(ctx, q, partPayloads, source, entries...)
}

// ImportInParts is [Import] with at most this many payloads in a part. With it tests reach many
// parts with few payloads.
func ImportInParts(ctx context.Context, q *protocol.Queue, most int, source string, entries ...Entry) ([]Result, error) {
	if err := cmp.Or(checkSource(source), protocol.CheckNotReserved(q.Name)); err != nil {
		return nil, err
	}
	last := int64(0)
	for i := range entries {
		if n := entries[i].Number; n <= last || n > 1<<53 {
			return nil, fmt.Errorf("source %s: entry %d follows entry %d: numbers must rise from 1 to 2^53", source, n, last)
		}
		last = entries[i].Number
	}
	rules, err := q.Storing(ctx)
	if err != nil {
		return nil, err
	}
	q = q.Latest()
	w := &importRun{q: q, rules: rules, field: fieldOf(source), entries: entries, results: make([]Result, len(entries)), most: most}
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

// redisNow returns Redis's clock (us), which tells due times in the past. It is 0 if no
// entry has a due time or Redis does not answer.
func redisNow(ctx context.Context, q *protocol.Queue, entries []Entry) int64 {
	if !slices.ContainsFunc(entries, func(e Entry) bool { return e.Due > 0 }) {
		return 0
	}
	now, err := q.Shard(0).DB().Time(ctx)
	if err != nil {
		return 0
	}
	return now.UnixMicro()
}

// timeOf returns when the entry is due or was buried (us).
func (e *Entry) timeOf() int64 {
	if e.Morgue {
		return e.Buried
	}
	return e.Due
}

// Check returns the error of an entry that Import refuses before it asks Redis, whatever the queue
// contains.
func Check(entry *Entry, rules *protocol.PushRules) error {
	if err := envelope.CheckID(entry.ID); err != nil {
		return err
	}
	stored, size, err := prepareEntry(entry, rules)
	switch {
	case err != nil:
		return err
	case len(stored) > rules.Payloads:
		return fmt.Errorf("job %q: %w: %d is the limit, the entry has %d", entry.ID, protocol.ErrTooManyPayloads, rules.Payloads, len(stored))
	case size > rules.IDPayload:
		return fmt.Errorf("job %q: %w: %d is the limit, the entry has %d", entry.ID, protocol.ErrTooManyBytes, rules.IDPayload, size)
	}
	return nil
}

// prepareEntry returns an entry's payloads as they are stored, lowest score first, without
// duplicates, or the error of a refused entry.
func prepareEntry(entry *Entry, rules *protocol.PushRules) (stored []Payload, size int, err error) {
	switch {
	case entry.Err != nil:
		return nil, 0, fmt.Errorf("job %q: %w", entry.ID, entry.Err)
	case len(entry.Payloads) == 0:
		return nil, 0, fmt.Errorf("job %q: %w", entry.ID, ErrNoPayloads)
	case entry.RetryCount < -1 || entry.RetryCount > math.MaxInt32:
		return nil, 0, fmt.Errorf("job %q: %w: %d, want -1 to %d", entry.ID, ErrRetryCount, entry.RetryCount, math.MaxInt32)
	}
	at := time.Time{}
	if when := entry.timeOf(); when > 0 { // a push would refuse some of these times; here they mean the past
		at = time.UnixMicro(max(when, lowkiq.MinPerformAt*1e6))
	}
	stored = make([]Payload, 0, len(entry.Payloads))
	var places map[string]int // places of data, if there is more than one payload
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
