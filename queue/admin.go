package queue

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// What people do to waiting jobs and to the morgue. None of it touches a flight: of an
// id in flight, what was pushed meanwhile is what waits. Every call returns the number
// of ids it changed: where an answer of Redis is lost and its script sent again, as go-redis does in a Redis
// Cluster, what only the first one changed is not in it.

// adminChunk is how many ids one script works on.
const adminChunk = 500

// Anywhere is wherever an id waits.
const Anywhere State = ""

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

// some calls a script that does some of the ids and says how many, until all are done: ids
// with many payloads take long, and Redis serves nobody else meanwhile. One with very many takes
// several calls. The first argument of the script says whether the call before began with the first id.
func (s *Shard) some(ctx context.Context, script *redisdb.Script, keys []string, args []any, ids []string) (total int, err error) {
	var begun int64
	for len(ids) > 0 {
		all := append(make([]any, 0, 1+len(args)+len(ids)), begun)
		reply, err := s.c.run(ctx, script, keys, withIDs(append(all, args...), ids)...)
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", s, err)
		}
		r, _ := reply.([]any)
		if len(r) != 3 {
			return total, fmt.Errorf("shard %s: %s answered %v, want three numbers", s, script.Name, reply)
		}
		n, _ := r[0].(int64)
		looked, _ := r[1].(int64)
		begun, _ = r[2].(int64)
		if looked+begun < 1 || int(looked+begun) > len(ids) {
			return total, fmt.Errorf("shard %s: %s answered %v for %d ids", s, script.Name, reply, len(ids))
		}
		total, ids = total+int(n), ids[looked:]
	}
	return total, nil
}

func withIDs(args []any, ids []string) []any {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// Delete forgets what waits for ids, if they are in that state.
func (q *Queue) Delete(ctx context.Context, in State, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.some(ctx, q.c.db.Scripts.Delete, s.keys.ForWaiting(), []any{string(in)}, ids)
	})
}

// Kill sends what waits for ids to the morgue, if they are in that state.
func (q *Queue) Kill(ctx context.Context, in State, ids ...string) (int, error) {
	return q.kill(ctx, in, "all", ids)
}

// KillOldest sends the payload with the smallest score of each id to the morgue; the
// rest is fresh and due now. Ids that are due already or in flight are left alone: a
// request that comes twice would bury two payloads.
func (q *Queue) KillOldest(ctx context.Context, in State, ids ...string) (int, error) {
	return q.kill(ctx, in, "oldest", ids)
}

func (q *Queue) kill(ctx context.Context, in State, what string, ids []string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.some(ctx, q.c.db.Scripts.Kill, s.keys.ForMorgue(), []any{string(in), what, s.keys.Wake}, ids)
	})
}

// RunNow makes ids due now. Blocked ids stay blocked.
func (q *Queue) RunNow(ctx context.Context, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.some(ctx, q.c.db.Scripts.RunNow, s.keys.ForWaiting(), []any{s.keys.Wake}, ids)
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
		return s.some(ctx, q.c.db.Scripts.Requeue, s.keys.ForMorgue(), []any{from, s.keys.Wake}, ids)
	})
}

// DeleteDead forgets what the morgue holds of ids.
func (q *Queue) DeleteDead(ctx context.Context, ids ...string) (int, error) {
	return q.byShard(ids, func(s *Shard, ids []string) (int, error) {
		return s.some(ctx, q.c.db.Scripts.Forget, s.keys.ForForget(), nil, ids)
	})
}
