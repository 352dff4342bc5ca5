package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// People hold ids (package rules): a node that has popped a held one puts it back by a [Nack] of kind [Hold], and its shard's
// owner releases those that nobody holds any more.

// HeldAt is when held ids are due, a second after the last time that a push can ask for: behind all others, where what is
// pushed joins them and nothing runs them. See lua/lib/held.lua.
var HeldAt = time.Unix(lowkiq.MaxPerformAt+1, 0)

// IsHeld says whether a score of a shard's sorted sets due or retry is that of a held id; nil: there is none.
func IsHeld(score any) bool {
	us, ok := redisdb.Score(score)
	return ok && int64(us) >= HeldAt.UnixMicro()
}

// HasHeld reports whether held ids may be there from before the claim.
func (c *Claim) HasHeld() bool { return c.held }

// releaseChunk is how many held ids are looked at together.
const releaseChunk = 1000

// ReleaseHeld makes held ids of the shard due now, but for those that are held still, and returns how many. Their retry counts
// and errors stay. To repeat it does nothing.
func (c *Claim) ReleaseHeld(ctx context.Context, held func(id string) bool) (released int, err error) {
	for _, key := range []string{c.keys.Due, c.keys.Retry} {
		n, err := c.release(ctx, key, HeldAt.UnixMicro(), "held", held)
		if released += n; err != nil {
			return released, err
		}
	}
	return released, nil
}

// release makes ids of a sorted set due now, from a score on, but for those to keep. It goes by scores and bytes: what comes or goes meanwhile hides
// none. what they must be: see lua/run_now.lua.
func (s *Shard) release(ctx context.Context, key string, from int64, what string, keep func(id string) bool) (released int, err error) {
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

// makeDue makes ids due now that are what they must be. It returns how many those were, and how many of these ids were looked at.
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
