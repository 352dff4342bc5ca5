package protocol

import (
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// People hold ids (package rules). A node that pops a held id puts it back with a [Nack] of kind [Hold]. The
// owner of the shard releases ids when nobody holds them any more.

// HeldAt is the due time of held ids, a second after the last time that a push may ask for. So held ids wait
// behind all others. New payloads join them there, and no pop takes them. See lua/lib/held.lua.
var HeldAt = time.Unix(lowkiq.MaxPerformAt+1, 0)

// IsHeld reports whether a score in a shard's sorted sets due and retry is the score of a held id. A nil score
// is not.
func IsHeld(score any) bool {
	us, ok := redisdb.Score(score)
	return ok && int64(us) >= HeldAt.UnixMicro()
}

// HasHeld reports whether the shard may have ids that were held before the claim.
func (c *Claim) HasHeld() bool { return c.mayHaveHeld }

// releaseChunk is the number of ids that a script lists.
const releaseChunk = 1000

// ReleaseHeld makes the held ids of the shard due now, except the ids that satisfy held. It returns
// the number of released ids. Retry counts and errors stay. Repeating it does nothing.
func (c *Claim) ReleaseHeld(ctx context.Context, held func(id string) bool) (released int, err error) {
	for _, key := range []string{c.keys.Due, c.keys.Retry} {
		n, err := c.makeSetDue(ctx, key, HeldAt.UnixMicro(), "held", held)
		if released += n; err != nil {
			return released, err
		}
	}
	return released, nil
}

// makeSetDue makes ids of a sorted set due now if their score is at least from and keep returns false for
// them. It walks the set by score and id. So ids that come or go meanwhile do not hide others. what names the
// condition that lua/run_now.lua checks for each id: "held" or "group".
func (s *Shard) makeSetDue(ctx context.Context, key string, from int64, what string, keep func(id string) bool) (released int, err error) {
	db := s.registry.db
	for score, last, more := any(""), "", true; more; {
		reply, err := db.Run(ctx, db.Scripts.Slice, []string{key}, releaseChunk, "0", from, "+inf", score, last)
		if err != nil {
			return released, fmt.Errorf("shard %s: %w", s, err)
		}
		page := redisdb.List(reply)
		if len(page)%2 != 1 {
			return released, fmt.Errorf("shard %s: slice answered %v", s, reply)
		}
		var free []string
		for i := 1; i < len(page); i += 2 {
			score = page[i+1]
			if last = redisdb.Text(page[i]); !keep(last) {
				free = append(free, last)
			}
		}
		for len(free) > 0 {
			n, looked, err := s.makeDue(ctx, what, free)
			if released += n; err != nil {
				return released, err
			}
			free = free[looked:]
		}
		more = redisdb.Int(page[0]) > int64(len(page)/2)
	}
	return released, nil
}

// makeDue makes those of the ids due now that meet the condition what. It returns their number, and the number
// of ids that the script has looked at. The caller must send the remaining ids again.
func (s *Shard) makeDue(ctx context.Context, what string, ids []string) (released, looked int, err error) {
	args := []any{"", what, s.keys.Wake}
	for _, id := range ids {
		args = append(args, id)
	}
	script := s.registry.db.Scripts.RunNow
	reply, err := s.registry.db.Run(ctx, script, s.keys.For(script), args...)
	if err != nil {
		return 0, 0, fmt.Errorf("shard %s: %w", s, err)
	}
	r := redisdb.List(reply)
	if len(r) != 3 {
		return 0, 0, fmt.Errorf("shard %s: %s answered %v", s, script.Name, reply)
	}
	released, looked = int(redisdb.Int(r[0])), int(redisdb.Int(r[1]))
	if looked < 1 || looked > len(ids) {
		return 0, 0, fmt.Errorf("shard %s: %s answered %v for %d ids", s, script.Name, reply, len(ids))
	}
	return released, looked, nil
}
