package queue

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// State is where a job is.
type State string

// The states of a job.
const (
	Ready     State = "ready"
	Scheduled State = "scheduled"
	Retrying  State = "retry"
	Failed    State = "failed" // of queries only: ready or retry, with a retry count of at least 0
	InFlight  State = "in_flight"
	Waiting   State = "blocked"
	Dead      State = "morgue"
)

// Listed is a job in a list.
type Listed struct {
	lowkiq.Job
	State  State
	Shard  int
	Flight int64     // of a job in flight
	Since  time.Time // of a job in flight: when it was popped
	Parked int       // payloads pushed while the job was in flight

	// On a page only, where payloads beyond 4 KiB per job, and what is long of an error, are cut off:
	Count int  // payloads there are
	Bytes int  // bytes they have
	Cut   bool // Payloads or Error is not all of it; of a crowded job the first in push order are there

	// Damaged: its record cannot be read, so Error says how it begins, and of the job nothing but id and place is
	// known. An audit finds it, and a repair moves it aside.
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
// it. ok is false if there is nothing.
func (q *Queue) Job(ctx context.Context, id string) (job Listed, ok bool, err error) {
	s := q.Of(id)
	jobs, err := s.load(ctx, s.keys.jobs, "w", []string{id})
	if err != nil {
		return job, false, err
	}
	if len(jobs) == 1 {
		err := s.locate(ctx, &jobs[0])
		return jobs[0], true, err
	}
	dead, err := s.load(ctx, s.keys.morgue, "m", []string{id})
	if err != nil || len(dead) == 0 {
		return job, false, err
	}
	dead[0].State = Dead
	return dead[0], true, nil
}

// locate finds the state of a job that has a record.
func (s *Shard) locate(ctx context.Context, job *Listed) error {
	pipe := s.c.rdb.Pipeline()
	place := pipe.LPos(ctx, s.keys.flight, job.ID, redis.LPosArgs{})
	claim := pipe.HGetAll(ctx, s.keys.claim)
	parked := pipe.HGet(ctx, s.keys.parked, job.ID)
	due := pipe.ZScore(ctx, s.keys.due, job.ID)
	retry := pipe.ZScore(ctx, s.keys.retry, job.ID)
	blocked := pipe.ZScore(ctx, s.keys.blocked, job.ID)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return s.c.explain("find a job of "+s.String(), err)
	}
	switch {
	case place.Err() == nil:
		job.State = InFlight
		job.Flight = flightAt(claim.Val(), place.Val())
		job.Since = flightSince(claim.Val(), job.Flight)
		job.Parked = countPayloads(parked.Val())
	case due.Err() == nil:
		job.State = Scheduled
	case retry.Err() == nil:
		job.State = Retrying
	case blocked.Err() == nil:
		job.State = Waiting
	default:
		job.State = Ready
	}
	return nil
}

func countPayloads(record string) int {
	if record == "" || record == "x" {
		return 0
	}
	if record[0] == 'a' || record[0] == 'e' {
		return 1
	}
	var job lowkiq.Job
	_, n, _ := decodeHead(record, &job)
	return n
}

func direction(r Range, n int) int {
	if r.Reverse {
		return -n
	}
	return n
}
