package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Lists for people. They read, they do not lock: on a moving queue a job may be seen
// twice or missed.

// State is where a job is.
type State string

// The states of a job.
const (
	Ready     State = "ready"
	Scheduled State = "scheduled"
	Retrying  State = "retry"
	InFlight  State = "in_flight"
	Waiting   State = "blocked"
	Dead      State = "morgue"
)

// Listed is a job in a list.
type Listed struct {
	lowkiq.Job
	State  State
	Shard  int
	Flight int64 // of a job in flight
	Parked int   // payloads pushed while the job was in flight
}

// Range limits a list.
type Range struct {
	MinID, MaxID       string    // ids from MinID up to and including MaxID; "" = no limit
	MinTime, MaxTime   time.Time // due times (in the morgue: times of burial); zero = no limit
	MinRetry, MaxRetry int       // retry counts; both 0 = no limit
	Reverse            bool      // largest first
	Limit              int       // most jobs; 0 = 100
}

func (r Range) limit() int {
	if r.Limit <= 0 {
		return 100
	}
	return r.Limit
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

// ByID lists jobs in order of their ids. It reads the whole queue: the cost is that of
// all its jobs, in steps that do not block Redis.
func (q *Queue) ByID(ctx context.Context, r Range) ([]Listed, error) {
	keep := newTop(r.limit(), func(x, y string) int { return direction(r, strings.Compare(x, y)) })
	for _, s := range q.shards {
		err := s.scan(ctx, s.keys.jobs, func(id, record string) {
			if record != "x" && r.hasID(id) {
				keep.add(id)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return q.find(ctx, keep.list())
}

func direction(r Range, n int) int {
	if r.Reverse {
		return -n
	}
	return n
}

func (q *Queue) find(ctx context.Context, ids []string) ([]Listed, error) {
	jobs := make([]Listed, 0, len(ids))
	for _, id := range ids {
		job, ok, err := q.Job(ctx, id)
		if err != nil {
			return nil, err
		}
		if ok {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// ByTime lists waiting jobs in order of their due times: of each shard, the first of
// the ready list in the order in which they will be popped, then scheduled and failed
// ones.
func (q *Queue) ByTime(ctx context.Context, r Range) ([]Listed, error) {
	return q.collect(ctx, r, func(ctx context.Context, s *Shard) ([]Listed, error) {
		jobs, err := s.readyJobs(ctx, r)
		if err != nil {
			return nil, err
		}
		for state, key := range map[State]string{Scheduled: s.keys.due, Retrying: s.keys.retry} {
			part, err := s.timed(ctx, key, state, r)
			if err != nil {
				return nil, err
			}
			jobs = append(jobs, part...)
		}
		return jobs, nil
	}, func(x, y Listed) int { return x.PerformAt.Compare(y.PerformAt) })
}

// ByRetry lists failed jobs that wait for their next attempt, in order of their retry
// counts. It reads all failed jobs of the queue.
func (q *Queue) ByRetry(ctx context.Context, r Range) ([]Listed, error) {
	all := r
	all.Limit = 1 << 30
	jobs, err := q.collect(ctx, all, func(ctx context.Context, s *Shard) ([]Listed, error) {
		return s.timed(ctx, s.keys.retry, Retrying, all)
	}, func(x, y Listed) int {
		return cmp.Or(cmp.Compare(x.RetryCount, y.RetryCount), x.PerformAt.Compare(y.PerformAt))
	})
	return jobs[:min(len(jobs), r.limit())], err
}

// BlockedJobs lists the ids that wait for a person, longest first.
func (q *Queue) BlockedJobs(ctx context.Context, r Range) ([]Listed, error) {
	return q.collect(ctx, r, func(ctx context.Context, s *Shard) ([]Listed, error) {
		return s.timed(ctx, s.keys.blocked, Waiting, r)
	}, func(x, y Listed) int { return x.PerformAt.Compare(y.PerformAt) })
}

// Morgue lists buried jobs in order of their last burial.
func (q *Queue) Morgue(ctx context.Context, r Range) ([]Listed, error) {
	return q.collect(ctx, r, func(ctx context.Context, s *Shard) ([]Listed, error) {
		return s.timed(ctx, s.keys.dead, Dead, r)
	}, func(x, y Listed) int { return x.PerformAt.Compare(y.PerformAt) })
}

// InFlight lists the jobs that handlers have.
func (q *Queue) InFlight(ctx context.Context, r Range) ([]Listed, error) {
	return q.collect(ctx, r, func(ctx context.Context, s *Shard) ([]Listed, error) {
		keep := newTop(r.limit(), func(x, y string) int { return direction(r, strings.Compare(x, y)) })
		ids, err := q.c.rdb.LRange(ctx, s.keys.flight, 0, -1).Result()
		if err != nil {
			return nil, q.c.explain("list flights of "+s.String(), err)
		}
		for _, id := range ids {
			if r.hasID(id) {
				keep.add(id)
			}
		}
		var jobs []Listed
		for _, id := range keep.list() {
			found, err := s.load(ctx, s.keys.jobs, "w", []string{id})
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				continue
			}
			if err := s.locate(ctx, &found[0]); err != nil {
				return nil, err
			}
			if found[0].State == InFlight {
				jobs = append(jobs, found[0])
			}
		}
		return jobs, nil
	}, func(x, y Listed) int { return strings.Compare(x.ID, y.ID) })
}

// collect merges lists of all shards.
func (q *Queue) collect(ctx context.Context, r Range, list func(context.Context, *Shard) ([]Listed, error), order func(x, y Listed) int) ([]Listed, error) {
	var all []Listed
	for _, s := range q.shards {
		part, err := list(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", q.Name, err)
		}
		for _, job := range part {
			if r.hasID(job.ID) && r.hasTime(job.PerformAt) && r.hasRetry(job.RetryCount) {
				all = append(all, job)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y Listed) int {
		return direction(r, cmp.Or(order(x, y), strings.Compare(x.ID, y.ID)))
	})
	return all[:min(len(all), r.limit())], nil
}
