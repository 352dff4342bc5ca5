package runner

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// handle calls the handler for one batch and settles its jobs.
func (r *Runner) handle(batch *lowkiq.Batch, t *turn) {
	began := time.Now()
	start := t.clock.at(began, r.process.Now)
	t.began.Store(int64(start))
	now := r.process.RedisTime(start)
	jobs := batch.Jobs // a handler may cut its batch to pieces
	for i := range jobs {
		r.queue.Metrics.Wait.Observe(now.Sub(jobs[i].WaitingSince))
	}
	batch.NotesTo(&t.notes)
	answer, cause := r.caller.call(r.work, batch, t)
	t.called = true
	said, logs := Spoken{Answers: batch.EndAnswers()}, map[string]string(nil)
	said.Noted, logs = t.notes.end()
	batch.Jobs = jobs
	if answer == errNoLease { // for good: its jobs go back with the release
		r.unstart(batch, t)
		r.Stop()
		return
	}
	took := time.Since(began)
	r.queue.Metrics.Handler.Observe(took)
	if said.Answers != nil {
		answer = r.queue.rules().Objections(batch, said.Answers, answer)
	}
	end := ended{Spoken: said, popped: t.popped, began: now, took: took, logs: logs, place: t.place, jobs: len(jobs)}
	r.mu.Lock()
	r.state.pace.took(took, len(jobs))
	if answer == nil {
		r.done(batch.Flight, jobs, &end)
	}
	r.mu.Unlock()
	if answer == nil {
		return
	}
	byHand := errors.Is(cause, lowkiq.ErrCancelled)
	if cause != nil && !byHand && !errors.Is(cause, lowkiq.ErrTimeout) && !errors.Is(cause, lowkiq.ErrStuck) {
		r.stopped(batch, &end, answer)
		return
	}
	t.give()
	if by := t.ends.take(); len(by) > 0 { // also of a call that was out of time by then
		answer = cancelled(batch.Jobs, answer, by, byHand)
	}
	r.settle(batch, t, &end, answer)
}

// ended is a handler call that has ended, or could not begin.
type ended struct {
	Spoken
	popped time.Time         // when its flight was, by Redis's clock
	began  time.Time         // by Redis's clock; zero: it did not
	took   time.Duration     // how long it was
	logs   map[string]string // by id: lines of notes that were not sent
	place  int               // of the batch's first job in its flight
	jobs   int               // of the batch, which came one after the other in their flight; 0: it is not known which
}

// ran is what the journal gets of it for a job.
func (e *ended) ran(job *lowkiq.Job) journal.Ran {
	return journal.Ran{Due: job.WaitingSince, Popped: e.popped, Began: e.began, Took: e.took, Log: e.logs[job.ID]}
}

// done is the run of a job that is done.
func (e *ended) done(job *lowkiq.Job) *journal.Run {
	return &journal.Run{ID: job.ID, Verdict: journal.Done, RetryCount: job.RetryCount, Ran: e.ran(job), Result: e.Answers[job.ID].Result}
}

// runs are the lines of jobs that are done; nil if they get none.
func (e *ended) runs(rule *journal.Rule, jobs []lowkiq.Job) (lines journal.Block) {
	if !rule.KeepsSome(journal.Done) {
		return lines
	}
	for i := range jobs {
		if !rule.Keeps(journal.Done, jobs[i].ID) {
			lines.Add(nil)
			continue
		}
		lines.Add(e.done(&jobs[i]))
	}
	if lines.Empty() {
		return journal.Block{}
	}
	return lines
}

// tell adds what the journal gets to the verdicts on jobs, which are in their order.
func (e *ended) tell(all *Outcome, jobs []lowkiq.Job) {
	nacks, burials := all.Nacks, all.Burials
	for i := range jobs {
		switch id := jobs[i].ID; {
		case len(nacks) > 0 && nacks[0].ID == id:
			nacks[0].Ran, nacks = e.ran(&jobs[i]), nacks[1:]
		case len(burials) > 0 && burials[0].ID == id:
			burials[0].Ran, burials = e.ran(&jobs[i]), burials[1:]
		}
	}
}

