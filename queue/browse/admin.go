package browse

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// What people do to waiting jobs and to the morgue. None of it touches a flight: of an id in
// flight, what was pushed meanwhile is what waits. Every call returns the number of ids it changed:
// where an answer of Redis is lost and its script sent again, as go-redis does in a Redis Cluster,
// what only the first one changed is not in it. ErrQuery: one is no id, and nothing was changed.

// adminChunk is how many ids one script works on.
const adminChunk = 500

// Anywhere is wherever an id waits.
const Anywhere State = ""

// checkIDs refuses what is no id: nothing of a shard's own may be taken for a job.
func checkIDs(ids ...string) error {
	for _, id := range ids {
		if err := envelope.CheckID(id); err != nil {
			return refuse("%q: %v", id[:min(len(id), 60)], err)
		}
	}
	return nil
}

// byShard calls fn with the ids of each shard, at most adminChunk at once. ErrQuery: one is no id, and nothing was done.
func (j *Jobs) byShard(ids []string, fn func(*queue.Shard, []string) (int, error)) (total int, err error) {
	if err := checkIDs(ids...); err != nil {
		return 0, err
	}
	of := map[int][]string{}
	for _, id := range ids {
		i := lowkiq.ShardOf(id, j.q.Shards)
		of[i] = append(of[i], id)
	}
	for i, all := range of {
		for few := range slices.Chunk(all, adminChunk) {
			n, err := fn(j.shards[i], few)
			total += n
			if err != nil {
				return total, fmt.Errorf("queue %q: %w", j.q.Name, err)
			}
		}
	}
	return total, nil
}

// some calls a script that does some of the ids and says how many, until all are done: ids with
// many payloads take long, and Redis serves no other client meanwhile. One with very many takes
// several calls. The first argument of the script says whether the call before began with the first
// id.
func some(ctx context.Context, s *queue.Shard, script *redisdb.Script, args []any, ids []string) (total int, err error) {
	var begun int64
	for len(ids) > 0 {
		all := append(make([]any, 0, 1+len(args)+len(ids)), begun)
		reply, err := s.Run(ctx, script, withIDs(append(all, args...), ids)...)
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

// Delete forgets what waits for ids, if they are in that state; in StateMorgue, what the morgue
// holds of them.
func (j *Jobs) Delete(ctx context.Context, in State, ids ...string) (int, error) {
	return j.byShard(ids, func(s *queue.Shard, ids []string) (int, error) {
		if in == StateMorgue {
			return some(ctx, s, j.db.Scripts.Forget, nil, ids)
		}
		return some(ctx, s, j.db.Scripts.Delete, []any{string(in)}, ids)
	})
}

// Bury sends what waits for ids to the morgue, if they are in that state.
func (j *Jobs) Bury(ctx context.Context, in State, ids ...string) (int, error) {
	return j.bury(ctx, in, "all", ids)
}

// BuryOldest sends the payload with the smallest score of each id to the morgue; the
// rest is fresh and due now. Ids that are due already or in flight are left alone: a
// request that comes twice would bury two payloads.
func (j *Jobs) BuryOldest(ctx context.Context, in State, ids ...string) (int, error) {
	return j.bury(ctx, in, "oldest", ids)
}

func (j *Jobs) bury(ctx context.Context, in State, what string, ids []string) (int, error) {
	return j.byShard(ids, func(s *queue.Shard, ids []string) (int, error) {
		return some(ctx, s, j.db.Scripts.Kill, []any{string(in), what, s.Keys().Wake}, ids)
	})
}

// RunNow makes ids due now. Blocked ids stay blocked, held ones held.
func (j *Jobs) RunNow(ctx context.Context, ids ...string) (int, error) {
	return j.byShard(ids, func(s *queue.Shard, ids []string) (int, error) {
		return some(ctx, s, j.db.Scripts.RunNow, []any{"", s.Keys().Wake}, ids)
	})
}

// Requeue lets ids go on, fresh and due now: in StateMorgue their buried payloads, merged with
// what waits; in StateBlocked the ids that wait for a person. ErrQuery: from is another state.
func (j *Jobs) Requeue(ctx context.Context, from State, ids ...string) (int, error) {
	if from != StateMorgue && from != StateBlocked {
		return 0, refuse("requeue from %q: want %s or %s", from, StateMorgue, StateBlocked)
	}
	return j.byShard(ids, func(s *queue.Shard, ids []string) (int, error) {
		return some(ctx, s, j.db.Scripts.Requeue, []any{string(from), s.Keys().Wake}, ids)
	})
}
