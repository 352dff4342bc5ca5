package protocol

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
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// PopRequest says which jobs to pop.
type PopRequest struct {
	Acks       []Acks // acks to send along
	IDs        int    // maximum number of jobs, 1 to 1,000
	Bytes      int    // maximum bytes of payloads; a single job may exceed it
	MaxCrashes int    // crashes that bury an id in quarantine; 0 means never
	States     bool   // read the states of the ids as well
	Slot       bool   // the caller holds the node's quarantine slot, so an id that crashed before may be popped
	NoSuspect  bool   // pop no id in quarantine
}

// Quarantine is the state of a shard's quarantine, as a pop reports it.
type Quarantine string

// The states of quarantine.
const (
	NotQuarantined  Quarantine = ""
	QuarantineTaken Quarantine = "taken" // the popped id is in quarantine; no other job of the shard may run
	QuarantineWait  Quarantine = "wait"  // an id waits until all flights of the shard have ended
	QuarantineSlot  Quarantine = "slot"  // an id waits for the node's slot
)

// passedOver takes the place of a quarantine if a pop returned no job although ids may be ready. Either the pop
// found as many tombstones as a script may look at, or Redis had executed it before and no job of its flight is
// left. Pop then pops again.
const passedOver Quarantine = "passed"

// Popped is the answer to a pop.
type Popped struct {
	Now        time.Time // by Redis's clock
	Flight     int64     // number of the flight, which acks and nacks of these jobs name
	Jobs       []lowkiq.Job
	Open       []int64   // all flights of the claim that have not ended
	Next       time.Time // when the next scheduled or failed job is due; zero if there is none
	Ready      int       // ids still in the ready list
	Parts      bool      // a job has more payloads than a flight takes; the rest is due after the flight
	Quarantine Quarantine
	Damaged    []string // ids with unreadable records, which were set aside as a repair does
	// Later has ids with records in the form of a later release. They stay in the flight, untouched,
	// until the shard is released to a node of that release.
	Later []string
}

// maxPop is the maximum number of jobs of a pop. Redis runs nothing else during the script, so it must be short.
const maxPop = 1000

