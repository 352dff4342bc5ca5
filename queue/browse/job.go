package browse

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// State is the state of a job.
type State string

// The states of a job.
const (
	StateReady     State = "ready"
	StateScheduled State = "scheduled"
	StateRetry     State = "retry"
	StateFailed    State = "failed" // in queries only: ready or retry, with a retry count of at least 0
	StateHeld      State = "held"   // held by a person, whether it has failed or not
	StateInFlight  State = "in_flight"
	StateBlocked   State = "blocked"
	StateMorgue    State = "morgue"
)

// Count returns how many ids of a shard or a queue are in a state.
func Count(stats protocol.Stats, in State) int {
	return map[State]int{StateReady: stats.Jobs.Ready, StateScheduled: stats.Jobs.Scheduled, StateRetry: stats.Jobs.Retry, StateHeld: stats.Jobs.Held,
		StateFailed: stats.Jobs.Failed, StateInFlight: stats.Jobs.InFlight, StateBlocked: stats.Jobs.Blocked, StateMorgue: stats.MorgueIDs}[in]
}

// Listed is a job in a list.
type Listed struct {
	lowkiq.Job
	State  State
	Shard  int
	Flight int64     // number of the flight, for a job in flight
	Since  time.Time // when a job in flight was popped
	Parked int       // payloads pushed while the job was in flight
	// Progress is the last report of the handler of a job in flight, nil if there is none.
	Progress *Progress

	// Set on a page only, where payloads beyond 4 KiB per job and long errors are cut off.
	Count int  // number of payloads
	Bytes int  // bytes of all payloads
	Cut   bool // Payloads or Error is incomplete; a crowded job has its first payloads in push order

	// Damaged means that the record cannot be read. Error then shows how the record begins, and
	// only id and place of the job are known. An audit finds such records, and a repair moves them
	// aside.
	Damaged bool
}

// Range limits a list.
type Range struct {
	MinID, MaxID       string    // ids from MinID to MaxID, both included; "" means no limit
	MinTime, MaxTime   time.Time // due times, or times of burial in the morgue; zero means no limit
	MinRetry, MaxRetry int       // retry counts; both 0 means no limit
	Reverse            bool      // largest first
	Limit              int       // maximum number of jobs of a call
}

func (r Range) hasID(id string) bool {
	return id >= r.MinID && (r.MaxID == "" || id <= r.MaxID)
}

func (r Range) hasTime(at time.Time) bool {
	return !at.Before(r.MinTime) && (r.MaxTime.IsZero() || !at.After(r.MaxTime))
}

func (r Range) hasRetry(n int) bool {
	return r.MinRetry == 0 && r.MaxRetry == 0 || n >= r.MinRetry && n <= r.MaxRetry
}

// Job returns a job with all its payloads: the payloads in flight, else the waiting payloads, else
// the buried payloads. ok is false if there are none. An invalid id is an ErrQuery. The memory
// account of ctx pays for the job.
func (j *Jobs) Job(ctx context.Context, id string) (job Listed, ok bool, err error) {
	for _, in := range []State{Anywhere, StateMorgue} {
		found, err := j.Find(ctx, in, id)
		if err != nil {
			return job, false, err
		}
		if found[0].State == "" {
			continue
		}
		if err := memory.Take(ctx, copiesOfJob*int64(found[0].Bytes)+bytesOfPayload*int64(found[0].Count)); err != nil {
			return job, false, fmt.Errorf("job %q has %d bytes of payloads: %w", id, found[0].Bytes, err)
		}
		if job, ok, err = j.loadJob(ctx, found[0]); ok || err != nil {
			return job, ok, err
		}
	}
	return job, false, nil
}

// Beginning is like Job, but reads only the payloads with the lowest scores: at most
// BeginningPayloads of a crowded id and at most 1 MiB, where the last payload may be cut off.
// Count, Bytes and Cut describe all payloads.
func (j *Jobs) Beginning(ctx context.Context, id string) (job Listed, ok bool, err error) {
	return j.findFirst(ctx, id, beginningExtent)
}

// Where is like Job without payloads. Count and Bytes describe them.
func (j *Jobs) Where(ctx context.Context, id string) (job Listed, ok bool, err error) {
	return j.findFirst(ctx, id, figuresExtent)
}

// findFirst looks for an id among jobs that wait or are in flight, then in the morgue.
func (j *Jobs) findFirst(ctx context.Context, id string, of extent) (job Listed, ok bool, err error) {
	if err := checkIDs(id); err != nil {
		return job, false, err
	}
	for _, in := range []State{Anywhere, StateMorgue} {
		found, err := j.readListed(ctx, in, of, []candidate{{id: id, shard: j.q.Of(id).Index}})
		if err != nil {
			return job, false, err
		}
		if found[0].State != "" {
			return found[0], true, nil
		}
	}
	return job, false, nil
}

