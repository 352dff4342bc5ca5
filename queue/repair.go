package queue

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Repair mends one fault, in one atomic step that looks first whether it is still there. It
// returns false if nothing was done: the fault is gone, a flight is in the way, or the fault
// is one for a person. It deletes no payload (I2) and touches no flight that has an owner (I1).
func (c *Client) Repair(ctx context.Context, f Fault) (bool, error) {
	if repairs[f.Kind] == "" {
		return false, nil
	}
	q, err := c.Queue(ctx, f.Queue)
	if err != nil {
		return false, err
	}
	if f.Shard < 0 || f.Shard >= q.Shards {
		return false, fmt.Errorf("repair: queue %q has no shard %d", f.Queue, f.Shard)
	}
	s := q.Shard(f.Shard)
	done, err := s.repair(ctx, f)
	if err != nil {
		return false, fmt.Errorf("repair of %s: %w", f, err)
	}
	return done, nil
}

func (s *Shard) repair(ctx context.Context, f Fault) (bool, error) {
	switch f.Kind {
	case ClaimDamaged:
		return s.repairClaim(ctx)
	case FlightUnowned:
		return s.recoverFlights(ctx, s.c.db.Scripts.RepairFlight, s.keys.Wake)
	case TombCount, MorgueCount:
		for _, one := range s.sums() {
			if one.kind == f.Kind {
				_, _, settled, err := s.recount(ctx, one, true)
				return settled, err
			}
		}
	}
	n, err := s.count(ctx, s.c.db.Scripts.Repair, s.keys.ForRepair(), []any{s.keys.Wake, string(f.Kind), f.ID, f.within, f.record})
	return n > 0, err
}

// repairClaim gives a shard up whose fence is no number. Its holder is refused whatever it does,
// but may be at work until it hears of that: while it has a lease, the claim stays.
func (s *Shard) repairClaim(ctx context.Context) (bool, error) {
	reply, err := s.c.db.Do(ctx, "read the claim of "+s.String(), "HGETALL", s.keys.Claim)
	claim := redisdb.Map(reply)
	if err != nil || soundFence(claim) {
		return false, err
	}
	holder, err := s.c.Instance(ctx, claim["instance"])
	if err != nil || holder.Lease != nil {
		return false, err
	}
	return s.recoverFlights(ctx, s.c.db.Scripts.RepairClaim, s.keys.Wake, claim["instance"], claim["fence"])
}

// recoverFlights runs a script that takes flights back, a part of them per call, until there is no more to do.
func (s *Shard) recoverFlights(ctx context.Context, script *redisdb.Script, args ...any) (done bool, err error) {
	for {
		n, err := s.count(ctx, script, s.keys.ForRelease(), args)
		if n > 0 {
			done = true
		}
		if err != nil || n < 2 {
			return done, err
		}
	}
}
