package rubyqueue

import (
	"context"
	"fmt"
	"strconv"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Entry is what an id has: where it lies, with number 0, or as it was taken.
type Entry struct {
	Number  int64
	ID      string
	Morgue  bool
	Waiting *Row // nil for an id that is in flight only; of the morgue: what is buried
	Flight  *Flight
}

// Row is an id's due time, retry count, error and payloads. Of the morgue, At is the time of the last
// burial, and there is no retry count.
type Row struct {
	At       float64
	Retries  float64
	Error    *string
	Payloads []Payload // in Redis's order: score, then bytes

	total int // payloads there are; more than len(Payloads) until all are read
}

// Flight is a row that a worker took. What of it the morgue has, counts for its oldest payload alone.
type Flight struct {
	Row
	Shard       int
	Buried      bool // the oldest payload lies in the morgue
	BuriedAt    float64
	BuriedError *string
}

// Payload is what is stored, and its score.
type Payload struct {
	Score float64
	Data  []byte
}

// Take moves ids whole to where no process of Ruby's looks. It may take fewer than asked for, from the
// first on, and at least one; an id of which nothing is left is nil. Entries have all their payloads if they
// are no more than most.
func (q *Queue) Take(ctx context.Context, ids []string, flights Flights, most int) ([]*Entry, error) {
	args := []any{q.run, "job", bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, ShardOf(id, q.shards), flights.shards(id))
	}
	return q.entries(ctx, takeScript, most, args...)
}

// TakeBuried is Take for what the morgue has.
func (q *Queue) TakeBuried(ctx context.Context, ids []string, most int) ([]*Entry, error) {
	args := []any{q.run, "morgue", bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, 0, "")
	}
	return q.entries(ctx, takeScript, most, args...)
}

// Look is Take without taking: entries of number 0.
func (q *Queue) Look(ctx context.Context, ids []string, flights Flights, most int) ([]*Entry, error) {
	return q.look(ctx, "job", ids, flights, most)
}

// LookBuried is TakeBuried without taking.
func (q *Queue) LookBuried(ctx context.Context, ids []string, most int) ([]*Entry, error) {
	return q.look(ctx, "morgue", ids, nil, most)
}

func (q *Queue) look(ctx context.Context, kind string, ids []string, flights Flights, most int) ([]*Entry, error) {
	args := []any{kind, bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, flights.shards(id))
	}
	return q.entries(ctx, lookScript, most, args...)
}

// Taken returns the next entries that were taken and are not forgotten, in order of their numbers.
func (q *Queue) Taken(ctx context.Context, after int64, most int) ([]*Entry, error) {
	return q.entries(ctx, takenScript, most, bytesPerScript, idsPerScript, after)
}

// entries runs a script that answers entries, and reads the payloads that it did not answer.
func (q *Queue) entries(ctx context.Context, s *redisdb.Script, most int, args ...any) ([]*Entry, error) {
	reply, err := q.call(ctx, s, args...)
	if err != nil {
		return nil, err
	}
	list := redisdb.List(reply)
	entries := make([]*Entry, len(list))
	for i, one := range list {
		if entries[i], err = parseEntry(redisdb.List(one)); err != nil {
			return nil, err
		}
		if err := q.complete(ctx, entries[i], most); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// complete reads the payloads of an entry that are missing, unless there are more than most.
func (q *Queue) complete(ctx context.Context, e *Entry, most int) error {
	if e == nil {
		return nil
	}
	waiting, flight := q.key("payloads:"+e.ID), q.key("processing:payloads:"+e.ID)
	switch {
	case e.Number > 0:
		n := strconv.FormatInt(e.Number, 10)
		waiting, flight = q.key("migrate:payloads:"+n), q.key("migrate:processing:"+n)
	case e.Morgue:
		waiting = q.key("morgue:payloads:" + e.ID)
	}
	if err := q.fill(ctx, e.Waiting, waiting, most); err != nil || e.Flight == nil {
		return err
	}
	return q.fill(ctx, &e.Flight.Row, flight, most)
}

func (q *Queue) fill(ctx context.Context, r *Row, pile string, most int) error {
	if r == nil || r.total > most {
		return nil
	}
	for len(r.Payloads) < r.total {
		reply, err := q.db.Run(ctx, piecesScript, []string{pile}, len(r.Payloads), bytesPerScript, payloadsPerScript)
		if err != nil {
			return err
		}
		more := payloads(redisdb.List(reply))
		if len(more) == 0 {
			r.total = len(r.Payloads) // where it lies it may have become smaller
		}
		r.Payloads = append(r.Payloads, more...)
	}
	return nil
}

// Count is how many payloads a row has, read or not.
func (r *Row) Count() int { return max(r.total, len(r.Payloads)) }

// Counts are how many payloads wait, and how many are in flight.
func (e *Entry) Counts() (waiting, flight int) {
	if e.Waiting != nil {
		waiting = e.Waiting.Count()
	}
	if e.Flight != nil {
		flight = e.Flight.Count()
	}
	return waiting, flight
}

// parseEntry reads what shown.lua answers for an id.
func parseEntry(fields []any) (*Entry, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	if len(fields) != 15 {
		return nil, fmt.Errorf("ruby queue: Redis answered %d fields for an id, want 15", len(fields))
	}
	e := &Entry{Number: redisdb.Int(fields[0]), ID: redisdb.Text(fields[2]), Morgue: redisdb.Text(fields[1]) == "morgue"}
	if fields[3] != nil {
		e.Waiting = &Row{}
		e.Waiting.read(fields[3], fields[4], fields[5], fields[6])
	}
	if fields[7] != nil {
		f := &Flight{Shard: int(redisdb.Int(fields[7])), Buried: redisdb.Text(fields[11]) == "1", BuriedError: text(fields[13])}
		f.read(fields[8], fields[9], fields[10], fields[14])
		f.BuriedAt, _ = redisdb.Score(fields[12])
		e.Flight = f
	}
	return e, nil
}

func (r *Row) read(at, retries, err, pile any) {
	r.At, _ = redisdb.Score(at)
	r.Retries = -1
	if n, ok := redisdb.Score(retries); ok {
		r.Retries = n
	}
	r.Error = text(err)
	if parts := redisdb.List(pile); len(parts) == 2 {
		r.total, r.Payloads = int(redisdb.Int(parts[0])), payloads(redisdb.List(parts[1]))
	}
}

func text(reply any) *string {
	if s, ok := reply.(string); ok {
		return &s
	}
	return nil
}

func payloads(list []any) []Payload {
	all := make([]Payload, 0, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		score, _ := redisdb.Score(list[i+1])
		all = append(all, Payload{score, redisdb.Bytes(list[i])})
	}
	return all
}

// Forget deletes entries for good.
func (q *Queue) Forget(ctx context.Context, numbers ...int64) error {
	for len(numbers) > 0 {
		args := []any{q.run, 5 * payloadsPerScript}
		for _, n := range numbers[:min(len(numbers), idsPerScript)] {
			args = append(args, n)
		}
		done, err := q.call(ctx, forgetScript, args...)
		if err != nil {
			return err
		}
		numbers = numbers[redisdb.Int(done):]
	}
	return nil
}

// PutBack makes an entry what it was. What was pushed to the id meanwhile is united with it.
func (q *Queue) PutBack(ctx context.Context, number int64) error {
	return q.repeat(ctx, putBackScript, q.run, number, payloadsPerScript, bytesPerScript)
}
