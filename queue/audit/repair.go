package audit

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Repair repairs a fault in one atomic step, which first checks whether the fault still exists. It
// returns false if nothing was done, because the fault is gone, a flight is in the way, or a person
// must decide. It deletes no payload (I2) and touches no flight that has an owner (I1).
func Repair(ctx context.Context, c *protocol.Client, f Fault) (bool, error) {
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
	done, err := repairShard(ctx, s, f)
	if err != nil {
		return false, fmt.Errorf("repair of %s: %w", f, err)
	}
	return done, nil
}

func repairShard(ctx context.Context, s *protocol.Shard, f Fault) (bool, error) {
	switch f.Kind {
	case ClaimDamaged:
		return repairClaim(ctx, s)
	case FlightUnowned:
		return recoverFlights(ctx, s, s.DB().Scripts.RepairFlight, s.Keys().Wake)
	case JournalCount:
		return recountJournal(ctx, s)
	case TombCount, MorgueCount:
		for _, one := range sumsOf(s) {
			if one.kind == f.Kind {
				_, _, settled, err := recountSum(ctx, s, one, true)
				return settled, err
			}
		}
	}
	n, err := runCounting(ctx, s, s.DB().Scripts.Repair, s.Keys().Wake, string(f.Kind), f.ID, f.within, f.record)
	return n > 0, err
}

// repairClaim releases a shard whose fence is not a number. Redis refuses every operation of its
// holder. But the holder may be at work until it notices, so the claim stays while the holder has a
// lease.
func repairClaim(ctx context.Context, s *protocol.Shard) (bool, error) {
	reply, err := s.DB().Do(ctx, "read the claim of "+s.String(), "HGETALL", s.Keys().Claim)
	claim := redisdb.Map(reply)
	if err != nil || soundFence(claim) {
		return false, err
	}
	holder, err := lease.In(s.DB()).Instance(ctx, claim["instance"])
	if err != nil || holder.Lease != nil {
		return false, err
	}
	return recoverFlights(ctx, s, s.DB().Scripts.RepairClaim, s.Keys().Wake, claim["instance"], claim["fence"])
}

// recoverFlights runs a script that recovers flights in parts, until it has recovered all of them.
func recoverFlights(ctx context.Context, s *protocol.Shard, script *redisdb.Script, args ...any) (done bool, err error) {
	for {
		n, err := runCounting(ctx, s, script, args...)
		if n > 0 {
			done = true
		}
		if err != nil || n < 2 {
			return done, err
		}
	}
}

// runCounting runs a script that answers with a number.
func runCounting(ctx context.Context, s *protocol.Shard, script *redisdb.Script, args ...any) (int, error) {
	reply, err := s.Run(ctx, script, args...)
	if err != nil {
		return 0, fmt.Errorf("shard %s: %w", s, err)
	}
	n, ok := reply.(int64)
	if !ok {
		return 0, fmt.Errorf("shard %s: %s answered %v, want a number", s, script.Name, reply)
	}
	return int(n), nil
}
