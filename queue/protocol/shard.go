package protocol

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Cause says why a shard may be claimed.
type Cause string

// The causes of a claim.
const (
	Fresh Cause = "fresh" // no instance owns the shard
	Self  Cause = "self"  // an earlier instance of this process owned the shard, and its handlers have returned
	Seize Cause = "seize" // its owner's lease is missing, and the owner is proven or presumed dead
)

// Owner reads the holder of the shard's claim.
func (s *Shard) Owner(ctx context.Context) (Owner, error) {
	owners, err := readOwners(ctx, s.registry.db, []*Shard{s})
	if err != nil {
		return Owner{}, err
	}
	return owners[0], nil
}

// Owners reads the holders of the shards' claims, in one round trip.
func (c *Client) Owners(ctx context.Context, shards []*Shard) ([]Owner, error) {
	return readOwners(ctx, c.db, shards)
}

func readOwners(ctx context.Context, db *redisdb.DB, shards []*Shard) ([]Owner, error) {
	cmds := make([]redisdb.Cmd, len(shards))
	for i, s := range shards {
		cmds[i] = redisdb.Cmd{"HMGET", s.keys.Claim, "instance", "fence"}
	}
	replies, err := db.Pipeline(ctx, "read claims", cmds...)
	if err != nil {
		return nil, err
	}
	owners := make([]Owner, len(shards))
	for i, reply := range replies {
		owners[i] = parseOwner(reply)
	}
	return owners, nil
}

// parseOwner reads an owner from the fields instance and fence of a claim.
func parseOwner(reply any) (o Owner) {
	if values := redisdb.List(reply); len(values) == 2 {
		o.Instance, o.Fence = redisdb.Text(values[0]), redisdb.Int(values[1])
	}
	return o
}

// Claim is the right of an instance to work on a shard. It ends when the instance releases the shard, or when
// another instance claims it, with a higher fence. Each script of a claim shows the fence. Once the claim has
// ended, Redis refuses its scripts with lowkiq.ErrFenced, so a process that is late can change nothing (I1).
//
// Pop must not be called by two goroutines at once; the other methods may.
type Claim struct {
	*Shard
	Instance  string
	Fence     int64
	From      string // the instance that held the claim before; "" if none did
	Recovered int    // jobs that were in flight and will be handled again
	Buried    int    // payloads that went to the morgue as crashes; all are of one id, which was alone in flight
	// Unreplicated means that Redis has replicas and none had confirmed the claim after 100 ms.
	Unreplicated bool

	Outgoing bool // follow-ups wait to be delivered

	deadTo      atomic.Pointer[string]       // the queue of dead payloads that this claim has stored; nil if it has stored none
	mayHaveHeld bool                         // the shard may have ids that were held before the claim
	groupRule   string                       // see GroupRule
	popped      int64                        // number of the last answered pop
	leftReady   bool                         // that pop left ids in the ready list
	soloPops    int                          // pops to send alone, because the shared script could not serve the shard
	pop         []string                     // the keys of lua/pop.lua
	fence       string                       // Fence as an argument
	journal     atomic.Pointer[journal.Rule] // nil for the default
}

