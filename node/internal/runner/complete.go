package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// callHandler calls the handler for a batch, and applies its answer.
func (r *Runner) callHandler(batch *lowkiq.Batch, l *lane) {
	began := time.Now()
	start := l.clock.timeAt(began, r.process.Now)
	l.began.Store(int64(start))
	now := r.process.RedisTime(start)
	jobs := batch.Jobs // a handler may change its batch
	for i := range jobs {
		r.queue.Metrics.Wait.Observe(now.Sub(jobs[i].WaitingSince))
	}
	batch.NotesTo(&l.notes)
	answer, cause := r.caller.call(r.work, batch, l)
	reports, logs := verdict.Reports{Answers: batch.EndAnswers()}, map[string]string(nil)
	reports.Notes, logs = l.notes.endCall()
	batch.Jobs = jobs
	if answer == errNoLease { // the lease is lost for good, and the jobs go back with the release
		r.putBack(batch, l)
		r.Stop()
		return
	}
	took := time.Since(began)
	r.queue.Metrics.Handler.Observe(took)
	if reports.Answers != nil {
		answer = r.queue.rules().verdictRules().CheckAnswers(batch, reports.Answers, answer)
	}
	answer, stopped := r.addFollowUps(batch, &reports, answer)
	if cause == nil {
		cause = stopped
	}
	result := callResult{Reports: reports, popped: l.popped, began: now, took: took, logs: logs, place: l.place, jobs: len(jobs)}
	r.mu.Lock()
	r.state.pace.addCall(took, len(jobs))
	if answer == nil {
		r.queueAcks(batch.Flight, jobs, &result)
	}
	r.mu.Unlock()
	if answer == nil {
		return
	}
	byHand := errors.Is(cause, lowkiq.ErrCancelled)
	if cause != nil && !byHand && !errors.Is(cause, lowkiq.ErrTimeout) && !errors.Is(cause, lowkiq.ErrStuck) {
		r.ackStopped(batch, &result, answer)
		return
	}
	l.release()
	if by := l.canceller.reasons(); len(by) > 0 { // also if the call had reached its timeout before
		answer = verdict.Cancelled(batch.Jobs, answer, by, byHand)
	}
	r.applyAnswer(batch, l, &result, answer)
}

// lateEncoding is the time that the follow-ups of a batch have after the end of work. Jobs that are done by then still end.
const lateEncoding = time.Second

// addFollowUps adds the follow-ups of done jobs to the reports, before the ack stores both. It reads queues that this process
// has not opened yet from Redis, and tries again while Redis is out of reach. So an outage fails no job. stopped is the
// cause of the end of work if that has ended the attempts.
func (r *Runner) addFollowUps(batch *lowkiq.Batch, reports *verdict.Reports, answer error) (_, stopped error) {
	rules := r.queue.rules()
	if rules.Then.Done == "" && reports.Answers == nil { // as in most calls
		return answer, nil
	}
	ctx, cancel := context.WithCancelCause(r.process.IO)
	defer cancel(nil)
	defer context.AfterFunc(r.work, func() {
		time.AfterFunc(lateEncoding, func() { cancel(context.Cause(r.work)) })
	})()
	answer = rules.verdictRules().AddFollowUps(batch, reports, answer, func(hops int, all []lowkiq.FollowUp) (stored []protocol.FollowUp, err error) {
		if stopped != nil {
			return nil, stopped
		}
		var encode func(context.Context) ([]protocol.FollowUp, error)
		err = r.retryTransient(r.work, "read the queue of a follow-up", func() (err error) {
			encode, err = r.process.FollowUpEncoder(ctx, r.Shard.Queue, hops, all)
			return err
		})
		if err == nil {
			stored, err = verdict.Encode(ctx, encode)
		}
		if protocol.Transient(err) || ctx.Err() != nil {
			stopped = context.Cause(r.work)
		}
		return stored, err
	})
	return answer, stopped
}

