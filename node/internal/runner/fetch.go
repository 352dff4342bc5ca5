package runner

import (
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// How a runner gets its work.

// A pop takes what the shard finishes in about this time.
const popAhead = 50 * time.Millisecond

// Most bytes of payloads in one pop.
const popBytes = 1 << 20

// size says how many ids to pop: what the shard finishes in about 50 ms, a batch at
// least, prefetch at most. mu is held.
func (r *Runner) size() int {
	rules := &r.queue.Rules
	least := min(rules.BatchSize*rules.ShardConcurrency, 1000)
	if r.perJob == 0 {
		return least
	}
	n := int(popAhead/max(r.perJob, time.Microsecond)) * rules.ShardConcurrency
	return min(max(n, least), max(rules.Prefetch, least))
}

// pop asks Redis for the next flight, and repeats that until there is an answer or the runner ends.
func (r *Runner) pop() (p queue.Popped, answered bool) {
	r.mu.Lock()
	req := queue.PopRequest{IDs: r.size(), Bytes: popBytes, MaxCrashes: max(0, r.queue.MaxCrashes), Slot: r.slot}
	r.mu.Unlock()
	for wait := NewBackoff(); ; {
		req.Acks = append(req.Acks, r.takeAcks()...)
		p, err := r.claim.Pop(r.process.IO, req)
		switch {
		case err == nil:
			r.process.Worked("pop", r.Shard)
			r.acknowledged(req.Acks)
			r.tellOf(p)
			return p, true
		case errors.Is(err, lowkiq.ErrFenced):
			r.lose("pop", err)
			return p, false
		}
		r.process.Trouble("pop", r.Shard, err)
		if !queue.Transient(err) && r.process.IO.Err() == nil {
			r.returnAcks(req.Acks)
			r.mu.Lock()
			r.resync("pop", err)
			r.mu.Unlock()
			return p, false
		}
		// It may have been executed: the same number again, by the same rules.
		if r.ends() || wait.Sleep(r.work) != nil {
			r.returnAcks(req.Acks)
			return p, false
		}
	}
}

func (r *Runner) ends() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stops()
}

// tellOf tells what an answer says of Redis's clock, and of records that are not handled.
func (r *Runner) tellOf(p queue.Popped) {
	r.process.SawRedisTime(p.Now)
	if len(p.Damaged) > 0 {
		r.process.Log.Error("records that cannot be read were set aside: lowkiq-node check counts them", "shard", r.Shard, "ids", p.Damaged)
	}
	if len(p.Later) > 0 {
		r.process.Trouble("read", r.Shard, fmt.Errorf("shard %s: ids %q are stored in a form of a later release: they stay in flight, untouched, until a node of that release has the shard", r.Shard, p.Later))
	}
}

// takeIn takes in the answer to a pop, which ends it, and fills the buffer. It says whether to pop again at once. mu is
// held from here until the lane has drawn its conclusions, or a wake-up could fall between the two.
func (r *Runner) takeIn(p queue.Popped) (again bool) {
	r.more = p.Ready > 0
	if n := len(p.Jobs) + len(p.Later); n > 0 {
		r.open[p.Flight] = n // what is not ours to read keeps it open
	}
	if len(p.Jobs) > 0 {
		r.buffer = append(r.buffer, flight{p.Flight, p.Jobs})
		r.lastWork = r.process.Now()
	} else if len(p.Later) > 0 {
		again = true
	} else if !p.Next.IsZero() {
		r.schedule(p.Next.Sub(p.Now))
	}
	again = r.quarantines(p) || again
	strange, before := r.unknown(p.Open), r.strange
	r.strange = strange
	if strange != 0 && strange == before {
		r.resync("redis has a flight that is unknown here", nil)
		return false
	}
	return again || strange != 0
}

// quarantines takes in what a pop says of ids in quarantine, which ends the pop. It says whether to pop again at once.
// mu is held.
func (r *Runner) quarantines(p queue.Popped) (again bool) {
	switch {
	case p.Probation == queue.ProbationTaken && len(p.Jobs) > 0:
		r.quarantine = p.Flight
		return r.change(quarantineBegins)
	case p.Probation == queue.ProbationWait:
		// The slot stays: the id in quarantine is next. Acks that wait may be what it waits for.
		return r.change(toldToWait) || len(r.acks) > 0
	}
	again = r.change(popEnds)
	r.giveSlot()
	if p.Probation == queue.ProbationSlot {
		r.slot = r.process.Quarantine.take(r)
		again = again || r.slot && len(p.Jobs) == 0
	}
	return again
}

// unknown finds a flight that Redis has and this runner does not know, 0 if there is none.
// One answer proves nothing, because an ack may overtake it; two do. mu is held.
func (r *Runner) unknown(open []int64) (strange int64) {
	for _, number := range open {
		if _, known := r.open[number]; !known && !r.acking(number) && (strange == 0 || number < strange) {
			strange = number
		}
	}
	return strange
}

// acking reports whether acks of a flight may still be on their way. mu is held.
func (r *Runner) acking(number int64) bool {
	for _, a := range r.acks {
		if a.Flight == number {
			return true
		}
	}
	return r.flushing != nil
}