// Pop acks jobs and takes the next flight, in one round trip.
//
// A pop has a number, which becomes the number of its flight. The number grows only when a pop was answered. After
// a Transient error call Pop again with the same request. Redis then answers the same number with the same
// flight, and acks do nothing the second time. So a lost answer loses no flight and takes no second flight.
func (c *Claim) Pop(ctx context.Context, req PopRequest) (Popped, error) {
	if req.IDs < 1 || req.IDs > maxPop {
		return Popped{}, fmt.Errorf("shard %s: pop of %d jobs; it must be between 1 and %d", c.Shard, req.IDs, maxPop)
	}
	var before []*redisdb.Call // calls of complete.lua; the last of them goes in the same round trip
	if needComplete(req.Acks) {
		for first, rest := cutAcks(req.Acks); len(first) > 0; first, rest = cutAcks(rest) {
			before = append(before, c.completeCalls(first)...)
		}
		req.Acks = nil
	}
	for first, rest := cutAcks(req.Acks); len(rest) > 0; first, rest = cutAcks(rest) { // the last part goes with the pop
		if _, err := c.sendAcks(ctx, first); err != nil {
			return Popped{}, err
		}
		req.Acks = rest
	}
	number := c.popped + 1
	slot := "0"
	switch {
	case req.NoSuspect:
		slot = ""
	case req.Slot:
		slot = "1"
	}
	args := make([]any, 8, 8+2*len(req.Acks)+countAcks(req.Acks))
	args[0], args[1], args[2], args[3] = c.Instance, c.fence, number, req.IDs
	args[4], args[5], args[6] = req.Bytes, req.MaxCrashes, slot
	args = appendAcks(args, req.Acks)
	args[7] = len(args) - 8
	reply, err := c.sendPop(ctx, req, before, args)
	if redisdb.Says(err, "RECOVERING") { // flights of an earlier claim are not all put back
		if err = c.resumeRecovery(ctx); err == nil {
			reply, err = runScript(ctx, c.registry.db, c.registry.db.Scripts.Pop, c.pop, args...)
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
		// If this fails, the caller sends the same pop again, and gets the same flight.
		if err := c.readStates(ctx, popped.Jobs); err != nil {
			return Popped{}, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
	}
	if len(popped.Damaged) > 0 {
		return c.setAsideDamaged(ctx, req, popped)
	}
	// The number grows here and in setAsideDamaged only. After an error the next call repeats this pop under its number.
	c.popped = number
	c.leftReady = popped.Ready > 0
	if popped.Quarantine == passedOver {
		req.Acks = nil
		return c.Pop(ctx, req)
	}
	return popped, nil
}

// sendPop sends a pop after the calls of before. The last of these goes in the same round trip. A pop may share a
// script with pops of other shards. Its flight should then be small, so the pop before must have left nothing
// in the ready list, and the request must allow as many bytes as a shared script.
func (c *Claim) sendPop(ctx context.Context, req PopRequest, before []*redisdb.Call, args []any) (any, error) {
	g, script := c.registry, c.registry.db.Scripts.Pop
	for len(before) > 1 {
		if _, err := runScript(ctx, g.db, before[0].Script, before[0].Keys, before[0].Args...); err != nil {
			return nil, err
		}
		before = before[1:]
	}
	if len(before) == 1 {
		pop := &redisdb.Call{Script: script, Keys: c.pop, Args: args}
		g.db.RunInTurn(ctx, before[0], pop)
		return pop.Reply, readRefusal(cmp.Or(before[0].Err, pop.Err))
	}
	if c.soloPops > 0 || c.leftReady || req.Bytes < maxSharedBytes {
		c.soloPops = max(0, c.soloPops-1)
		return runScript(ctx, g.db, script, c.pop, args...)
	}
	reply, served, err := g.shared.sendShared(&shardRequest{
		Call: redisdb.Call{Script: script, Keys: c.pop, Args: args},
		ctx:  ctx, shard: c.Shard, isPop: true, acks: len(req.Acks) + countAcks(req.Acks),
	})
	if !served {
		c.soloPops = g.shared.soloPops
	}
	return reply, err
}

// setAsideDamaged moves the unreadable records of a flight aside, so that they stop no other id. If nothing is
// left of the flight, it pops the next flight.
func (c *Claim) setAsideDamaged(ctx context.Context, req PopRequest, popped Popped) (Popped, error) {
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

// statesPerCommand is the number of states that a command reads. A state may have lowkiq.MaxStateBytes.
const statesPerCommand = 16

// readStates reads the states of jobs in flight, in a second round trip. That is safe, because only the handler
// of a job changes the state of its id.
func (c *Claim) readStates(ctx context.Context, jobs []lowkiq.Job) error {
	var cmds []redisdb.Cmd
	for part := range slices.Chunk(jobs, statesPerCommand) {
		cmd := redisdb.Cmd{"HMGET", c.keys.States}
		for i := range part {
			cmd = append(cmd, part[i].ID)
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
			if text, ok := state.(string); ok && n*statesPerCommand+i < len(jobs) {
				jobs[n*statesPerCommand+i].State = packed.Bytes(text)
				if text == "" {
					jobs[n*statesPerCommand+i].State = []byte{} // not nil, because the id has a state
				}
			}
		}
	}
	return nil
}

func countAcks(acks []Acks) (n int) {
	for _, a := range acks {
		if !a.Rest {
			n += len(a.IDs)
		}
	}
	return n
}

// decodePop decodes the answer of lua/pop.lua. An unreadable record hides no other job of the flight.
func decodePop(reply any) (Popped, error) {
	r, ok := reply.([]any)
	if !ok || len(r) < 5 || len(r)%2 != 1 {
		return Popped{}, errors.New("pop answered in an unknown form")
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