// Claim makes instance the owner of the shard if the claim in Redis is still as seen. The error is ErrHeld if the
// claim has changed, or if another instance holds it and cause is Fresh. It is ErrMoving if a reshard has frozen the shard
// or has not opened it yet. After any other error the result is unknown, and the caller must read the owner again.
//
// A caller with cause Seize must have seen that the owner's lease is gone. Redis does not check it. An expired
// lease never returns, so the caller's knowledge cannot become wrong before the script runs (I1). The claim itself
// may have changed meanwhile, and Redis does check that.
//
// If Redis has replicas, Claim waits up to 100 ms for one of them.
func (s *Shard) Claim(ctx context.Context, instance string, cause Cause, seen Owner) (*Claim, error) {
	args := []any{instance, string(cause), strconv.FormatInt(seen.Fence, 10), seen.Instance}
	deadTo, known := s.registry.deadToOf(s.Queue)
	if known {
		args = append(args, deadTo)
	}
	reply, confirmed, err := s.registry.db.RunReplicated(ctx, s.registry.db.Scripts.Claim, s.keys.For(s.registry.db.Scripts.Claim), args...)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s, err)
	}
	r, ok := reply.([]any)
	if !ok || len(r) < 3 || r[0] == "OK" && len(r) < 8 {
		return nil, fmt.Errorf("shard %s: claim answered %v", s, reply)
	}
	if r[0] == "REMOVED" {
		if err := s.settleMark(ctx, readMark(fmt.Sprint(r[1])), 0); err != nil {
			return nil, fmt.Errorf("shard %s: %w", s, err)
		}
		return s.Claim(ctx, instance, cause, seen)
	}
	if r[0] == "CLOSED" { // jobs of the former layout still come to it, see lua/take.lua
		return nil, fmt.Errorf("shard %s: %w", s, ErrMoving)
	}
	if r[0] != "OK" {
		return nil, fmt.Errorf("shard %s: %w: %v holds it with fence %v", s, ErrHeld, r[1], r[2])
	}
	fence, err := strconv.ParseInt(fmt.Sprint(r[1]), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("shard %s: claim answered fence %v", s, r[1])
	}
	recovered, _ := r[2].(int64)
	buried, _ := r[3].(int64)
	claim := s.newClaim(instance, fence, int(recovered), int(buried))
	claim.From, claim.Unreplicated = seen.Instance, !confirmed
	if known {
		claim.deadTo.Store(&deadTo)
	}
	claim.mayHaveHeld, claim.groupRule, claim.Outgoing = r[5] != int64(0), redisdb.Text(r[6]), r[7] != int64(0)
	if left, _ := r[4].(int64); left > 0 {
		// If this fails, the claim holds nevertheless, and a pop goes on with the recovery.
		return claim, claim.resumeRecovery(ctx)
	}
	return claim, nil
}

// resumeRecovery puts back the jobs that were in flight under an earlier claim, some in each script, because Redis
// serves no other client during a script. No job is popped before all are put back. A pop that finds the
// recovery unfinished calls resumeRecovery first.
func (c *Claim) resumeRecovery(ctx context.Context) error {
	for {
		reply, err := c.Run(ctx, c.registry.db.Scripts.Resume, c.Instance, c.fence)
		if err != nil {
			return fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, _ := reply.([]any)
		if len(r) != 3 {
			return fmt.Errorf("shard %s: resume answered %v instead of three numbers", c.Shard, reply)
		}
		recovered, _ := r[0].(int64)
		buried, _ := r[1].(int64)
		c.Recovered += int(recovered)
		c.Buried += int(buried)
		if r[2] == int64(0) {
			return nil
		}
	}
}

func (s *Shard) newClaim(instance string, fence int64, recovered, buried int) *Claim {
	return &Claim{Shard: s, Instance: instance, Fence: fence, Recovered: recovered, Buried: buried, mayHaveHeld: true, groupRule: "?",
		pop: s.keys.For(s.registry.db.Scripts.Pop), fence: strconv.FormatInt(fence, 10)}
}

// Adopt returns the claim that instance holds with this fence. It is for a process that sent a claim, lost the
// answer, and has read the owner since.
func (s *Shard) Adopt(instance string, fence int64) *Claim { return s.newClaim(instance, fence, 0, 0) }

// Release gives the shard up. Jobs in flight go back to the head of the line, which does not count as a retry.
// Release returns the number of these jobs. It must be called only when no handler of this process works on the
// shard. Otherwise the next owner could run the same jobs at the same time (I1).
func (c *Claim) Release(ctx context.Context) (total int, err error) {
	for begun := false; ; begun = true {
		reply, err := c.Run(ctx, c.registry.db.Scripts.Release, c.Instance, c.fence, c.keys.Wake)
		if fenced := (*FencedError)(nil); begun && errors.As(err, &fenced) {
			return total, nil // the last script ran before, and its answer was lost
		}
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, ok := twoNumbers(reply)
		if !ok {
			return total, fmt.Errorf("shard %s: release answered %v instead of two numbers", c.Shard, reply)
		}
		if total += r[0]; r[1] == 0 {
			return total, nil
		}
	}
}