// stopped deals with a batch whose handler was told to stop. What is in flight goes back
// with the release, no retry spent; what the handler says it has done is done.
func (r *Runner) stopped(batch *lowkiq.Batch, end *ended, answer error) {
	if failed, _ := named(answer); failed == nil {
		return
	}
	var done []lowkiq.Job
	for i, err := range perJob(batch.Jobs, answer) {
		if err == nil {
			done = append(done, batch.Jobs[i])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done(batch.Flight, done, end)
}

// exited settles the batch of a handler that ended its goroutine, and replaces the lane.
func (r *Runner) exited(batch *lowkiq.Batch, t *turn) {
	t.give()
	t.unpace()
	r.leaveGroups(t)
	if r.work.Err() == nil {
		began, answer := time.Duration(t.began.Load()), errors.New("handler called runtime.Goexit")
		if by := t.ends.take(); by != nil {
			answer = cancelled(batch.Jobs, answer, by, true)
		}
		r.settle(batch, t, &ended{popped: t.popped, began: r.process.RedisTime(began), took: r.process.Now() - began}, answer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.endLane(t)
	if !r.state.stops() {
		r.start(r.lane)
	}
}

// done queues the acks of jobs that are done, if any are, with what their handler has said of them and
// what the journal gets. mu is held.
func (r *Runner) done(number int64, jobs []lowkiq.Job, end *ended) {
	if len(jobs) == 0 {
		return
	}
	rules := r.queue.rules()
	r.tellDone(jobs, end)
	answers, runs, flights := rules.Answers(jobs, end.Spoken), end.runs(&rules.Journal, jobs), &r.state.flights
	if len(answers) > 0 || !runs.Empty() {
		flights.said[number] = true
	}
	named := flights.said[number]
	rest := r.state.close(number, len(jobs))
	place := -1
	if len(jobs) == end.jobs {
		place = end.place
	}
	r.acks.add(number, jobs, place, answers, runs, rest && !named)
}

// acknowledged counts acks that Redis has taken.
func (r *Runner) acknowledged(acks []queue.Acks) {
	n := 0
	for _, a := range acks {
		n += len(a.IDs)
	}
	if n > 0 {
		r.queue.Metrics.Processed.Add(float64(n))
		r.process.OpDone("ack", r.Shard)
	}
}

// flushAcks sends acks that no pop took along in time.
func (r *Runner) flushAcks() {
	acks := r.acks.beginFlush()
	if len(acks) == 0 {
		return
	}
	defer r.acks.endFlush()
	_, err := r.claim.Ack(r.process.IO, acks...)
	switch {
	case err == nil:
		r.acknowledged(acks)
		r.look(flightEnds)
	case errors.Is(err, lowkiq.ErrFenced):
		r.lose("ack", err)
	default:
		r.process.OpFailed("ack", r.Shard, err)
		r.acks.putBack(acks)
	}
}

// settle deals with a batch that did not succeed as a whole. The lane whose turn it is holds nothing any more if it has called hooks.
func (r *Runner) settle(batch *lowkiq.Batch, t *turn, end *ended, answer error) {
	answer = r.stopGroups(batch, answer)
	all := r.queue.verdicts(batch, answer)
	r.process.logFailure(batch, answer, all)
	r.mu.Lock()
	r.done(batch.Flight, all.Done, end)
	r.mu.Unlock()
	end.tell(&all, batch.Jobs)
	nacks, burials := all.Nacks, all.Burials
	r.awaited.add(nacks, r.process.Now(), time.Duration(r.asked.Load()))
	ok := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) }) &&
		r.send("bury", len(burials), func(ctx context.Context) error { return second(r.claim.Bury(ctx, burials...)) })
	if !ok {
		return
	}
	r.mu.Lock()
	for _, n := range nacks {
		if n.Kind == queue.Hold {
			r.lookAt.Store(int64(r.process.Now()))
			continue
		}
		r.state.alarm.set(n.Delay)
	}
	r.mu.Unlock()
	r.queue.Metrics.Failed.Add(float64(len(all.retries()) + len(all.Exhausted)))
	r.queue.Metrics.Retried.Add(float64(len(all.retries())))
	r.queue.postponed(nacks)
	buried, _ := all.failedForGood()
	r.queue.Metrics.Buried.Add(float64(len(buried)))
	r.queue.Metrics.Expired.Add(float64(all.expired()))
	r.tellNotDone(nacks, burials)
	r.callHooks(t, all)
	r.mu.Lock()
	r.state.close(batch.Flight, len(nacks)+len(burials))
	r.state.due = r.state.due || len(burials) > 0 // what a burial leaves is due at once
	r.mu.Unlock()
	// An id in quarantine may wait for this flight's end, and a pop that is on its way may not have
	// seen it.
	r.look(flightEnds)
}

// postponed counts ids that were put off without a failure.
func (q *Queue) postponed(nacks []queue.Nack) {
	by := &q.Metrics.Postponed
	for i := range nacks {
		switch n := &nacks[i]; {
		case n.Kind == queue.Hold || n.Cancelled:
			by.Person.Inc()
		case n.Kind == queue.Postpone && (n.Limited || n.Group):
			by.Group.Inc()
		case n.Kind == queue.Postpone:
			by.Handler.Inc()
		}
	}
}

// verdicts decides with the user's rules. If these panic, the failure says so, and the default
// rules decide: a panic of user code must not end the process.
func (q *Queue) verdicts(batch *lowkiq.Batch, answer error) (all Outcome) {
	defer func() {
		if value := recover(); value != nil {
			rules := *q.rules()
			rules.RetryIn, rules.FormatError = DefaultRetryIn, error.Error
			all = Decide(&rules, batch, &PanicError{value, debug.Stack()})
		}
	}()
	return Decide(q.rules(), batch, answer)
}

// The kinds of lines that the log has of handlers that fail.
const (
	batchFailed   = "batch failed"
	jobsBuried    = "jobs buried"
	jobsBlocked   = "jobs blocked"
	handlerPanics = "handler panicked"
)

// logFailure tells what became of a batch that did not succeed.
func (p *Process) logFailure(batch *lowkiq.Batch, answer error, all Outcome) {
	var panicked *PanicError
	if errors.As(answer, &panicked) {
		if left, ok := p.MayLog(batch.Shard.Queue, handlerPanics); ok {
			p.Log.Error(handlerPanics, "shard", batch.Shard, "flight", batch.Flight, "panic", panicked.Value,
				"stack", string(panicked.Stack), "left_out", left)
		}
	}
	if failed := all.retries(); len(failed) > 0 {
		p.warnFailure(batchFailed, batch, len(failed), failed[0].ID, failed[0].Error)
	}
	buried, blocked := all.failedForGood()
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
			"id", id, "err", queue.Summary(text), "left_out", left)
	}
}

// without settles some jobs of a batch. It reports whether others are left: these did not come one after the other, and the lane may hold
// nothing any more that their call needs.
func (r *Runner) without(gone lowkiq.Failed, batch *lowkiq.Batch, t *turn) bool {
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
	r.settle(&part, t, &ended{popped: t.popped}, gone)
	batch.Jobs, t.place = left, noPlace
	r.mu.Lock()
	defer r.mu.Unlock()
	t.ids = slices.Grow(t.ids[:0], len(left))
	for i := range left {
		t.ids = append(t.ids, left[i].ID)
	}
	return len(left) > 0
}
