package queue

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Standing says what stands between a waiting id and a handler.
type Standing struct {
	Now      time.Time // by Redis's clock
	Owner    Owner     // of the id's shard
	Ahead    int       // ids that the shard takes before it; -1 if it is in no list of ready ids
	InFlight int       // ids of the shard that handlers have
	Suspect  bool      // it waits on probation: it was in flight when its shard was seized
	Crashes  int       // seizures that found it alone in flight
}

// standingDepth bounds the search for an id in the list of ready ids.
const standingDepth = 100_000

// Standing looks where an id stands. It reads without a lock: on a moving queue the parts
// may be of different moments.
func (q *Queue) Standing(ctx context.Context, id string) (Standing, error) {
	now, err := q.c.Time(ctx)
	if err != nil {
		return Standing{}, err
	}
	s := q.Of(id)
	r, err := q.c.db.Pipeline(ctx, "find the standing of an id of "+s.String(),
		redisdb.Cmd{"HMGET", s.keys.Claim, "instance", "fence"},
		redisdb.Cmd{"LPOS", s.keys.Ready, id, "MAXLEN", standingDepth},
		redisdb.Cmd{"LPOS", s.keys.Suspects, id},
		redisdb.Cmd{"HGET", s.keys.Stale, id},
		redisdb.Cmd{"HGET", s.keys.Crashes, id},
		redisdb.Cmd{"LLEN", s.keys.Flight},
		redisdb.Cmd{"LLEN", s.keys.Suspects})
	if err != nil {
		return Standing{}, err
	}
	ready, suspect, stale := r[1], r[2], r[3]
	p := Standing{Now: now, Owner: ownerOf(r[0]), Ahead: -1, Crashes: int(redisdb.Int(r[4])), InFlight: int(redisdb.Int(r[5]))}
	switch {
	case suspect != nil:
		p.Suspect, p.Ahead = true, int(redisdb.Int(suspect))
	case ready != nil && stale == nil:
		p.Ahead = int(redisdb.Int(r[6]) + redisdb.Int(ready))
	}
	return p, nil
}
