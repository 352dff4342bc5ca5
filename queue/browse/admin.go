package browse

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The functions below change waiting jobs and the morgue. None of them touches a flight: for an id
// in flight they change the payloads that were pushed during the flight.
//
// Every function returns the number of ids that it changed. If an answer of Redis is lost and the
// script is sent again, as go-redis does in a Redis Cluster, the number lacks the ids that only the
// first call changed. After ErrQuery, which means that a text is no valid id, nothing was changed.

// adminChunk is the maximum number of ids in a script call.
const adminChunk = 500

// Anywhere means every state outside of the morgue.
const Anywhere State = ""

// checkIDs refuses invalid ids. Otherwise an entry of the shard itself could be taken for a job.
func checkIDs(ids ...string) error {
	for _, id := range ids {
		if err := envelope.CheckID(id); err != nil {
			return refuseQuery("%q: %v", id[:min(len(id), 60)], err)
		}
	}
	return nil
}

// byShard calls fn with the ids of each shard, at most adminChunk at once. If an id is invalid it
// returns ErrQuery before the first call.
func (j *Jobs) byShard(ids []string, fn func(*protocol.Shard, []string) (int, error)) (total int, err error) {
	if err := checkIDs(ids...); err != nil {
		return 0, err
	}
	of := map[int][]string{}
	for _, id := range ids {
		i := lowkiq.ShardOf(id, j.q.Shards)
		of[i] = append(of[i], id)
	}
	for i, all := range of {
		for part := range slices.Chunk(all, adminChunk) {
			n, err := fn(j.shards[i], part)
			total += n
			if err != nil {
				return total, fmt.Errorf("queue %q: %w", j.q.Name, err)
			}
		}
	}
	return total, nil
}

// runOnIDs calls a script until it has processed all ids. Each call processes some of them and
// answers how many, because ids with many payloads take long and Redis serves no other client
// meanwhile. An id with very many payloads takes several calls. The first argument of the script
// says whether the call before began with the first id.
func runOnIDs(ctx context.Context, s *protocol.Shard, script *redisdb.Script, args []any, ids []string) (total int, err error) {
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

// Delete deletes the waiting payloads of ids that are in a state. In StateMorgue it deletes the
// buried payloads.
func (j *Jobs) Delete(ctx context.Context, in State, ids ...string) (int, error) {
	return j.byShard(ids, func(s *protocol.Shard, ids []string) (int, error) {
		if in == StateMorgue {
			return runOnIDs(ctx, s, j.db.Scripts.MorgueDelete, nil, ids)
		}
		return runOnIDs(ctx, s, j.db.Scripts.Delete, []any{string(in)}, ids)
	})
}

// Bury sends the waiting payloads of ids that are in a state to the morgue.
func (j *Jobs) Bury(ctx context.Context, in State, ids ...string) (int, error) {
	return j.buryIDs(ctx, in, "all", ids)
}

// BuryOldest sends the payload with the smallest score of each id to the morgue, and makes the rest
// a fresh job that is due now. It leaves alone ids that are due already or in flight, because a
// request that comes twice would bury two payloads.
func (j *Jobs) BuryOldest(ctx context.Context, in State, ids ...string) (int, error) {
	return j.buryIDs(ctx, in, "oldest", ids)
}

func (j *Jobs) buryIDs(ctx context.Context, in State, what string, ids []string) (int, error) {
	return j.byShard(ids, func(s *protocol.Shard, ids []string) (int, error) {
		return runOnIDs(ctx, s, j.db.Scripts.Kill, []any{string(in), what, s.Keys().Wake}, ids)
	})
}

// RunNow makes ids due now. Blocked ids stay blocked, and held ids stay held.
func (j *Jobs) RunNow(ctx context.Context, ids ...string) (int, error) {
	return j.byShard(ids, func(s *protocol.Shard, ids []string) (int, error) {
		return runOnIDs(ctx, s, j.db.Scripts.RunNow, []any{"", s.Keys().Wake}, ids)
	})
}

// Requeue makes ids fresh jobs that are due now. In StateMorgue it returns their buried payloads
// and merges them with the waiting payloads. In StateBlocked it unblocks the ids. Any other state
// is an ErrQuery.
func (j *Jobs) Requeue(ctx context.Context, from State, ids ...string) (int, error) {
	if from != StateMorgue && from != StateBlocked {
		return 0, refuseQuery("requeue from %q: the state must be %s or %s", from, StateMorgue, StateBlocked)
	}
	return j.byShard(ids, func(s *protocol.Shard, ids []string) (int, error) {
		return runOnIDs(ctx, s, j.db.Scripts.Requeue, []any{string(from), s.Keys().Wake}, ids)
	})
}
