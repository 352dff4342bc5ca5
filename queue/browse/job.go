package browse

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// State is where a job is.
type State string

// The states of a job.
const (
	StateReady     State = "ready"
	StateScheduled State = "scheduled"
	StateRetry     State = "retry"
	StateFailed    State = "failed" // of queries only: ready or retry, with a retry count of at least 0
	StateHeld      State = "held"   // people hold it, whether it has failed or not
	StateInFlight  State = "in_flight"
	StateBlocked   State = "blocked"
	StateMorgue    State = "morgue"
)

// Count is how many ids of a shard or a queue are in a state.
func Count(stats queue.Stats, in State) int {
	return map[State]int{StateReady: stats.Jobs.Ready, StateScheduled: stats.Jobs.Scheduled, StateRetry: stats.Jobs.Retry, StateHeld: stats.Jobs.Held,
		StateFailed: stats.Jobs.Failed, StateInFlight: stats.Jobs.InFlight, StateBlocked: stats.Jobs.Blocked, StateMorgue: stats.MorgueIDs}[in]
}

// Listed is a job in a list.
type Listed struct {
	lowkiq.Job
	State  State
	Shard  int
	Flight int64     // of a job in flight
	Since  time.Time // of a job in flight: when it was popped
	Parked int       // payloads pushed while the job was in flight
	// Progress is what its handler noted last of a job in flight; nil: nothing.
	Progress *Progress

	// On a page only, where payloads beyond 4 KiB per job, and what is long of an error, are cut
	// off:
	Count int  // payloads there are
	Bytes int  // bytes they have
	Cut   bool // Payloads or Error is not all of it; of a crowded job the first in push order are there

	// Damaged: its record cannot be read, so Error says how it begins, and of the job nothing but
	// id and place is known. An audit finds it, and a repair moves it aside.
	Damaged bool
}

