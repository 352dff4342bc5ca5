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

// pop fills the buffer. It says whether it is worth to try again at once.
func (r *Runner) pop() (again bool) {
	r.mu.Lock()
	req := queue.PopRequest{IDs: r.size(), Bytes: popBytes, MaxCrashes: max(0, r.queue.Rules.MaxCrashes), Slot: r.slot}
	r.mu.Unlock()
	for wait := NewBackoff(); ; {
		req.Acks = append(req.Acks, r.takeAcks()...)
		popped, err := r.claim.Pop(r.process.IO, req)
		if err == nil {
			r.process.Worked("pop", r.Shard)
			r.acknowledged(req.Acks)
			return r.popped(popped)
		}
		if errors.Is(err, lowkiq.ErrFenced) {
			r.lose("pop", err)
			return false
		}
		if !queue.Transient(err) && r.process.IO.Err() == nil {
			r.returnAcks(req.Acks)
			r.process.Trouble("pop", r.Shard, err)
			r.stray("pop", err)
			return false
		}
		// Nobody knows whether it was executed: the same number again, by the same rules.
		r.process.Trouble("pop", r.Shard, err)
		if r.stops() || wait.Sleep(r.work) != nil {
			r.returnAcks(req.Acks)
			return false
		}
	}
}

func (r *Runner) stops() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopping
}

// popped takes in the answer to a pop.
func (r *Runner) popped(p queue.Popped) (again bool) {
	r.process.SawRedisTime(p.Now)
	if len(p.Damaged) > 0 {
		r.process.Log.Error("records that cannot be read were set aside: lowkiq-node check counts them", "shard", r.Shard, "ids", p.Damaged)
	}
	if len(p.Later) > 0 {
		r.process.Trouble("read", r.Shard, fmt.Errorf("shard %s: ids %q are stored in a form of a later release: they stay in flight, untouched, until a node of that release has the shard", r.Shard, p.Later))
	}
	again, estranged := r.takeIn(p)
	if estranged {
		r.stray("redis has a flight that nobody here knows", nil)
	}
	return again && !estranged
}

func (r *Runner) takeIn(p queue.Popped) (again, estranged bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.more = p.Ready > 0
	if n := len(p.Jobs) + len(p.Later); n > 0 {
		r.open[p.Flight] = n // what is not ours to read keeps it open
	}
	if len(p.Jobs) > 0 {
		r.buffer = append(r.buffer, flight{p.Flight, p.Jobs})
		r.lastWork = r.process.Now()
		r.alone = p.Probation == queue.ProbationTaken
	} else if len(p.Later) > 0 {
		again = true
	} else if !p.Next.IsZero() {
		r.schedule(p.Next.Sub(p.Now))
	}
	strange := r.unknown(p.Open)
	estranged = strange != 0 && strange == r.strange
	r.strange = strange
	return r.probated(p) || again || strange != 0, estranged
}

// probated takes in what a pop says of ids on probation. It says whether to pop again at
// once. mu is held.
func (r *Runner) probated(p queue.Popped) (again bool) {
	r.blocked = p.Probation == queue.ProbationWait
	if !r.alone && !r.blocked {
		// While the shard's open flights end, the slot stays: the id on probation is next.
		r.giveSlot()
	}
	if p.Probation == queue.ProbationSlot {
		r.slot = r.process.Quarantine.take(r)
		return r.slot && len(p.Jobs) == 0
	}
	return r.blocked && len(r.acks) > 0 // these may be what it waits for
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