// BeginningPayloads is the maximum number of payloads of a crowded id that Beginning reads.
const BeginningPayloads = 50

// copiesOfJob is how many copies of a job's bytes exist until it is answered: the reply of Redis
// and the answer, which may be base64.
const copiesOfJob = 3

// setProgress sets the progress of a job in flight, unless it was reported in an earlier flight.
// See lua/note.lua.
func (job *Listed) setProgress(text string) {
	if p, ok := progressOf(text); ok && !p.At.Before(job.Since) {
		job.Progress = &p
	}
}

// Kept returns the state that handlers keep for an id as it is stored, nil if there is none.
func (j *Jobs) Kept(ctx context.Context, id string) ([]byte, error) {
	if err := memory.Take(ctx, copiesOfJob*lowkiq.MaxStateBytes); err != nil {
		return nil, err
	}
	s := j.q.Of(id)
	reply, err := s.DB().Do(ctx, "read a state of "+s.String(), "HGET", s.Keys().States, id)
	return redisdb.Bytes(reply), err
}

func directed(r Range, n int) int {
	if r.Reverse {
		return -n
	}
	return n
}

// loadJob reads the record of a job that was found, with its spilled payloads. ok is false if the
// job is gone.
func (j *Jobs) loadJob(ctx context.Context, found Listed) (_ Listed, ok bool, err error) {
	s := j.shards[found.Shard]
	hash, space := s.Keys().Jobs, "w"
	if found.State == StateMorgue {
		hash, space = s.Keys().Morgue, "m"
	}
	reply, err := s.DB().Do(ctx, "read a job of "+s.String(), "HGET", hash, found.ID)
	record := redisdb.Text(reply)
	if err != nil || reply == nil || record == "x" {
		return found, false, err
	}
	job, _, err := packed.Decode(found.ID, record, nil)
	if err != nil {
		return Listed{Job: lowkiq.Job{ID: found.ID}, Shard: found.Shard, State: found.State}.asDamaged(record), true, nil
	}
	if record[0] == 's' {
		if job.Payloads, err = j.readSpilled(ctx, s, space, found); err != nil {
			return found, false, err
		}
	}
	found.Job, found.Count, found.Bytes, found.Cut, found.Damaged = job, 0, 0, false, false
	return found, true, nil
}

// readSpilled reads the payloads of a crowded id; see lua/lib/spill.lua. There may be more payloads
// now than when the job was found.
func (j *Jobs) readSpilled(ctx context.Context, s *protocol.Shard, space string, found Listed) ([]lowkiq.Payload, error) {
	prefix := packed.SpillPrefix(space, found.ID)
	from, to, room := "["+prefix, "("+strings.TrimSuffix(prefix, ":")+";", found.Bytes
	var payloads []lowkiq.Payload
	for {
		reply, err := s.DB().Do(ctx, "read payloads of "+s.String(), "ZRANGEBYLEX", s.Keys().Spill, from, to, "LIMIT", 0, 1000)
		if err != nil {
			return nil, err
		}
		members := redisdb.Texts(reply)
		if len(members) == 0 {
			return payloads, nil
		}
		for _, member := range members {
			if room -= len(member); room < 0 {
				if err := memory.Take(ctx, -copiesOfJob*int64(room)); err != nil {
					return nil, err
				}
				room = 0
			}
			e, ok := packed.ParseSpill(member, true)
			if !ok {
				continue // it is damaged; an audit reports it
			}
			p := lowkiq.Payload{Score: packed.KeyScore(e.Key)}
			if _, err := packed.Open(e.Payload, &p); err != nil {
				p.Data = packed.Bytes(e.Payload) // as it is stored
			}
			payloads = append(payloads, p)
		}
		from = "(" + members[len(members)-1]
	}
}

// Find finds ids in a few round trips and returns them in the order of ids. If in is StateMorgue it
// looks in the morgue, and if in is Anywhere among jobs that wait or are in flight. Any other state and
// an invalid id are an ErrQuery. An id that was not found has no State. The results have number and
// size of payloads without their data.
func (j *Jobs) Find(ctx context.Context, in State, ids ...string) ([]Listed, error) {
	if in != Anywhere && in != StateMorgue {
		return nil, refuseQuery("jobs by id in state %q: the state must be morgue, or empty for all others", in)
	}
	if err := checkIDs(ids...); err != nil {
		return nil, err
	}
	found := make([]candidate, len(ids))
	for i, id := range ids {
		found[i] = candidate{id: id, shard: j.q.Of(id).Index}
	}
	return j.readListed(ctx, in, figuresExtent, found)
}