// callResult describes a handler call that has ended, or a batch without a call.
type callResult struct {
	verdict.Reports
	popped time.Time         // time of the flight's pop, by Redis's clock
	began  time.Time         // time when the call began, by Redis's clock; zero without a call
	took   time.Duration     // duration of the call
	logs   map[string]string // by id: log lines of notes that were not sent
	place  int               // place of the batch's first job in its flight
	jobs   int               // number of jobs that follow each other in the flight from place on; 0 if they may not
}

// callInfo returns the part of a job's line in the journal that is about the call.
func (e *callResult) callInfo(job *lowkiq.Job) journal.Ran {
	return journal.Ran{Due: job.WaitingSince, Popped: e.popped, Began: e.began, Took: e.took, Log: e.logs[job.ID]}
}

// doneRun returns the run of a done job.
func (e *callResult) doneRun(job *lowkiq.Job) *journal.Run {
	return &journal.Run{ID: job.ID, Verdict: journal.Done, RetryCount: job.RetryCount, Ran: e.callInfo(job), Result: e.Answers[job.ID].Result}
}

// doneRuns returns the journal's lines of done jobs, as far as the rule keeps them.
func (e *callResult) doneRuns(rule *journal.Rule, jobs []lowkiq.Job) (lines journal.Block) {
	if !rule.KeepsSome(journal.Done) {
		return lines
	}
	for i := range jobs {
		if !rule.Keeps(journal.Done, jobs[i].ID) {
			lines.Add(nil)
			continue
		}
		lines.Add(e.doneRun(&jobs[i]))
	}
	if lines.Empty() {
		return journal.Block{}
	}
	return lines
}

// addRuns adds the runs of jobs to their nacks and burials, which are in the same order.
func (e *callResult) addRuns(all *verdict.Outcome, jobs []lowkiq.Job) {
	nacks, burials := all.Nacks, all.Burials
	for i := range jobs {
		switch id := jobs[i].ID; {
		case len(nacks) > 0 && nacks[0].ID == id:
			nacks[0].Ran, nacks = e.callInfo(&jobs[i]), nacks[1:]
		case len(burials) > 0 && burials[0].ID == id:
			burials[0].Ran, burials = e.callInfo(&jobs[i]), burials[1:]
		}
	}
}

