package runner

import (
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// minBacklogRefusals is the number of successive ids of a shard that must be refused before waiting jobs of full groups go
// back together.
const minBacklogRefusals = 8

// groupRetryPause is the pause of a lane after a question about groups has failed.
const groupRetryPause = 100 * time.Millisecond

// maxGrantAge is how long a lane keeps the grants of its ids without a call. Grants of a rate that are used later would come
// on top of the next grants, and other lanes can use grants of calls at once.
const maxGrantAge = 50 * time.Millisecond

// admitGroups takes jobs out of a batch that their groups do not let begin. It returns whether jobs are left, and whether it
// has asked Redis, or has called hooks.
func (r *Runner) admitGroups(batch *lowkiq.Batch, l *lane) (left, asked bool) {
	if r.queue.rules().Groups.By == "" || l.groups != nil {
		return true, false
	}
	if wait := r.quarantineWait(batch); wait > 0 {
		return r.takeOut(lowkiq.Failed{batch.Jobs[0].ID: &verdict.AtLimit{Wait: wait}}, batch, l), true
	}
	l.admitted = r.process.Now()
	answers, err := r.queue.Limits.MayBegin(l.ids)
	decision := verdict.Admit(answers)
	l.groups = decision.Groups
	switch {
	case err != nil:
		r.process.OpFailed("ask for groups", r.Shard, err)
		l.release()
		select {
		case <-time.After(groupRetryPause):
		case <-r.work.Done():
		}
		r.putBack(batch, l)
		return false, true
	case len(answers) == 0: // no id has a group
		return true, false
	}
	r.process.OpDone("ask for groups", r.Shard)
	r.mu.Lock()
	if r.state.refusals += decision.New; decision.Passed {
		r.state.refusals = 0
	}
	r.mu.Unlock()
	return r.takeOut(decision.Refused, batch, l), true
}

// quarantineWait returns the time until the id of a batch may ask its group again, if the id is in quarantine and its group
// has refused it. Otherwise it returns 0 or less.
func (r *Runner) quarantineWait(batch *lowkiq.Batch) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	if s.phase != quarantined || batch.Flight != s.quarantine.flight {
		return 0
	}
	return s.quarantine.refused[batch.Jobs[0].ID] - r.process.Now()
}

// keepGroupsWaiting lets a lane keep the grants of its ids while it waits for resources, until maxGrantAge is over. The lane
// must call stop after the wait.
func (r *Runner) keepGroupsWaiting(l *lane) (stop func()) {
	if l.groups == nil {
		return func() {}
	}
	left := make(chan struct{})
	timer := time.AfterFunc(l.admitted+maxGrantAge-r.process.Now(), func() {
		r.leaveGroups(l)
		close(left)
	})
	return func() {
		if !timer.Stop() {
			<-left
		}
	}
}

// leaveGroups reports to the groups of a lane that the call has ended, or that no call begins.
func (r *Runner) leaveGroups(l *lane) {
	if l.groups == nil {
		return
	}
	took := time.Duration(0)
	if began := l.began.Load(); began != 0 {
		took = r.process.Now() - time.Duration(began)
	}
	r.queue.Limits.EndCalls(l.groups, took)
	l.groups = nil
}

// stopGroups stops groups that a handler's answer holds back. It returns what the answer means for the jobs of the batch,
// such as a postponement of the jobs of a stopped group.
func (r *Runner) stopGroups(batch *lowkiq.Batch, answer error) error {
	stops, answer := verdict.StopGroups(r.queue.rules().Groups, batch.Jobs, answer)
	for group, d := range stops {
		r.queue.Limits.StopGroup(group, d)
	}
	return answer
}

