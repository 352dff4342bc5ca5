package queue

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
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
	pipe := q.c.rdb.Pipeline()
	claim := pipe.HMGet(ctx, s.keys.claim, "instance", "fence")
	ready := pipe.LPos(ctx, s.keys.ready, id, redis.LPosArgs{MaxLen: standingDepth})
	suspect := pipe.LPos(ctx, s.keys.suspects, id, redis.LPosArgs{})
	stale := pipe.HGet(ctx, s.keys.stale, id)
	crashes := pipe.HGet(ctx, s.keys.crashes, id)
	flight := pipe.LLen(ctx, s.keys.flight)
	suspects := pipe.LLen(ctx, s.keys.suspects)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return Standing{}, q.c.explain("find the standing of an id of "+s.String(), err)
	}
	p := Standing{Now: now, Owner: ownerOf(claim.Val()[0], claim.Val()[1]), Ahead: -1, InFlight: int(flight.Val())}
	if n, err := crashes.Int(); err == nil {
		p.Crashes = n
	}
	switch {
	case suspect.Err() == nil:
		p.Suspect, p.Ahead = true, int(suspect.Val())
	case ready.Err() == nil && stale.Err() != nil:
		p.Ahead = int(suspects.Val() + ready.Val())
	}
	return p, nil
}
