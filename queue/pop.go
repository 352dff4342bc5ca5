package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// PopRequest says what to pop.
type PopRequest struct {
	Acks       []Acks // done since the last pop; sent along
	IDs        int    // most jobs, 1 to 1,000
	Bytes      int    // most bytes of payloads; one job may exceed it
	MaxCrashes int    // crashes after which an id in quarantine is buried; 0 = never
	// Company is how many pops of this client are asked for at this moment, this one included: they
	// wait for each other, and share a request. 0 or 1: it waits for none.
	Company int
	States  bool // the ids' states come with the jobs
	Slot    bool // the node's quarantine slot is held: an id that crashed before may come
}

// Quarantine is what a pop says of ids in quarantine.
type Quarantine string

// The states of quarantine.
const (
	NotQuarantined  Quarantine = ""
	QuarantineTaken Quarantine = "taken" // the popped id is in quarantine: nothing else of the shard may run
	QuarantineWait  Quarantine = "wait"  // one waits until all flights of the shard have ended
	QuarantineSlot  Quarantine = "slot"  // one waits for the node's slot
)

// passedOver, in the place of a quarantine, says that a pop found entries of deleted jobs only, as
// many as one script may look at, or that it was answered before, and nothing of its flight is
// left: the next pop goes on there.
const passedOver Quarantine = "passed"

