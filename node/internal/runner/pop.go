package runner

import (
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// maxPopBytes is the maximum size of the payloads of a pop.
const maxPopBytes = 1 << 20

// maxPopStates is the maximum number of jobs in a pop with states, because each state may have lowkiq.MaxStateBytes. A
// batch may have more jobs.
const maxPopStates = 64

// popForLane pops jobs for a lane, which holds no resources meanwhile. It returns whether to pop again at once. mu is
// held, and released during the request.
func (r *Runner) popForLane(l *lane) (again bool) {
	s := &r.state
	s.change(popBegins)
	rules := r.queue.rules()
	req := protocol.PopRequest{
		IDs: s.pace.idsToPop(rules, s.idleLanes()), Bytes: maxPopBytes, MaxCrashes: max(0, rules.MaxCrashes), Slot: s.quarantine.has,
		States: rules.State != 0, NoSuspect: s.alarm.now() < s.quarantine.pause,
	}
	if s.hasBacklog(rules) {
		req.IDs = max(req.IDs, rules.Prefetch) // most of these ids go back at once; see returnBacklog
	}
	if rules.Limit.Rate.N > 0 {
		req.IDs = min(req.IDs, rules.BatchSize) // ids that the rate holds back wait in Redis
	}
	if req.States {
		req.IDs = min(req.IDs, max(rules.BatchSize, maxPopStates))
	}
	r.mu.Unlock()
	l.release()
	popped, answered := r.popUntilAnswered(req)
	r.mu.Lock()
	if !answered {
		return s.change(popEnds)
	}
	if req.NoSuspect {
		s.alarm.set(s.quarantine.pause - s.alarm.now())
	}
	again, mismatch := s.takeIn(popped, &r.acks)
	if mismatch {
		r.requestReclaim("redis has a flight that is unknown here", nil)
	}
	return again
}

// popUntilAnswered asks Redis for the next flight, with all waiting acks. It repeats the request until it has an answer.
// answered is false if the runner stops first, or if Redis refuses the pop.
func (r *Runner) popUntilAnswered(req protocol.PopRequest) (p protocol.Popped, answered bool) {
	for wait := NewBackoff(); ; {
		req.Acks = append(req.Acks, r.acks.takeAll()...)
		p, err := r.claim.Pop(r.process.IO, req)
		switch {
		case err == nil:
			r.process.OpDone("pop", r.Shard)
			r.countAcks(req.Acks)
			r.process.reportPop(r.Shard, p)
			return p, true
		case errors.Is(err, lowkiq.ErrFenced):
			r.loseClaim("pop", err)
			return p, false
		}
		r.process.OpFailed("pop", r.Shard, err)
		if !protocol.Transient(err) && r.process.IO.Err() == nil {
			r.acks.putBack(req.Acks)
			r.mu.Lock()
			r.requestReclaim("pop", err)
			r.mu.Unlock()
			return p, false
		}
		// Redis may have carried out the pop. So the next request has the same number and asks for the same.
		if r.isStopping() || wait.Sleep(r.work) != nil {
			r.acks.putBack(req.Acks)
			return p, false
		}
	}
}

// isStopping reports whether no further pop begins.
func (r *Runner) isStopping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.isStopping()
}

// reportPop records the time of Redis's clock in a pop's answer, and reports jobs that cannot be handled.
func (p *Process) reportPop(s lowkiq.Shard, answer protocol.Popped) {
	p.SetRedisTime(answer.Now)
	if len(answer.Damaged) > 0 {
		p.Log.Error("damaged records were set aside; lowkiq-node check counts them", "shard", s, "ids", answer.Damaged)
	}
	if len(answer.Later) > 0 {
		p.OpFailed("read", s, fmt.Errorf("shard %s: ids %q are stored in a form of a later release; they stay in flight until a node of that release has the shard", s, answer.Later))
	}
}
