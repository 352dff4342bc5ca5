package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Cause says why a shard may be claimed.
type Cause string

// The causes of a claim.
const (
	Fresh Cause = "fresh" // nobody owns the shard
	Self  Cause = "self"  // an earlier instance of this process owned it, and its handlers have returned
	Seize Cause = "seize" // its owner's lease is missing, and the owner is proven or presumed dead
)

// Owner reads who holds the shard.
func (s *Shard) Owner(ctx context.Context) (Owner, error) {
	values, err := s.c.rdb.HMGet(ctx, s.keys.claim, "instance", "fence").Result()
	if err != nil {
		return Owner{}, s.c.explain("read the claim of "+s.String(), err)
	}
	return ownerOf(values[0], values[1]), nil
}

// Owners reads who holds the shards, in one round trip.
func (c *Client) Owners(ctx context.Context, shards []*Shard) ([]Owner, error) {
	pipe := c.rdb.Pipeline()
	for _, s := range shards {
		pipe.HMGet(ctx, s.keys.claim, "instance", "fence")
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, c.explain("read claims", err)
	}
	owners := make([]Owner, len(shards))
	for i, cmd := range cmds {
		values := cmd.(interface{ Val() []any }).Val()
		owners[i] = ownerOf(values[0], values[1])
	}
	return owners, nil
}

func ownerOf(instance, fence any) Owner {
	var o Owner
	o.Instance, _ = instance.(string)
	if text, ok := fence.(string); ok {
		o.Fence, _ = strconv.ParseInt(text, 10, 64)
	}
	return o
}

// Claim is the right to work on a shard, until Redis says lowkiq.ErrFenced. Pop must
// not be called by two goroutines at once; the other methods may.
type Claim struct {
	*Shard
	Instance  string
	Fence     int64
	Recovered int // jobs that were in flight and will be handled again
	Buried    int // payloads that went to the morgue as crashes
	// Unreplicated: there are replicas, and none had confirmed the claim after 100 ms.
	Unreplicated bool

	popped int64 // number of the last answered pop
	pop    []string
	fence  string
}

// Claim makes instance the owner, provided the claim is still as seen. ErrHeld says
// that it is not, or that another instance holds it and cause is Fresh. After any
// other error the result is unknown: read the owner again.
//
// Whoever seizes must know beforehand that the owner's lease is gone; expired leases
// never return, so that knowledge cannot go stale (I1).
//
// With replicas attached it waits up to 100 ms for one of them.
func (s *Shard) Claim(ctx context.Context, instance string, cause Cause, seen Owner) (*Claim, error) {
	reply, confirmed, err := s.c.runReplicated(ctx, s.c.scripts.claim, s.keys.forClaim(), instance, string(cause), strconv.FormatInt(seen.Fence, 10), seen.Instance)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s, err)
	}
	r, ok := reply.([]any)
	if !ok || len(r) < 3 {
		return nil, fmt.Errorf("shard %s: claim answered %v", s, reply)
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
	claim.Unreplicated = !confirmed
	return claim, nil
}

func (s *Shard) held(instance string, fence int64, recovered, buried int) *Claim {
	return &Claim{Shard: s, Instance: instance, Fence: fence, Recovered: recovered, Buried: buried,
		pop: s.keys.forPop(), fence: strconv.FormatInt(fence, 10)}
}

// Adopt returns the claim that instance holds with this fence, for a process that
// sent a claim and lost the answer.
func (s *Shard) Adopt(instance string, fence int64) *Claim { return s.held(instance, fence, 0, 0) }

