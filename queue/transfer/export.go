package transfer

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Kept is what a queue keeps for an id: its waiting job, or its buried payloads. Its entry has no
// number. The payloads are as stored, in the order in which a handler gets them.
type Kept struct {
	Entry
	record string
}

// Errors of jobs that an export cannot take out; see [Kept].
var (
	ErrCalled = errors.New("a caller waits for the end of a payload of it")
	ErrHeld   = errors.New("it is blocked or held")
	ErrTaken  = errors.New("another export takes jobs out of the queue")
)

// Outcome is the result of taking a job out.
type Outcome byte

// The outcomes.
const (
	Out      Outcome = '0'
	Part     Outcome = '+' // some of its payloads are out; read the job again
	Changed  Outcome = 'c' // it has changed since it was read
	InFlight Outcome = 'f'
	Held     Outcome = 'b' // blocked or held
	Gone     Outcome = '-'
)

// Export takes jobs out of a queue for another system. That system records each job under a number
// before the job is taken out here. So a program that moves jobs may be killed at any moment.
// [Export.Number] tells whether an id that was recorded was taken out.
type Export struct {
	q   *protocol.Queue
	run string
}

const (
	exportField = "export"
	scanCount   = 100 // records of a read
	exportIDs   = 250 // ids of a script call
	exportBytes = 1 << 20
)

// NewExport allows this run to take jobs out, and forbids it to every earlier run.
func NewExport(ctx context.Context, q *protocol.Queue, run string) (*Export, error) {
	for _, s := range q.All() {
		if _, err := s.DB().Do(ctx, "begin to take jobs out of "+s.String(), "HSET", s.Keys().From, exportField, run); err != nil {
			return nil, err
		}
	}
	return &Export{q, run}, nil
}

// Flights counts the ids in flight.
func Flights(ctx context.Context, q *protocol.Queue) (n int64, err error) {
	for _, s := range q.All() {
		reply, err := s.DB().Do(ctx, "count ids in flight of "+s.String(), "LLEN", s.Keys().Flight)
		if err != nil {
			return 0, err
		}
		n += redisdb.Int(reply)
	}
	return n, nil
}

