package browse

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Position describes what stands between a waiting id and a handler.
type Position struct {
	Now         time.Time      // by Redis's clock
	Owner       protocol.Owner // owner of the id's shard
	Ahead       int            // ids that the shard takes before it; -1 if it is not ready
	InFlight    int            // ids of the shard in flight
	Flight      []string       // the first of them, the oldest first, at most maxFlightIDs
	Quarantined bool           // it is in quarantine, because it was in flight when its shard was seized
	Crashes     int            // seizures that found it alone in flight
	Urgent      bool           // it goes before the ids of its shard that are not urgent
}

// positionDepth bounds the search for an id in the list of ready ids.
const positionDepth = 100_000

// maxFlightIDs is the maximum number of ids in flight that a Position names.
const maxFlightIDs = 3

// Position returns where an id stands. It reads without a lock, so on a busy queue the parts may be
// of different moments.
func (j *Jobs) Position(ctx context.Context, id string) (Position, error) {
	now, err := j.db.Time(ctx)
	if err != nil {
		return Position{}, err
	}
	s := j.q.Of(id)
	r, err := j.db.Pipeline(ctx, "find the position of an id of "+s.String(),
		redisdb.Cmd{"HMGET", s.Keys().Claim, "instance", "fence"},
		redisdb.Cmd{"LPOS", s.Keys().Ready, id, "MAXLEN", positionDepth},
		redisdb.Cmd{"LPOS", s.Keys().Suspects, id},
		redisdb.Cmd{"HGET", s.Keys().Stale, id},
		redisdb.Cmd{"HGET", s.Keys().Crashes, id},
		redisdb.Cmd{"LLEN", s.Keys().Flight},
		redisdb.Cmd{"LLEN", s.Keys().Suspects},
		redisdb.Cmd{"ZRANK", s.Keys().Urgent, id},
		redisdb.Cmd{"ZCARD", s.Keys().Urgent},
		redisdb.Cmd{"ZCOUNT", s.Keys().Urgent, "-inf", "(0"},
		redisdb.Cmd{"LRANGE", s.Keys().Flight, 0, maxFlightIDs - 1})
	if err != nil {
		return Position{}, err
	}
	claim := redisdb.List(r[0])
	ready, suspect, stale := r[1], r[2], r[3]
	p := Position{Now: now, Owner: protocol.Owner{Instance: redisdb.Text(claim[0]), Fence: redisdb.Int(claim[1])}, Ahead: -1, Crashes: int(redisdb.Int(r[4])), InFlight: int(redisdb.Int(r[5]))}
	p.Flight = redisdb.Texts(r[10])
	p.Urgent = r[7] != nil
	rank, notDue := int(redisdb.Int(r[7])), int(redisdb.Int(r[9]))
	urgent := int(redisdb.Int(r[8])) - notDue // ids that go before those of ready
	switch {
	case suspect != nil:
		p.Quarantined, p.Ahead = true, int(redisdb.Int(suspect))
	case p.Urgent && rank >= notDue:
		p.Ahead = int(redisdb.Int(r[6])) + rank - notDue
	case ready != nil && stale == nil:
		p.Ahead = int(redisdb.Int(r[6])+redisdb.Int(ready)) + urgent
	}
	return p, nil
}