// Range limits a list.
type Range struct {
	MinID, MaxID       string    // ids from MinID up to and including MaxID; "" = no limit
	MinTime, MaxTime   time.Time // due times (in the morgue: times of burial); zero = no limit
	MinRetry, MaxRetry int       // retry counts; both 0 = no limit
	Reverse            bool      // largest first
	Limit              int       // most jobs of one call
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

// Job finds one id: what is in flight, else what waits, else what the morgue has of
// it. ok is false if there is nothing. ErrQuery: it is no id.
func (j *Jobs) Job(ctx context.Context, id string) (job Listed, ok bool, err error) {
	if err := checkIDs(id); err != nil {
		return job, false, err
	}
	s := j.q.Of(id)
	jobs, err := load(ctx, s, s.Keys().Jobs, "w", []string{id})
	if err != nil {
		return job, false, err
	}
	if len(jobs) == 1 {
		err := locate(ctx, s, &jobs[0])
		return jobs[0], true, err
	}
	dead, err := load(ctx, s, s.Keys().Morgue, "m", []string{id})
	if err != nil || len(dead) == 0 {
		return job, false, err
	}
	dead[0].State = StateMorgue
	return dead[0], true, nil
}

// locate finds the state of a job that has a record.
func locate(ctx context.Context, s *queue.Shard, job *Listed) error {
	r, err := s.DB().Pipeline(ctx, "find a job of "+s.String(),
		redisdb.Cmd{"LPOS", s.Keys().Flight, job.ID},
		redisdb.Cmd{"HGETALL", s.Keys().Claim},
		redisdb.Cmd{"HGET", s.Keys().Parked, job.ID},
		redisdb.Cmd{"ZSCORE", s.Keys().Due, job.ID},
		redisdb.Cmd{"ZSCORE", s.Keys().Retry, job.ID},
		redisdb.Cmd{"ZSCORE", s.Keys().Blocked, job.ID},
		redisdb.Cmd{"HGET", s.Keys().Progress, job.ID})
	if err != nil {
		return err
	}
	place, claim, parked, due, retry, blocked := r[0], redisdb.Map(r[1]), r[2], r[3], r[4], r[5]
	switch {
	case queue.IsHeld(due) || queue.IsHeld(retry):
		job.State = StateHeld
	case place != nil:
		job.State = StateInFlight
		job.Flight = flightAt(claim, redisdb.Int(place))
		job.Since = flightSince(claim, job.Flight)
		job.Parked = countPayloads(redisdb.Text(parked))
		job.progress(redisdb.Text(r[6]))
	case due != nil:
		job.State = StateScheduled
	case retry != nil:
		job.State = StateRetry
	case blocked != nil:
		job.State = StateBlocked
	default:
		job.State = StateReady
	}
	return nil
}

// progress takes in what was noted of a job in flight, unless that was in an earlier flight: see lua/note.lua.
func (job *Listed) progress(text string) {
	if p, ok := progressOf(text); ok && !p.At.Before(job.Since) {
		job.Progress = &p
	}
}

// Kept is the state that handlers keep of an id, as it is stored; nil if there is none.
func (j *Jobs) Kept(ctx context.Context, id string) ([]byte, error) {
	s := j.q.Of(id)
	reply, err := s.DB().Do(ctx, "read a state of "+s.String(), "HGET", s.Keys().States, id)
	return redisdb.Bytes(reply), err
}

func countPayloads(record string) int {
	if record == "" || record == "x" {
		return 0
	}
	if record[0] == 'a' || record[0] == 'e' {
		return 1
	}
	var job lowkiq.Job
	_, n, _ := packed.DecodeHead(record, &job)
	return n
}

func direction(r Range, n int) int {
	if r.Reverse {
		return -n
	}
	return n
}

// load reads the records of ids from a hash, their spilled payloads included. Ids
// without one are left out.
func load(ctx context.Context, s *queue.Shard, hash, space string, ids []string) ([]Listed, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	reply, err := s.DB().Do(ctx, "read jobs of "+s.String(), withIDs([]any{"HMGET", hash}, ids)...)
	if err != nil {
		return nil, err
	}
	records := redisdb.List(reply)
	jobs := make([]Listed, 0, len(ids))
	for i, id := range ids {
		record, ok := records[i].(string)
		if !ok || record == "x" {
			continue
		}
		job, _, err := packed.Decode(id, record, nil)
		if err != nil {
			jobs = append(jobs, Listed{Shard: s.Index, Job: lowkiq.Job{ID: id}}.damaged(record))
			continue
		}
		if record[0] == 's' {
			if job.Payloads, err = spilled(ctx, s, space, id); err != nil {
				return nil, err
			}
		}
		jobs = append(jobs, Listed{Job: job, Shard: s.Index})
	}
	return jobs, nil
}

// spilled reads the payloads of a crowded id; see lua/lib/spill.lua.
func spilled(ctx context.Context, s *queue.Shard, space, id string) ([]lowkiq.Payload, error) {
	prefix := space + strconv.Itoa(len(id)) + ":" + id
	from := "[" + prefix + ":"
	var payloads []lowkiq.Payload
	for {
		reply, err := s.DB().Do(ctx, "read payloads of "+s.String(), "ZRANGEBYLEX", s.Keys().Spill, from, "("+prefix+";", "LIMIT", 0, 1000)
		if err != nil {
			return nil, err
		}
		members := redisdb.Texts(reply)
		if len(members) == 0 {
			return payloads, nil
		}
		for _, member := range members {
			e, ok := packed.ParseSpill(member, true)
			if !ok {
				continue // damaged: check names it
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

// flightAt finds the flight to which a place in the flight list belongs; see
// lua/lib/take_out.lua. It is 0 if the claim's fields know none.
func flightAt(claim map[string]string, place int64) int64 {
	sizes := map[int64]int64{}
	for field, value := range claim {
		if number, ok := strings.CutPrefix(field, "#"); ok {
			n, _ := strconv.ParseInt(number, 10, 64)
			sizes[n], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(sizes)) {
		if place -= sizes[n]; place < 0 {
			return n
		}
	}
	return 0
}

// flightSince is when a flight was popped, zero if the claim does not say.
func flightSince(claim map[string]string, flight int64) time.Time {
	us, err := strconv.ParseInt(claim["@"+strconv.FormatInt(flight, 10)], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// Find finds many ids in few round trips, in the order asked for: in the morgue if in is
// StateMorgue, and among what waits or is in flight if it is "". One that is not there has no
// State. Of payloads it tells number and size, no data. ErrQuery: in is another state, or one is no id.
func (j *Jobs) Find(ctx context.Context, in State, ids ...string) ([]Listed, error) {
	if in != "" && in != StateMorgue {
		return nil, refuse("jobs by id in state %q: want morgue, or none for all others", in)
	}
	if err := checkIDs(ids...); err != nil {
		return nil, err
	}
	found := make([]candidate, len(ids))
	for i, id := range ids {
		found[i] = candidate{id: id, shard: j.q.Of(id).Index}
	}
	return j.show(ctx, in, 0, found)
}