// ackStopped queues the acks of jobs that a handler has done before it was told to stop. The other jobs go back
// with the release, without a retry.
func (r *Runner) ackStopped(batch *lowkiq.Batch, result *callResult, answer error) {
	if !verdict.NamesJobs(answer) {
		return
	}
	var done []lowkiq.Job
	for i, err := range verdict.PerJob(batch.Jobs, answer) {
		if err == nil {
			done = append(done, batch.Jobs[i])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queueAcks(batch.Flight, done, result)
}

// afterGoexit applies the failure of a handler that has ended its goroutine, and starts another lane. The shard is not
// released before that, because the lane that is gone still counts.
func (r *Runner) afterGoexit(batch *lowkiq.Batch, l *lane) {
	l.release()
	l.leaveRate()
	r.leaveGroups(l)
	if r.work.Err() == nil {
		began, answer := time.Duration(l.began.Load()), errors.New("handler called runtime.Goexit")
		if by := l.canceller.reasons(); by != nil {
			answer = verdict.Cancelled(batch.Jobs, answer, by, true)
		}
		r.applyAnswer(batch, l, &callResult{popped: l.popped, began: r.process.RedisTime(began), took: r.process.Now() - began}, answer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.endLane(l)
	if !r.state.isStopping() {
		r.startLane(r.runLane)
	}
}

// queueAcks queues the acks of done jobs, with the answers and runs that Redis stores. mu is held.
func (r *Runner) queueAcks(number int64, jobs []lowkiq.Job, result *callResult) {
	if len(jobs) == 0 {
		return
	}
	rules := r.queue.rules()
	r.publishDone(jobs, result)
	answers, runs, flights := result.Stored(jobs, max(0, rules.State)), result.doneRuns(&rules.ShardJournal, jobs), &r.state.flights
	if len(answers) > 0 || !runs.Empty() {
		flights.answered[number] = true
	}
	named := flights.answered[number]
	rest := r.state.closeJobs(number, len(jobs))
	place := -1
	if len(jobs) == result.jobs {
		place = result.place
	}
	r.acks.add(number, jobs, place, answers, runs, rest && !named)
}

// countAcks counts acks that Redis has.
func (r *Runner) countAcks(acks []protocol.Acks) {
	n := 0
	for _, a := range acks {
		n += len(a.IDs)
	}
	if n > 0 {
		r.queue.Metrics.Processed.Add(float64(n))
		r.process.OpDone("ack", r.Shard)
	}
}

// flushAcks sends acks that no pop took along in time. If the answer is lost, they are sent again. An ack changes nothing for
// an id that is no longer in the flight, so a repeated ack does no harm (I6).
func (r *Runner) flushAcks() {
	acks := r.acks.beginFlush()
	if len(acks) == 0 {
		return
	}
	defer r.acks.endFlush()
	_, err := r.claim.Ack(r.process.IO, acks...)
	switch {
	case err == nil:
		r.countAcks(acks)
		r.lookForWork(flightEnds)
	case errors.Is(err, lowkiq.ErrFenced):
		r.loseClaim("ack", err)
	default:
		r.process.OpFailed("ack", r.Shard, err)
		r.acks.putBack(acks)
	}
}

// applyAnswer applies the answer about a batch that did not succeed as a whole. If it calls hooks, the lane holds no
// resources afterwards.
func (r *Runner) applyAnswer(batch *lowkiq.Batch, l *lane, result *callResult, answer error) {
	answer = r.stopGroups(batch, answer)
	all := r.queue.decideOutcome(batch, answer)
	r.process.logFailure(batch, answer, all)
	r.mu.Lock()
	r.queueAcks(batch.Flight, all.Done, result)
	r.mu.Unlock()
	result.addRuns(&all, batch.Jobs)
	nacks, burials := all.Nacks, all.Burials
	r.awaited.addNacks(nacks, r.process.Now(), time.Duration(r.holdsAsked.Load()))
	ok := r.sendNacks(nacks) &&
		r.sendUntilDone("bury", len(burials), func(ctx context.Context) error { return errorOf(r.claim.Bury(ctx, burials...)) })
	if !ok {
		return
	}
	r.mu.Lock()
	for _, n := range nacks {
		if n.Kind == protocol.Hold {
			r.releaseAgain.Store(int64(r.process.Now()))
			continue
		}
		if n.Limited && n.Flight == r.state.quarantine.flight {
			r.state.quarantine.refuse(n.ID, r.process.Now(), n.Delay)
			continue // it is not scheduled, and the lane pops next
		}
		r.state.alarm.set(n.Delay)
	}
	r.mu.Unlock()
	r.queue.Metrics.Failed.Add(float64(len(all.Retries()) + len(all.Exhausted)))
	r.queue.Metrics.Retried.Add(float64(len(all.Retries())))
	r.queue.countPostponed(nacks)
	buried, _ := all.FailedForGood()
	r.queue.Metrics.Buried.Add(float64(len(buried)))
	r.queue.Metrics.Expired.Add(float64(all.Expired()))
	r.publishNotDone(nacks, burials)
	r.callHooks(l, all)
	r.mu.Lock()
	r.state.closeJobs(batch.Flight, len(nacks)+len(burials))
	r.state.due = r.state.due || len(burials) > 0 // payloads that a burial leaves are due at once
	r.mu.Unlock()
	// An id in quarantine may wait for the end of this flight, and a running pop may not have seen that end.
	r.lookForWork(flightEnds)
}

// countPostponed counts ids that go back without a failure.
func (q *Queue) countPostponed(nacks []protocol.Nack) {
	by := &q.Metrics.Postponed
	for i := range nacks {
		switch n := &nacks[i]; {
		case n.Kind == protocol.Hold || n.Cancelled:
			by.Person.Inc()
		case n.Kind == protocol.Postpone && (n.Limited || n.Group):
			by.Group.Inc()
		case n.Kind == protocol.Postpone:
			by.Handler.Inc()
		}
	}
}

// decideOutcome returns the outcome of a batch by the rules of the queue. If a function of the user panics, the panic is
// the failure, and the default rules decide. A panic of user code must not end the process.
func (q *Queue) decideOutcome(batch *lowkiq.Batch, answer error) (all verdict.Outcome) {
	defer func() {
		if value := recover(); value != nil {
			rules := q.rules().verdictRules()
			rules.RetryFunc, rules.FormatError = nil, error.Error
			all = verdict.Decide(rules, batch, &verdict.PanicError{Value: value, Stack: debug.Stack()})
		}
	}()
	return verdict.Decide(q.rules().verdictRules(), batch, answer)
}

// The kinds of lines in the log about failures of handlers.
const (
	batchFailed   = "batch failed"
	jobsBuried    = "jobs buried"
	jobsBlocked   = "jobs blocked"
	handlerPanics = "handler panicked"
)

// logFailure logs the outcome of a batch that did not succeed.
func (p *Process) logFailure(batch *lowkiq.Batch, answer error, all verdict.Outcome) {
	var panicked *verdict.PanicError
	if errors.As(answer, &panicked) {
		if left, ok := p.MayLog(batch.Shard.Queue, handlerPanics); ok {
			p.Log.Error(handlerPanics, "shard", batch.Shard, "flight", batch.Flight, "panic", fmt.Sprint(panicked.Value),
				"stack", string(panicked.Stack), "left_out", left)
		}
	}
	if failed := all.Retries(); len(failed) > 0 {
		p.warnFailure(batchFailed, batch, len(failed), failed[0].ID, failed[0].Error)
	}
	buried, blocked := all.FailedForGood()
	if len(buried) > 0 {
		p.warnFailure(jobsBuried, batch, len(buried), buried[0].ID, buried[0].Error)
	}
	if len(blocked) > 0 {
		p.warnFailure(jobsBlocked, batch, len(blocked), blocked[0].ID, blocked[0].Error)
	}
}

func (p *Process) warnFailure(kind string, batch *lowkiq.Batch, jobs int, id, text string) {
	if left, ok := p.MayLog(batch.Shard.Queue, kind); ok {
		p.Log.Warn(kind, "shard", batch.Shard, "flight", batch.Flight, "jobs", jobs, "of", len(batch.Jobs),
			"id", id, "err", protocol.Summary(text), "left_out", left)
	}
}

// takeOut applies the failures of some jobs, and takes these jobs out of their batch. It returns whether jobs are left. The
// remaining jobs may not follow each other in their flight. If takeOut calls hooks, the lane holds no resources afterwards.
func (r *Runner) takeOut(gone lowkiq.Failed, batch *lowkiq.Batch, l *lane) bool {
	if len(gone) == 0 {
		return true
	}
	part := *batch
	part.Jobs = nil
	left := make([]lowkiq.Job, 0, len(batch.Jobs))
	for _, job := range batch.Jobs {
		if gone[job.ID] != nil {
			part.Jobs = append(part.Jobs, job)
		} else {
			left = append(left, job)
		}
	}
	r.applyAnswer(&part, l, &callResult{popped: l.popped}, gone)
	batch.Jobs, l.place = left, noPlace
	r.mu.Lock()
	defer r.mu.Unlock()
	l.ids = slices.Grow(l.ids[:0], len(left))
	for i := range left {
		l.ids = append(l.ids, left[i].ID)
	}
	return len(left) > 0
}
