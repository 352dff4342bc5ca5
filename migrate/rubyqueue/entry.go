package rubyqueue

import (
	"context"
	"fmt"
	"strconv"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Entry is all that the old Redis holds of an id. Its Number is 0 while the id lies in its place, and positive once it was
// taken.
type Entry struct {
	Number  int64
	ID      string
	Morgue  bool
	Waiting *Row // nil for an id that is only in flight; in the morgue, the buried payloads
	Flight  *Flight
}

// Row is an id's due time, retry count, error and payloads. In the morgue, At is the time of the last burial, and there is
// no retry count.
type Row struct {
	At       float64
	Retries  float64
	Error    *string
	Payloads []Payload // in the order of Redis: score, then bytes

	total int // the number of payloads in Redis; more than len(Payloads) until all are read
}

// Flight is a row that a worker took. The morgue is asked only for the oldest payload of the flight.
type Flight struct {
	Row
	Shard       int
	Buried      bool // the oldest payload lies in the morgue
	BuriedAt    float64
	BuriedError *string
}

// Payload is stored data with its score.
type Payload struct {
	Score float64
	Data  []byte
}

// Take moves ids whole to a place where no process of Ruby's looks. It takes at least the first id, and may take fewer than
// asked for. The result is nil for an id that has no data left. An entry has all its payloads, unless it has more than most.
func (q *Queue) Take(ctx context.Context, ids []string, flights Flights, most int) ([]*Entry, error) {
	args := []any{q.run, "job", bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, ShardOf(id, q.shards), flights.shardList(id))
	}
	return q.runForEntries(ctx, takeScript, most, args...)
}

// TakeBuried takes ids of the morgue as Take takes waiting ids.
func (q *Queue) TakeBuried(ctx context.Context, ids []string, most int) ([]*Entry, error) {
	args := []any{q.run, "morgue", bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, 0, "")
	}
	return q.runForEntries(ctx, takeScript, most, args...)
}

// Peek reads the entries that Take would take, and takes none. Their numbers are 0.
func (q *Queue) Peek(ctx context.Context, ids []string, flights Flights, most int) ([]*Entry, error) {
	return q.peekEntries(ctx, "job", ids, flights, most)
}

// PeekBuried reads the entries that TakeBuried would take.
func (q *Queue) PeekBuried(ctx context.Context, ids []string, most int) ([]*Entry, error) {
	return q.peekEntries(ctx, "morgue", ids, nil, most)
}

func (q *Queue) peekEntries(ctx context.Context, kind string, ids []string, flights Flights, most int) ([]*Entry, error) {
	args := []any{kind, bytesPerScript}
	for _, id := range ids[:min(len(ids), idsPerScript)] {
		args = append(args, id, flights.shardList(id))
	}
	return q.runForEntries(ctx, lookScript, most, args...)
}

// ReadTaken returns the next entries that were taken and are not forgotten, in order of their numbers.
func (q *Queue) ReadTaken(ctx context.Context, after int64, most int) ([]*Entry, error) {
	return q.runForEntries(ctx, takenScript, most, bytesPerScript, idsPerScript, after)
}

// runForEntries runs a script that answers with entries, and reads the payloads that did not fit into its answer.
func (q *Queue) runForEntries(ctx context.Context, s *redisdb.Script, most int, args ...any) ([]*Entry, error) {
	reply, err := q.runScript(ctx, s, args...)
	if err != nil {
		return nil, err
	}
	list := redisdb.List(reply)
	entries := make([]*Entry, len(list))
	for i, one := range list {
		if entries[i], err = parseEntry(redisdb.List(one)); err != nil {
			return nil, err
		}
		if err := q.completeEntry(ctx, entries[i], most); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// completeEntry reads the missing payloads of an entry, unless it has more than most.
func (q *Queue) completeEntry(ctx context.Context, e *Entry, most int) error {
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
	if err := q.fillRow(ctx, e.Waiting, waiting, most); err != nil || e.Flight == nil {
		return err
	}
	return q.fillRow(ctx, &e.Flight.Row, flight, most)
}

// fillRow reads the payloads that a row lacks, in bounded pieces. A row with more than most payloads stays incomplete.
func (q *Queue) fillRow(ctx context.Context, r *Row, pile string, most int) error {
	if r == nil || r.total > most {
		return nil
	}
	for len(r.Payloads) < r.total {
		reply, err := q.db.Run(ctx, piecesScript, []string{pile}, len(r.Payloads), bytesPerScript, payloadsPerScript)
		if err != nil {
			return err
		}
		more := parsePayloads(redisdb.List(reply))
		if len(more) == 0 {
			r.total = len(r.Payloads) // payloads may have been removed since
		}
		r.Payloads = append(r.Payloads, more...)
	}
	return nil
}

// Count returns how many payloads a row has, whether they were read or not.
func (r *Row) Count() int { return max(r.total, len(r.Payloads)) }

// Counts returns how many payloads wait, and how many are in flight.
func (e *Entry) Counts() (waiting, flight int) {
	if e.Waiting != nil {
		waiting = e.Waiting.Count()
	}
	if e.Flight != nil {
		flight = e.Flight.Count()
	}
	return waiting, flight
}

// parseEntry reads the answer of shown.lua for an id.
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
		e.Waiting.parseReply(fields[3], fields[4], fields[5], fields[6])
	}
	if fields[7] != nil {
		f := &Flight{Shard: int(redisdb.Int(fields[7])), Buried: redisdb.Text(fields[11]) == "1", BuriedError: textOf(fields[13])}
		f.parseReply(fields[8], fields[9], fields[10], fields[14])
		f.BuriedAt, _ = redisdb.Score(fields[12])
		e.Flight = f
	}
	return e, nil
}

// parseReply reads a row's fields from a reply. Retries is -1 if Ruby has no retry count.
func (r *Row) parseReply(at, retries, err, pile any) {
	r.At, _ = redisdb.Score(at)
	r.Retries = -1
	if n, ok := redisdb.Score(retries); ok {
		r.Retries = n
	}
	r.Error = textOf(err)
	if parts := redisdb.List(pile); len(parts) == 2 {
		r.total, r.Payloads = int(redisdb.Int(parts[0])), parsePayloads(redisdb.List(parts[1]))
	}
}

func textOf(reply any) *string {
	if s, ok := reply.(string); ok {
		return &s
	}
	return nil
}

// parsePayloads reads a list of payloads where each score follows its data.
func parsePayloads(list []any) []Payload {
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
		done, err := q.runScript(ctx, forgetScript, args...)
		if err != nil {
			return err
		}
		numbers = numbers[redisdb.Int(done):]
	}
	return nil
}

// PutBack restores an entry as it was. Payloads that were pushed to the id meanwhile are united with it.
func (q *Queue) PutBack(ctx context.Context, number int64) error {
	return q.runUntilDone(ctx, putBackScript, q.run, number, payloadsPerScript, bytesPerScript)
}