// returnBacklog returns waiting jobs of full groups to Redis together. It returns whether there were such jobs. Otherwise a
// backlog of a full group would pass through the lanes batch by batch, and ids of other groups behind it would wait.
//
// Ids that were told when to ask again stay for lanes, because it may be their turn. If groups have a rate, no id goes
// back, because a grant of the rate is used at once, or never.
//
// The caller holds mu, which is released during the request.
func (r *Runner) returnBacklog() bool {
	s, of := &r.state, r.queue.rules()
	if !s.hasBacklog(of) || s.phase == quarantined {
		return false
	}
	waits := s.flights.countJobs()
	parts := s.flights.removeMatching(protocol.GroupsAtOnce, func(id string) bool {
		return r.queue.Limits.RefusesID(id) && !of.Held.Holds(id)
	})
	if 2*len(parts) < waits {
		s.refusals = 0
	}
	if len(parts) == 0 {
		return false
	}
	r.mu.Unlock()
	nacks, left := r.askAboutBacklog(parts)
	sent := len(nacks) > 0 && r.sendNacks(nacks)
	if sent {
		r.queue.countPostponed(nacks)
	}
	r.mu.Lock()
	s.flights.waiting = append(left, s.flights.waiting...)
	if sent {
		for i := range nacks {
			s.alarm.set(nacks[i].Delay)
			s.closeJobs(nacks[i].Flight, 1)
		}
		s.change(flightEnds) // an id in quarantine may wait for the end of a flight
	}
	return true
}

// askAboutBacklog asks when jobs may begin. It returns nacks for jobs that must wait. Jobs that may begin now are left for
// lanes, which ask again once they have resources for a call.
func (r *Runner) askAboutBacklog(parts []flight) (nacks []protocol.Nack, left []flight) {
	ids := make([]string, len(parts))
	for i := range parts {
		ids[i] = parts[i].jobs[0].ID
	}
	answers, err := r.queue.Limits.MayBeginLater(ids)
	if err != nil {
		return nil, parts
	}
	waits := map[string]time.Duration{}
	for _, a := range answers {
		waits[a.ID] = a.Wait
	}
	for _, part := range parts {
		job := &part.jobs[0]
		if wait := waits[job.ID]; wait > 0 {
			nacks = append(nacks, (&verdict.AtLimit{Wait: wait}).Nack(part.number, job))
		} else {
			left = append(left, part)
		}
	}
	return nacks, left
}

// unknownRule stands for the rule groups while ids of a shard may wait by several rules. It differs from every rule.
const unknownRule = "?"

// maxPutOff is how long a group puts off an id at most.
const maxPutOff = time.Hour

// regrouped describes the last regrouping of a shard, which makes all ids due that their groups have put off.
type regrouped struct {
	rule  string
	at    time.Duration // time after the regrouping, by Now
	pause time.Duration // until the next regrouping; 0 if no id waits by another rule any more
}

// Regroup is a regrouping that the caller of ShouldRegroup carries out.
type Regroup struct {
	Store string // rule of the ids that wait afterwards, to store for the shard's next owner
	rule  string
	pause time.Duration // until the next regrouping
}

// ShouldRegroup reports whether the caller should make due the ids of the shard that groups have put off, and then call
// MarkRegrouped. That is so after a change of the rule groups, and again after one ttl, two ttls, four and so on, as
// long as an id may still wait by an old rule. In that time nodes with an older configuration may use the old rule,
// and their questions may put off ids of all nodes.
func (r *Runner) ShouldRegroup(ttl time.Duration) (todo Regroup, now bool) {
	rule, was := r.queue.rules().Groups.Rule(), r.regrouped.Load()
	if rule != was.rule {
		return Regroup{Store: unknownRule, rule: rule, pause: ttl}, true
	}
	todo = Regroup{Store: unknownRule, rule: rule, pause: 2 * was.pause}
	if todo.pause > maxPutOff {
		todo = Regroup{Store: rule, rule: rule}
	}
	return todo, was.pause > 0 && r.process.Now()-was.at >= was.pause
}

// MarkRegrouped records that ids were made due.
func (r *Runner) MarkRegrouped(done Regroup) {
	r.mu.Lock()
	r.state.quarantine.forgetRefusals()
	r.mu.Unlock()
	r.regrouped.Store(&regrouped{done.rule, r.process.Now(), done.pause})
}

// askRate asks whether the batch may begin by the queue's rate. If not, the lane holds no resources afterwards, and must
// prepare the call again.
func (r *Runner) askRate(batch *lowkiq.Batch, l *lane) (may bool) {
	may, again := r.queue.Limits.TakeRate(r.process.Work, len(batch.Jobs))
	l.refused = !may
	l.leaveRate()
	if l.refused {
		l.release()
		if r.process.Now()-l.admitted+again > maxGrantAge {
			r.leaveGroups(l)
		}
	}
	return may
}

// leaveRate lets the next lane of the queue prepare a call.
func (l *lane) leaveRate() {
	if l.atRate {
		l.atRate = false
		l.queue.Limits.LeaveRate()
	}
}