// Popped is the answer to a pop.
type Popped struct {
	Now        time.Time // by Redis's clock
	Flight     int64     // the number that acks and nacks of these jobs name
	Jobs       []lowkiq.Job
	Open       []int64   // all flights of the claim that are not finished
	Next       time.Time // when the next scheduled job is due; zero if there is none
	Ready      int       // ids still in the ready list
	Parts      bool      // of a job with many payloads these are the first: the rest is due when they are done
	Quarantine Quarantine
	Damaged    []string // ids whose records could not be read: they were set aside, as by a repair
	// Later are ids whose records are of a later release's form: they stay in the flight,
	// untouched, until the shard is released to a node of that release.
	Later []string
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
	var before []*redisdb.Call // what says more than done goes by itself, in the same round trip
	if sayMore(req.Acks) {
		for first, rest := cutAcks(req.Acks); len(first) > 0; first, rest = cutAcks(rest) {
			before = append(before, c.completions(first)...)
		}
		req.Acks = nil
	}
	for first, rest := cutAcks(req.Acks); len(rest) > 0; first, rest = cutAcks(rest) { // the last ones go along
		if _, err := c.ack(ctx, first); err != nil {
			return Popped{}, err
		}
		req.Acks = rest
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
	reply, err := c.ask(ctx, req, before, args)
	if redisdb.Says(err, "RECOVERING") {
		if err = c.resume(ctx); err == nil {
			reply, err = run(ctx, c.registry.db, c.registry.db.Scripts.Pop, c.pop, args...)
		}
	}
	if err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	popped, err := decodePop(reply)
	if err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	popped.Flight = number
	if req.States {
		// If this fails, the same pop is sent again, and answered with the same flight.
		if err := c.states(ctx, popped.Jobs); err != nil {
			return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
	}
	if len(popped.Damaged) > 0 {
		return c.withoutDamaged(ctx, req, popped)
	}
	c.popped = number
	c.deep = popped.Ready > 0
	if popped.Quarantine == passedOver {
		req.Acks = nil
		return c.Pop(ctx, req)
	}
	return popped, nil
}

// ask sends a pop, with those of other shards if it is small, after one that left nothing ready, or
// if it has company. before is what comes before it: the last of that in the same round trip.
func (c *Claim) ask(ctx context.Context, req PopRequest, before []*redisdb.Call, args []any) (any, error) {
	g, script := c.registry, c.registry.db.Scripts.Pop
	for len(before) > 1 {
		if _, err := run(ctx, g.db, before[0].Script, before[0].Keys, before[0].Args...); err != nil {
			return nil, err
		}
		before = before[1:]
	}
	if len(before) == 1 {
		pop := &redisdb.Call{Script: script, Keys: c.pop, Args: args}
		g.db.RunInTurn(ctx, before[0], pop)
		return pop.Reply, refusal(cmp.Or(before[0].Err, pop.Err))
	}
	if c.unasked > 0 || c.deep && req.Company < 2 || req.Bytes < shareBytes {
		c.unasked = max(0, c.unasked-1)
		return run(ctx, g.db, script, c.pop, args...)
	}
	reply, served, err := g.sharing.ask(&part{
		Call: redisdb.Call{Script: script, Keys: c.pop, Args: args},
		ctx:  ctx, shard: c.Shard, pops: true, company: req.Company, ids: req.IDs, acks: len(req.Acks) + ackCount(req.Acks),
	})
	if !served {
		c.unasked = g.sharing.unasked
	}
	return reply, err
}

// withoutDamaged sets aside what a pop could not read: such a record must stop no other id. A
// flight of which nothing is left is followed by the next.
func (c *Claim) withoutDamaged(ctx context.Context, req PopRequest, popped Popped) (Popped, error) {
	args := []any{c.Instance, c.fence, popped.Flight}
	for _, id := range popped.Damaged {
		args = append(args, id)
	}
	if _, err := c.Run(ctx, c.registry.db.Scripts.Aside, args...); err != nil {
		return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	c.popped = popped.Flight
	if len(popped.Jobs) > 0 || len(popped.Later) > 0 {
		return popped, nil
	}
	req.Acks = nil
	next, err := c.Pop(ctx, req)
	next.Damaged = append(popped.Damaged, next.Damaged...)
	return next, err
}

// statesRead is how many states one command reads: each may have lowkiq.MaxStateBytes.
const statesRead = 16

// states reads the states of jobs in flight: nobody but their handlers changes them.
func (c *Claim) states(ctx context.Context, jobs []lowkiq.Job) error {
	var cmds []redisdb.Cmd
	for some := range slices.Chunk(jobs, statesRead) {
		cmd := redisdb.Cmd{"HMGET", c.keys.States}
		for i := range some {
			cmd = append(cmd, some[i].ID)
		}
		cmds = append(cmds, cmd)
	}
	if len(cmds) == 0 {
		return nil
	}
	replies, err := c.registry.db.Pipeline(ctx, "read states", cmds...)
	if err != nil {
		return err
	}
	for n, reply := range replies {
		for i, state := range redisdb.List(reply) {
			if text, ok := state.(string); ok && n*statesRead+i < len(jobs) {
				jobs[n*statesRead+i].State = packed.Bytes(text)
				if text == "" {
					jobs[n*statesRead+i].State = []byte{} // not nil: there is one
				}
			}
		}
	}
	return nil
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
	p.Now, p.Next = redisdb.Micros(r[0]), redisdb.Micros(r[2])
	if open, _ := r[1].(string); open != "" {
		for word := range strings.SplitSeq(open, " ") {
			n, _ := strconv.ParseInt(word, 10, 64)
			p.Open = append(p.Open, n)
		}
	}
	ready, _ := r[3].(int64)
	quarantine, _ := r[4].(string)
	p.Ready, p.Quarantine = int(ready), Quarantine(quarantine)
	n := (len(r) - 5) / 2
	if n == 0 {
		return p, nil
	}
	p.Jobs = make([]lowkiq.Job, 0, n)
	slab := make([]lowkiq.Payload, 0, n)
	for i := range n {
		id, _ := r[5+2*i].(string)
		record, _ := r[6+2*i].(string)
		job, rest, err := packed.Decode(id, record, slab)
		if errors.Is(err, packed.ErrLater) {
			p.Later = append(p.Later, id)
			continue
		}
		if err != nil {
			p.Damaged = append(p.Damaged, id)
			continue
		}
		p.Parts = p.Parts || record[0] == 'p'
		p.Jobs, slab = append(p.Jobs, job), rest
	}
	return p, nil
}
