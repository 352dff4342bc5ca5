package runner

import (
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// popBytes is the most bytes of payloads in one pop.
const popBytes = 1 << 20

// popStates is how many jobs come in a pop with states, unless a batch has more: each may bring
// lowkiq.MaxStateBytes.
const popStates = 64

// fetch has a lane pop. It says whether to pop again at once. mu is held, and let go meanwhile.
func (r *Runner) fetch(t *turn) (again bool) {
	s := &r.state
	s.change(popBegins)
	company := 0
	if t.called && s.pace.slow() {
		r.mu.Unlock()
		t.give()
		company = r.process.company.gather()
		r.mu.Lock()
		if s.stops() || r.work.Err() != nil {
			return s.change(popEnds)
		}
	}
	rules := r.queue.rules()
	req := queue.PopRequest{
		IDs: s.pace.ids(rules, s.able()), Bytes: popBytes, MaxCrashes: max(0, rules.MaxCrashes), Slot: s.quarantine.has,
		Company: company, States: rules.States,
	}
	if s.backlog(rules) {
		req.IDs = max(req.IDs, rules.Prefetch) // most of it goes back at once
	}
	if rules.Limit.Rate.N > 0 {
		req.IDs = min(req.IDs, rules.BatchSize) // what has to wait waits in Redis
	}
	if req.States {
		req.IDs = min(req.IDs, max(rules.BatchSize, popStates))
	}
	r.mu.Unlock()
	t.give()
	popped, answered := r.pop(req)
	r.mu.Lock()
	if !answered {
		return s.change(popEnds)
	}
	again, mismatch := s.takeIn(popped, &r.acks)
	if mismatch {
		r.resync("redis has a flight that is unknown here", nil)
	}
	return again
}

// pop asks Redis for the next flight, and repeats that until there is an answer or the runner ends.
func (r *Runner) pop(req queue.PopRequest) (p queue.Popped, answered bool) {
	for wait := NewBackoff(); ; {
		req.Acks = append(req.Acks, r.acks.take()...)
		p, err := r.claim.Pop(r.process.IO, req)
		switch {
		case err == nil:
			r.process.OpDone("pop", r.Shard)
			r.acknowledged(req.Acks)
			r.process.popped(r.Shard, p)
			return p, true
		case errors.Is(err, lowkiq.ErrFenced):
			r.lose("pop", err)
			return p, false
		}
		r.process.OpFailed("pop", r.Shard, err)
		if !queue.Transient(err) && r.process.IO.Err() == nil {
			r.acks.putBack(req.Acks)
			r.mu.Lock()
			r.resync("pop", err)
			r.mu.Unlock()
			return p, false
		}
		// It may have been executed: the same number again, by the same rules.
		if r.ends() || wait.Sleep(r.work) != nil {
			r.acks.putBack(req.Acks)
			return p, false
		}
	}
}

func (r *Runner) ends() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.stops()
}

// popped tells what an answer says of Redis's clock, and of records that are not handled.
func (p *Process) popped(s lowkiq.Shard, answer queue.Popped) {
	p.SawRedisTime(answer.Now)
	if len(answer.Damaged) > 0 {
		p.Log.Error("records that cannot be read were set aside: lowkiq-node check counts them", "shard", s, "ids", answer.Damaged)
	}
	if len(answer.Later) > 0 {
		p.OpFailed("read", s, fmt.Errorf("shard %s: ids %q are stored in a form of a later release: they stay in flight, untouched, until a node of that release has the shard", s, answer.Later))
	}
}