// Each calls fn with all waiting jobs, or all buried jobs, in batches. A job that exists all the
// time is seen at least once.
func Each(ctx context.Context, q *protocol.Queue, morgue bool, fn func([]Kept) error) error {
	for _, s := range q.All() {
		hash := s.Keys().Jobs
		if morgue {
			hash = s.Keys().Morgue
		}
		for cursor := "0"; ; {
			reply, err := s.DB().Do(ctx, "read jobs of "+s.String(), "HSCAN", hash, cursor, "COUNT", scanCount)
			if err != nil {
				return err
			}
			found, next := redisdb.Scanned(reply)
			var some []Kept
			for i := 0; i+1 < len(found); i += 2 {
				if found[i] == "" || found[i+1] == "x" { // no job, see lua/claim.lua, or a deleted job, see lua/lib/record.lua
					continue
				}
				k, err := readKept(ctx, s, found[i], found[i+1], morgue)
				if err != nil {
					return err
				}
				some = append(some, k)
			}
			if len(some) > 0 {
				if err := fn(some); err != nil {
					return err
				}
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
	}
	return nil
}

// readKept decodes a record, and reads the payloads of a crowded id.
func readKept(ctx context.Context, s *protocol.Shard, id, record string, morgue bool) (Kept, error) {
	k := Kept{Entry: Entry{ID: id, Morgue: morgue}, record: record}
	job, _, err := packed.Decode(id, record, nil)
	if err != nil {
		k.Err = err
		return k, nil
	}
	k.RetryCount, k.Error = job.RetryCount, job.Error
	at := job.PerformAt.UnixMicro()
	if k.Due = at; morgue {
		k.Due, k.Buried = 0, at
	}
	if job.Callers > 0 {
		k.Err = ErrCalled
	}
	for _, p := range job.Payloads {
		k.Payloads = append(k.Payloads, Payload{p.Score, p.Data, p.Header})
	}
	if record[0] == 's' {
		err = k.readSpilled(ctx, s)
	}
	return k, err
}

// readSpilled reads the payloads of a crowded id; see lua/lib/spill.lua.
func (k *Kept) readSpilled(ctx context.Context, s *protocol.Shard) error {
	prefix := map[bool]string{false: "w", true: "m"}[k.Morgue] + strconv.Itoa(len(k.ID)) + ":" + k.ID
	for from := "[" + prefix + ":"; ; {
		reply, err := s.DB().Do(ctx, "read payloads of "+s.String(), "ZRANGEBYLEX", s.Keys().Spill, from, "("+prefix+";", "LIMIT", 0, 100)
		members := redisdb.Texts(reply)
		if err != nil || len(members) == 0 {
			return err
		}
		for _, member := range members {
			spilled, ok := packed.ParseSpill(member, true)
			var p lowkiq.Payload
			if !ok {
				k.Err = packed.ErrDamaged
				continue
			}
			switch called, err := packed.Open(spilled.Payload, &p); {
			case err != nil:
				k.Err = err
			case called:
				k.Err = ErrCalled
			}
			k.Payloads = append(k.Payloads, Payload{packed.KeyScore(spilled.Key), p.Data, p.Header})
		}
		from = "(" + members[len(members)-1]
	}
}

// Take takes jobs out that the other system has recorded under the numbers of their entries. It
// returns an outcome for each job that it reached.
func (x *Export) Take(ctx context.Context, jobs []Kept) ([]Outcome, error) {
	outcomes := make([]Outcome, len(jobs))
	places := map[*protocol.Shard][]int{}
	for i := range jobs {
		s := x.q.Of(jobs[i].ID)
		places[s] = append(places[s], i)
	}
	for s, left := range places {
		for len(left) > 0 {
			args, n, size := []any{x.run}, 0, 0
			for ; n < min(len(left), exportIDs) && size < exportBytes; n++ {
				k := &jobs[left[n]]
				args = append(args, k.ID, k.Number, spaceOf(k.Morgue), k.record)
				size += len(k.record)
			}
			reply, err := s.Run(ctx, s.DB().Scripts.Export, args...)
			if redisdb.Says(err, "OVER") {
				err = ErrTaken
			}
			if err != nil {
				return nil, err
			}
			codes := redisdb.Text(reply)
			if codes == "" || len(codes) > n {
				return nil, fmt.Errorf("export answered %.50q for %d jobs", codes, n)
			}
			for k := range codes {
				outcomes[left[k]] = Outcome(codes[k])
			}
			left = left[len(codes):]
		}
	}
	return outcomes, nil
}

func spaceOf(morgue bool) string {
	if morgue {
		return "m"
	}
	return "w"
}

// Number returns the number under which an id was last taken out. It is 0 if it never was, or if
// that is settled.
func (x *Export) Number(ctx context.Context, id string, morgue bool) (int64, error) {
	s := x.q.Of(id)
	reply, err := s.DB().Do(ctx, "see what was taken out of "+s.String(), "HGET", s.Keys().From, exportField+"\x00"+spaceOf(morgue)+id)
	return redisdb.Int(reply), err
}

// Has reports whether the queue has payloads of an id.
func (x *Export) Has(ctx context.Context, id string, morgue bool) (bool, error) {
	s := x.q.Of(id)
	hash := s.Keys().Jobs
	if morgue {
		hash = s.Keys().Morgue
	}
	reply, err := s.DB().Do(ctx, "look for a job of "+s.String(), "HGET", hash, id)
	return reply != nil && redisdb.Text(reply) != "x", err
}

// Settle forgets that these ids were taken out, because the other system has them.
func (x *Export) Settle(ctx context.Context, jobs ...Kept) error {
	fields := map[*protocol.Shard]redisdb.Cmd{}
	for i := range jobs {
		s := x.q.Of(jobs[i].ID)
		if fields[s] == nil {
			fields[s] = redisdb.Cmd{"HDEL", s.Keys().From}
		}
		fields[s] = append(fields[s], exportField+"\x00"+spaceOf(jobs[i].Morgue)+jobs[i].ID)
	}
	for s, cmd := range fields {
		if _, err := s.DB().Do(ctx, "settle what was taken out of "+s.String(), cmd...); err != nil {
			return err
		}
	}
	return nil
}

// Seal ends a source. None of its entries is taken in any more, however late a frozen process sends
// it. Entries that are in are answered as before ([Result].Before), and refused entries as
// ErrBehind. An entry of a sealed source that was never sent is answered as if it were in.
func Seal(ctx context.Context, q *protocol.Queue, source string) error {
	for _, s := range q.All() {
		for cursor := "0"; ; {
			reply, err := s.Run(ctx, s.DB().Scripts.Seal, fieldOf(source), cursor)
			if err != nil {
				return err
			}
			if cursor = redisdb.Text(reply); cursor == "0" {
				break
			}
		}
	}
	return nil
}
