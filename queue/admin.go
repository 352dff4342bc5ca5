package queue

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq"
)

// What people do to waiting jobs and to the morgue. None of it touches a flight: of an
// id in flight, what was pushed meanwhile is what waits. Every call returns the number
// of ids it changed.

// adminChunk is how many ids one script works on.
const adminChunk = 500

// Place is a set of waiting jobs that bulk operations work on.
type Place string

// The places.
const (
	Anywhere Place = ""        // wherever the id waits
	Retries  Place = "retry"   // failed, waiting for the next attempt
	Blocked  Place = "blocked" // out of retries, waiting for a person
)

// byShard calls fn with the ids of each shard, at most adminChunk at once.
func (q *Queue) byShard(ids []string, fn func(*Shard, []string) (int, error)) (total int, err error) {
	shards := map[int][]string{}
	for _, id := range ids {
		i := lowkiq.ShardOf(id, q.Shards)
		shards[i] = append(shards[i], id)
	}
	for i, part := range shards {
		n, err := inChunks(part, adminChunk, func(few []string) (int, error) { return fn(q.shards[i], few) })
		total += n
		if err != nil {
			return total, fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return total, nil
}

func withIDs(args []any, ids []string) []any {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// Delete forgets what waits for ids, if they are in that place.
func (q *Queue) Delete(ctx context.Context, place Place, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.count(ctx, q.c.scripts.delete, s.keys.forWaiting(), withIDs([]any{string(place)}, ids))
	})
}

// Kill sends what waits for ids to the morgue, if they are in that place.
func (q *Queue) Kill(ctx context.Context, place Place, ids ...string) (int, error) {
	return q.kill(ctx, place, "all", ids)
}

// KillOldest sends the payload with the smallest score of each id to the morgue; the
// rest is fresh and due now.
func (q *Queue) KillOldest(ctx context.Context, place Place, ids ...string) (int, error) {
	return q.kill(ctx, place, "oldest", ids)
}

func (q *Queue) kill(ctx context.Context, place Place, what string, ids []string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.count(ctx, q.c.scripts.kill, s.keys.forMorgue(), withIDs([]any{string(place), what, s.keys.wake}, ids))
	})
}

// RunNow makes ids due now. Blocked ids stay blocked.
func (q *Queue) RunNow(ctx context.Context, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.count(ctx, q.c.scripts.runNow, s.keys.forWaiting(), withIDs([]any{s.keys.wake}, ids))
	})
}

// Requeue brings payloads back from the morgue: fresh, due now, merged with what waits.
func (q *Queue) Requeue(ctx context.Context, ids ...string) (int, error) {
	return q.requeue(ctx, "morgue", ids)
}

// Unblock lets blocked ids go on: fresh, due now.
func (q *Queue) Unblock(ctx context.Context, ids ...string) (int, error) {
	return q.requeue(ctx, "blocked", ids)
}

func (q *Queue) requeue(ctx context.Context, from string, ids []string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.count(ctx, q.c.scripts.requeue, s.keys.forMorgue(), withIDs([]any{from, s.keys.wake}, ids))
	})
}

// DeleteDead forgets what the morgue holds of ids.
func (q *Queue) DeleteDead(ctx context.Context, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.count(ctx, q.c.scripts.forget, s.keys.forForget(), withIDs(nil, ids))
	})
}

// RunAllNow makes every scheduled and every failed job due now.
func (q *Queue) RunAllNow(ctx context.Context) (int, error) {
	run := func(ids []string) (int, error) { return q.RunNow(ctx, ids...) }
	return q.sweep(func(s *Shard) (int, error) {
		n, err := s.drainSet(ctx, s.keys.due, run)
		if err != nil {
			return n, err
		}
		m, err := s.drainSet(ctx, s.keys.retry, run)
		return n + m, err
	})
}

// KillAllFailed sends every job that failed and waits for its next attempt to the morgue.
func (q *Queue) KillAllFailed(ctx context.Context) (int, error) {
	return q.sweep(func(s *Shard) (int, error) {
		return s.drainSet(ctx, s.keys.retry, func(ids []string) (int, error) { return q.Kill(ctx, Retries, ids...) })
	})
}

// DeleteAllFailed forgets every job that failed and waits for its next attempt.
func (q *Queue) DeleteAllFailed(ctx context.Context) (int, error) {
	return q.sweep(func(s *Shard) (int, error) {
		return s.drainSet(ctx, s.keys.retry, func(ids []string) (int, error) { return q.Delete(ctx, Retries, ids...) })
	})
}

// RequeueAllDead brings the whole morgue back.
func (q *Queue) RequeueAllDead(ctx context.Context) (int, error) {
	return q.sweep(func(s *Shard) (int, error) {
		return s.drainSet(ctx, s.keys.dead, func(ids []string) (int, error) { return q.Requeue(ctx, ids...) })
	})
}

// DeleteAllDead empties the morgue.
func (q *Queue) DeleteAllDead(ctx context.Context) (int, error) {
	return q.sweep(func(s *Shard) (int, error) {
		return s.drainSet(ctx, s.keys.dead, func(ids []string) (int, error) { return q.DeleteDead(ctx, ids...) })
	})
}

func (q *Queue) sweep(fn func(*Shard) (int, error)) (total int, err error) {
	for _, s := range q.shards {
		n, err := fn(s)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// drainSet feeds the members of a sorted set to fn, which takes them out of it. It
// stops after as many as there were at first, as others may arrive meanwhile.
func (s *Shard) drainSet(ctx context.Context, key string, fn func([]string) (int, error)) (total int, err error) {
	size, err := s.c.rdb.ZCard(ctx, key).Result()
	if err != nil {
		return 0, s.c.explain("count "+s.String(), err)
	}
	for left := int(size); left > 0; {
		ids, err := s.c.rdb.ZRange(ctx, key, 0, int64(min(left, adminChunk))-1).Result()
		if err != nil {
			return total, s.c.explain("list "+s.String(), err)
		}
		if len(ids) == 0 {
			return total, nil
		}
		n, err := fn(ids)
		total += n
		if err != nil {
			return total, err
		}
		left -= len(ids)
	}
	return total, nil
}