// Release gives the shard up: what is in flight goes back to the head of the queue,
// without a retry spent. It returns how many jobs that were. Call it only when no
// handler of this process works on the shard.
func (c *Claim) Release(ctx context.Context) (int, error) {
	reply, err := c.c.run(ctx, c.c.scripts.release, c.keys.forRelease(), c.Instance, c.fence, c.keys.wake)
	if err != nil {
		return 0, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	n, _ := reply.(int64)
	return int(n), nil
}

// Acks are ids of one flight that are done.
type Acks struct {
	Flight int64
	IDs    []string
	// Rest: all that is left of the flight is done; IDs is not looked at. It is the
	// cheapest ack. Every other job of the flight must have been nacked or buried, and
	// Redis must have said so.
	Rest bool
}

func appendAcks(args []any, acks []Acks) []any {
	for _, a := range acks {
		if a.Rest {
			args = append(args, a.Flight, 0)
			continue
		}
		if len(a.IDs) == 0 {
			continue
		}
		args = append(args, a.Flight, len(a.IDs))
		for i := range a.IDs {
			args = append(args, &a.IDs[i])
		}
	}
	return args
}

// Ack says that jobs are done. It returns how many were still in their flight; to
// repeat it does nothing.
func (c *Claim) Ack(ctx context.Context, acks ...Acks) (int, error) {
	reply, err := c.c.run(ctx, c.c.scripts.ack, c.pop[:8], appendAcks([]any{c.Instance, c.fence, c.keys.wake}, acks)...)
	if err != nil {
		return 0, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	n, _ := reply.(int64)
	return int(n), nil
}

// PopRequest says what to pop.
type PopRequest struct {
	Acks       []Acks // done since the last pop; sent along
	IDs        int    // most jobs, 1 to 1,000
	Bytes      int    // most bytes of payloads; one job may exceed it
	MaxCrashes int    // crashes after which an id on probation is buried; 0 = never
	Slot       bool   // the node's probation slot is held: an id that crashed before may come
}

// Probation is what a pop says of ids on probation.
type Probation string

// The states of probation.
const (
	NoProbation    Probation = ""
	ProbationTaken Probation = "taken" // the popped id is on probation: nothing else of the shard may run
	ProbationWait  Probation = "wait"  // one waits until all flights of the shard have ended
	ProbationSlot  Probation = "slot"  // one waits for the node's slot
)

// passedOver, in the place of a probation, says that a pop found entries of deleted jobs only, as many
// as one script may look at: the next pop goes on there.
const passedOver Probation = "passed"

// Popped is the answer to a pop.
type Popped struct {
	Now       time.Time // by Redis's clock
	Flight    int64     // the number that acks and nacks of these jobs name
	Jobs      []lowkiq.Job
	Open      []int64   // all flights of the claim that are not finished
	Next      time.Time // when the next scheduled job is due; zero if there is none
	Ready     int       // ids still in the ready list
	Probation Probation
	Damaged   []string // ids whose records could not be read: they were set aside, as by a repair
}

// maxPop is the most jobs of a pop: Redis runs the script alone, so it must stay short.
const maxPop = 1000

// Pop acknowledges what is done and takes the next flight, in one round trip. After a
// Transient error call it again with the same request: the answer will be the same
// flight, and acks are no-ops the second time.
func (c *Claim) Pop(ctx context.Context, req PopRequest) (Popped, error) {
	if req.IDs < 1 || req.IDs > maxPop {
		return Popped{}, fmt.Errorf("shard %s: pop %d jobs: want 1 to %d", c.Shard, req.IDs, maxPop)
	}
	number := c.popped + 1
	slot := "0"
	if req.Slot {
		slot = "1"
	}
	args := make([]any, 8, 8+2*len(req.Acks)+ackCount(req.Acks))
	args[0], args[1], args[2], args[3] = c.Instance, c.fence, number, req.IDs
	args[4], args[5], args[6] = req.Bytes, req.MaxCrashes, slot
	args = appendAcks(args, req.Acks)
	args[7] = len(args) - 8
	reply, err := c.c.run(ctx, c.c.scripts.pop, c.pop, args...)
	if err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	popped, err := decodePop(reply)
	if err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	popped.Flight = number
	if len(popped.Damaged) > 0 {
		return c.withoutDamaged(ctx, req, popped)
	}
	c.popped = number
	if popped.Probation == passedOver {
		req.Acks = nil
		return c.Pop(ctx, req)
	}
	return popped, nil
}

// withoutDamaged sets aside what a pop could not read: such a record must stop nobody else. A
// flight of which nothing is left is followed by the next.
func (c *Claim) withoutDamaged(ctx context.Context, req PopRequest, popped Popped) (Popped, error) {
	args := []any{c.Instance, c.fence, popped.Flight}
	for _, id := range popped.Damaged {
		args = append(args, id)
	}
	if _, err := c.c.run(ctx, c.c.scripts.aside, c.keys.forAside(), args...); err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	c.popped = popped.Flight
	if len(popped.Jobs) > 0 {
		return popped, nil
	}
	req.Acks = nil
	next, err := c.Pop(ctx, req)
	next.Damaged = append(popped.Damaged, next.Damaged...)
	return next, err
}

func ackCount(acks []Acks) (n int) {
	for _, a := range acks {
		if !a.Rest {
			n += len(a.IDs)
		}
	}
	return n
}

func decodePop(reply any) (Popped, error) {
	r, ok := reply.([]any)
	if !ok || len(r) < 5 || len(r)%2 != 1 {
		return Popped{}, errors.New("pop answered nonsense")
	}
	var p Popped
	p.Now, p.Next = microTime(r[0]), microTime(r[2])
	if open, _ := r[1].(string); open != "" {
		for word := range strings.SplitSeq(open, " ") {
			n, _ := strconv.ParseInt(word, 10, 64)
			p.Open = append(p.Open, n)
		}
	}
	ready, _ := r[3].(int64)
	probation, _ := r[4].(string)
	p.Ready, p.Probation = int(ready), Probation(probation)
	n := (len(r) - 5) / 2
	if n == 0 {
		return p, nil
	}
	p.Jobs = make([]lowkiq.Job, 0, n)
	slab := make([]lowkiq.Payload, 0, n)
	for i := range n {
		id, _ := r[5+2*i].(string)
		record, _ := r[6+2*i].(string)
		job, rest, err := decodeJob(id, record, slab)
		if err != nil {
			p.Damaged = append(p.Damaged, id)
			continue
		}
		p.Jobs, slab = append(p.Jobs, job), rest
	}
	return p, nil
}

// microTime reads unix microseconds; "" is the zero time.
func microTime(v any) time.Time {
	text, _ := v.(string)
	us, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
