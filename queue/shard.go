package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Cause says why a shard may be claimed.
type Cause string

// The causes of a claim.
const (
	Fresh Cause = "fresh" // no instance owns the shard
	Self  Cause = "self"  // an earlier instance of this process owned it, and its handlers have returned
	Seize Cause = "seize" // its owner's lease is missing, and the owner is proven or presumed dead
)

// Owner reads who holds the shard.
func (s *Shard) Owner(ctx context.Context) (Owner, error) {
	owners, err := readOwners(ctx, s.registry.db, []*Shard{s})
	if err != nil {
		return Owner{}, err
	}
	return owners[0], nil
}

// Owners reads who holds the shards, in one round trip.
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
		owners[i] = ownerOf(reply)
	}
	return owners, nil
}

// ownerOf reads instance and fence.
func ownerOf(reply any) (o Owner) {
	if values := redisdb.List(reply); len(values) == 2 {
		o.Instance, o.Fence = redisdb.Text(values[0]), redisdb.Int(values[1])
	}
	return o
}

// Claim is the right to work on a shard, until Redis says lowkiq.ErrFenced. Pop must
// not be called by two goroutines at once; the other methods may.
type Claim struct {
	*Shard
	Instance  string
	Fence     int64
	From      string // the instance that had it before; "" if none did
	Recovered int    // jobs that were in flight and will be handled again
	Buried    int    // payloads that went to the morgue as crashes, all of one id: it was alone in flight
	// Unreplicated: there are replicas, and none had confirmed the claim after 100 ms.
	Unreplicated bool

	held      bool   // there may be held ids from before the claim
	groupRule string // see GroupRule
	popped    int64  // number of the last answered pop
	deep      bool   // it left ids in the ready list
	unasked   int    // so many pops do not ask the shared script, as it could not serve the shard
	pop       []string
	fence     string
	journal   atomic.Pointer[journal.Rule] // nil: the default
}

// Claim makes instance the owner, provided the claim is still as seen. ErrHeld says
// that it is not, or that another instance holds it and cause is Fresh. After any
// other error the result is unknown: read the owner again.
//
// The caller that seizes must know beforehand that the owner's lease is gone; expired leases
// never return, so that knowledge cannot go stale (I1).
//
// With replicas attached it waits up to 100 ms for one of them.
func (s *Shard) Claim(ctx context.Context, instance string, cause Cause, seen Owner) (*Claim, error) {
	reply, confirmed, err := s.registry.db.RunReplicated(ctx, s.registry.db.Scripts.Claim, s.keys.For(s.registry.db.Scripts.Claim), instance, string(cause), strconv.FormatInt(seen.Fence, 10), seen.Instance)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s, err)
	}
	r, ok := reply.([]any)
	if !ok || len(r) < 3 || r[0] == "OK" && len(r) < 7 {
		return nil, fmt.Errorf("shard %s: claim answered %v", s, reply)
	}
	if r[0] == "REMOVED" {
		if err := s.removed(ctx, removedError(fmt.Sprint(r[1]))); err != nil {
			return nil, fmt.Errorf("shard %s: %w", s, err)
		}
		return s.Claim(ctx, instance, cause, seen)
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
	claim := s.held(instance, fence, int(recovered), int(buried))
	claim.From, claim.Unreplicated = seen.Instance, !confirmed
	claim.held, claim.groupRule = r[5] != int64(0), redisdb.Text(r[6])
	if left, _ := r[4].(int64); left > 0 {
		// If it fails here, the claim stands: a pop goes on with it.
		return claim, claim.resume(ctx)
	}
	return claim, nil
}

// resume takes the flights of an earlier claim back, some at a time: Redis serves no other client
// meanwhile. A pop that finds them half-way does so, too.
func (c *Claim) resume(ctx context.Context) error {
	for {
		reply, err := c.Run(ctx, c.registry.db.Scripts.Resume, c.Instance, c.fence)
		if err != nil {
			return fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, _ := reply.([]any)
		if len(r) != 3 {
			return fmt.Errorf("shard %s: resume answered %v, want three numbers", c.Shard, reply)
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

func (s *Shard) held(instance string, fence int64, recovered, buried int) *Claim {
	return &Claim{Shard: s, Instance: instance, Fence: fence, Recovered: recovered, Buried: buried, held: true, groupRule: "?",
		pop: s.keys.For(s.registry.db.Scripts.Pop), fence: strconv.FormatInt(fence, 10)}
}

// Adopt returns the claim that instance holds with this fence, for a process that
// sent a claim and lost the answer.
func (s *Shard) Adopt(instance string, fence int64) *Claim { return s.held(instance, fence, 0, 0) }

// Release gives the shard up: what is in flight goes back to the head of the queue,
// without a retry spent. It returns how many jobs that were. Call it only when no
// handler of this process works on the shard.
func (c *Claim) Release(ctx context.Context) (total int, err error) {
	for begun := false; ; begun = true {
		reply, err := c.Run(ctx, c.registry.db.Scripts.Release, c.Instance, c.fence, c.keys.Wake)
		if fenced := (*FencedError)(nil); begun && errors.As(err, &fenced) {
			return total, nil // its last part came twice
		}
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, ok := twoNumbers(reply)
		if !ok {
			return total, fmt.Errorf("shard %s: release answered %v, want two numbers", c.Shard, reply)
		}
		if total += r[0]; r[1] == 0 {
			return total, nil
		}
	}
}
