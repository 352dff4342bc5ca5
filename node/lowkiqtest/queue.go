// Package lowkiqtest answers one question: does a handler do what it should when jobs fail, merge, come
// late, or come twice? It has a queue without Redis and without a clock of its own. Pushed jobs wait until
// [Queue.Drain] handles the due jobs. [Queue.Advance] lets time pass. [Queue.Crash] and [Queue.Lose] cause
// events that are rare in production.
//
//	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{MaxRetryCount: 3}})
//	q.Push(ctx, lowkiq.Push{ID: "order-1", Payload: []byte(`{"n":1}`)})
//	q.Drain(ctx, handler)
//
// Lowkiq's own tests compare the scripts of Redis with this queue, which decides with the code of a node. So
// middlewares, codec, batches, retries, merges, coalescing and debouncing, expiry, holds, quarantine, the
// morgue, follow-ups ([Queue.FollowUps]) and groups that handlers hold back ([lowkiq.Throttle]) work as in
// production. One handler runs at a time, so a limit of calls at once has no effect.
//
// Not included are rates, Redis, nodes, schedules of more than one shard, and the causes [lowkiq.ErrTimeout],
// [lowkiq.ErrStuck] and [lowkiq.ErrCancelled].
package lowkiqtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Queue is a queue with a single shard in memory. Several goroutines may call its methods, and so may the
// handler that Drain calls. One handler runs at a time.
type Queue struct {
	t       testing.TB
	rules   node.QueueConfig
	decider verdict.Rules
	push    queue.Pusher

	mu    sync.Mutex
	shard *model.Shard // guarded by mu
	last  int64        // last default score, in µs; guarded by mu
	calls int          // guarded by mu
	fence int64        // guarded by mu
	lose  bool         // the next answer of a handler is lost; guarded by mu

	holds []rules.Hold      // guarded by mu
	held  *rules.Held       // from holds; guarded by mu
	then  []lowkiq.FollowUp // guarded by mu
	stops map[string]int64  // by group: end of a handler's stop, in µs; guarded by mu
}

// Start is the time of a new queue's clock.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// New returns an empty queue with these rules, as [node.Node.Handle] takes them. The name may be left out. Invalid rules
// end the test. Without a rule or function for it, the next attempt is due after n^4 + 15 + 15 * (n+1) seconds, where n
// is 0 after the first failure in a row. This is the mean of the default of production, which has a random part.
func New(t testing.TB, cfg node.QueueConfig) *Queue {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg.RetryFunc == nil && cfg.RetryIn.IsZero() {
		cfg.RetryFunc = func(n int) time.Duration {
			return time.Duration(min(math.Pow(float64(n), 4)+15+15*float64(n+1), 1e9)) * time.Second
		}
	}
	cfg = cfg.WithDefaults()
	cfg.OnExhausted, cfg.OnBuried = verdict.DecodedHook(cfg.Codec.Decode, cfg.OnExhausted), verdict.DecodedHook(cfg.Codec.Decode, cfg.OnBuried)
	q := &Queue{t: t, rules: cfg, shard: model.NewShard(cfg.Payloads, cfg.IDPayload), fence: 1, stops: map[string]int64{}}
	q.shard.Coalesce, q.shard.Debounce = cfg.Coalesce, cfg.Debounce
	q.decider = verdict.Rules{Rules: cfg.Rules, RetryFunc: cfg.RetryFunc, FormatError: error.Error, Encode: cfg.Codec.Encode, Decode: cfg.Codec.Decode}
	q.shard.Now = Start.UnixMicro()
	q.push = q.storeJobs
	for _, m := range slices.Backward(cfg.PushMiddlewares) {
		q.push = m(cfg.Name, q.push)
	}
	return q
}

// Push stores jobs as [queue.Queue.Push] does.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]queue.Result, error) {
	return q.push(ctx, jobs)
}

// Call pushes a job as [queue.Client.Call] does, but does not wait. reply returns at any time how the payload has ended, or
// [lowkiq.ReplyPending] if it has not. A payload ends in a [Queue.Drain]. Replies are kept without end.
func (q *Queue) Call(ctx context.Context, job lowkiq.Push) (reply func() lowkiq.Reply, err error) {
	q.mu.Lock()
	q.calls++
	token := fmt.Sprintf("call-%d", q.calls)
	q.mu.Unlock()
	job.ReplyTo = envelope.Address(token, time.Minute, "test")
	if _, err := q.push(ctx, []lowkiq.Push{job}); err != nil {
		return nil, err
	}
	return func() lowkiq.Reply { return q.readReply(job.ID, token) }, nil
}

func (q *Queue) readReply(id, token string) lowkiq.Reply {
	q.mu.Lock()
	defer q.mu.Unlock()
	reply := lowkiq.Reply{ID: id, Token: token, State: lowkiq.ReplyPending}
	told, ok := q.shard.Replies[token]
	if !ok {
		return reply
	}
	if err := envelope.ReadReply(&reply, told.Text, q.rules.Codec.Decode); err != nil {
		q.t.Errorf("lowkiqtest: %v", err)
	}
	return reply
}

// storeJobs stores jobs after all middlewares for pushes.
func (q *Queue) storeJobs(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs = slices.Clone(jobs)
	results := make([]queue.Result, len(jobs))
	refused, full := map[string]error{}, map[string]error{} // by id: a payload could not be encoded; too many payloads or bytes wait
	for i := range jobs {
		if encode := q.rules.Codec.Encode; encode != nil {
			var err error
			if cause := refused[jobs[i].ID]; cause != nil {
				results[i].Err = fmt.Errorf("%w: %w", queue.ErrUnsent, cause)
				continue
			}
			if jobs[i].Payload, err = encode(jobs[i].Payload); err != nil {
				results[i].Err = fmt.Errorf("job %q: encode: %w", jobs[i].ID, err)
				refused[jobs[i].ID] = results[i].Err
				continue
			}
		}
		job := &envelope.All(jobs[i : i+1])[0]
		if results[i].Err = envelope.Check(job, q.rules.PayloadBytes, q.rules.IDPayload); results[i].Err == nil {
			results[i] = q.addJob(job, full)
		}
	}
	q.shard.ForgetPushes()
	for i := range results {
		if results[i].Err != nil {
			return results, results[i].Err
		}
	}
	return results, nil
}

// addJob stores a job. full has the ids with too many payloads or bytes. The caller holds q.mu.
func (q *Queue) addJob(job *lowkiq.Push, full map[string]error) (result queue.Result) {
	p := model.Payload{Data: string(job.Payload)}
	if job.Score != nil {
		p.Score = *job.Score
	} else {
		q.last = max(q.last+1, q.shard.Now)
		p.Score = float64(q.last) / 1e6
	}
	at := int64(0)
	if !job.PerformAt.IsZero() {
		at = job.PerformAt.UnixMicro()
	} else if job.Urgent {
		at = model.Undelayed
	}
	ready := len(q.shard.Ready)
	verdict := q.shard.PushPayload(job.ID, p, at, full[job.ID] != nil)
	if job.Urgent && (verdict == model.Stored || verdict == model.Merged) {
		q.shard.MakeUrgent(ready, job.ID)
	}
	switch verdict {
	case model.Merged:
		result.Merged = true
	case model.TooMany:
		result.Err = fmt.Errorf("job %q: %w: %d is the limit", job.ID, queue.ErrTooManyPayloads, q.rules.Payloads)
	case model.TooManyByte:
		result.Err = fmt.Errorf("job %q: %w: %d is the limit", job.ID, queue.ErrTooManyBytes, q.rules.IDPayload)
	case model.Unsent:
		return queue.Result{Err: fmt.Errorf("%w: %w", queue.ErrUnsent, full[job.ID])}
	}
	if result.Err != nil {
		full[job.ID] = result.Err
	}
	return result
}

// Now returns the time of the queue's clock.
func (q *Queue) Now() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.UnixMicro(q.shard.Now)
}

// Advance lets time pass. Holds end whose time is over, and the morgue is trimmed by the rules. No job is handled before the
// next Drain, which also drops or buries payloads that have expired.
func (q *Queue) Advance(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shard.Now += max(0, d.Microseconds())
	q.shard.TrimMorgue(q.rules.Morgue.Keep, q.rules.Morgue.For)
	now := time.UnixMicro(q.shard.Now)
	q.setHolds(slices.DeleteFunc(q.holds, func(h rules.Hold) bool { return !h.Until.IsZero() && !now.Before(h.Until) }))
}

// Hold keeps an id, or all ids with a prefix, from handlers until its Until, or until [Queue.Unhold]. Pushed payloads wait in
// order meanwhile. An invalid hold ends the test.
func (q *Queue) Hold(h rules.Hold) {
	q.t.Helper()
	if err := h.Check(); err != nil {
		q.t.Fatal(err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setHolds(append(q.holdsWithout(h), h))
}

// Unhold ends the hold of the same id or prefix. The held ids are due now. If there is no such hold, the test ends.
func (q *Queue) Unhold(h rules.Hold) {
	q.t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.holdsWithout(h)
	if len(left) == len(q.holds) {
		q.t.Fatalf("lowkiqtest: nobody holds %s", &h)
	}
	q.setHolds(left)
}

// holdsWithout returns the holds without the hold of the same id or prefix. The caller holds q.mu.
func (q *Queue) holdsWithout(h rules.Hold) (left []rules.Hold) {
	return slices.DeleteFunc(slices.Clone(q.holds), func(one rules.Hold) bool { return one.ID == h.ID && one.Prefix == h.Prefix })
}

// setHolds replaces all holds. The caller holds q.mu.
func (q *Queue) setHolds(all []rules.Hold) {
	q.holds, q.held = all, rules.NewHeld(all)
	q.shard.ReleaseHeld(q.held.Holds)
}

// Waiting returns the job of an id that waits for a handler, or for a person after its retries. ok is false if no payload of
// the id waits. While the id is in a handler call, the job has the payloads that were pushed meanwhile. A job that a
// Drain has found held is due at [protocol.HeldAt].
func (q *Queue) Waiting(id string) (job lowkiq.Job, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	found := q.shard.Waiting[id]
	if found == nil {
		found = q.shard.Parked[id]
	}
	if found == nil {
		return lowkiq.Job{}, false
	}
	return q.newJob(id, found), true
}

// Morgue returns the jobs in the morgue, in order of burial.
func (q *Queue) Morgue() (dead []lowkiq.Job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range q.shard.DeadInOrder() {
		dead = append(dead, q.newJob(id, q.shard.Morgue[id]))
	}
	return dead
}

// newJob returns a job as a node would give it to a handler. The caller holds q.mu.
func (q *Queue) newJob(id string, of *model.Job) lowkiq.Job {
	job := lowkiq.Job{ID: id, PerformAt: time.UnixMicro(of.At), WaitingSince: time.UnixMicro(of.WaitsSince()), RetryCount: of.Retry, Error: of.Err}
	for _, stored := range of.InOrder() {
		p := lowkiq.Payload{Score: stored.Score}
		called, err := packed.Open(string([]byte(stored.Data)), &p) // a copy, because a handler may change it
		if err != nil {
			q.t.Fatalf("job %q: %v", id, err)
		}
		if called {
			job.Callers++
		}
		job.Payloads = append(job.Payloads, p)
	}
	return job
}

// errCrash is the panic that Crash raises to leave a handler.
var errCrash = errors.New("the process died")

// Crash ends the handler that calls it, as the death of its process would. It does not return. The jobs of the handler come
// again, each alone at first, because it may have killed the process. A job that has done so MaxCrashes times is
// buried. Only the goroutine of the handler may call Crash.
func (q *Queue) Crash() { panic(errCrash) }

// Lose loses the answer of the handler that runs, or of the next handler. Its process dies after its work, and before the queue
// has the answer. So the jobs come again, which a handler must bear.
func (q *Queue) Lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lose = true
}

// Run is a call of the handler.
type Run struct {
	At    time.Time // by the queue's clock
	Batch *lowkiq.Batch
	Err   error // error or panic of the handler
	Died  bool  // the queue has no answer, because of Crash or Lose
}

// maxRuns is the maximum number of calls of a Drain. A handler that needs more makes work for itself.
const maxRuns = 100_000

// Drain calls the handler, wrapped in the middlewares of the rules, until no job is due by the queue's clock. It returns the
// calls. It also handles jobs that the handler pushes. When ctx ends, it returns early.
func (q *Queue) Drain(ctx context.Context, handler lowkiq.Handler) (runs []Run) {
	q.t.Helper()
	for _, m := range slices.Backward(q.rules.Middlewares) {
		handler = m(handler)
	}
	if decode := q.rules.Codec.Decode; decode != nil {
		handler = verdict.Decoded(decode, handler)
	}
	for ctx.Err() == nil {
		batch := q.popBatch()
		if batch == nil {
			return runs
		}
		if !q.admitJobs(batch) {
			continue
		}
		if len(runs) == maxRuns {
			q.t.Fatalf("lowkiqtest: %d handler calls, and jobs are still due, the next one %q: does the handler push or postpone what it handles?", maxRuns, batch.Jobs[0].ID)
		}
		run := Run{At: q.Now(), Batch: batch}
		run.Err, run.Died = callHandler(ctx, handler, batch)
		q.endRun(&run)
		runs = append(runs, run)
	}
	return runs
}

// popBatch takes the next batch, or returns nil if no job is due.
func (q *Queue) popBatch() *lowkiq.Batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids, _ := q.shard.PopIDs(q.batchLen(), false, true, q.nextSuspect())
	if len(ids) == 0 {
		return nil
	}
	var jobs []lowkiq.Job
	for _, id := range ids {
		job := q.newJob(id, q.shard.InFlight[id])
		if state := q.shard.States[id]; state != nil && q.decider.State != 0 {
			job.State = []byte(state.Data)
		}
		jobs = append(jobs, job)
	}
	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: q.rules.Name}, q.fence, q.shard.PopNumber, jobs)
	batch.NotesTo(lowkiq.NoteFunc(func(_ context.Context, b *lowkiq.Batch, id string, note lowkiq.Note) error {
		return q.storeNote(b.Flight, id, note)
	}))
	return batch
}

// nextSuspect puts the first id in quarantine whose group does not hold it back before the others. It returns false if there
// is no such id. The caller holds q.mu.
func (q *Queue) nextSuspect() bool {
	all, now := q.shard.Suspects, q.shard.Now
	i := slices.IndexFunc(all, func(id string) bool {
		return q.stops[q.decider.Groups.Of(id)] <= now || q.held.Holds(id) ||
			len(q.decider.Late([]lowkiq.Job{q.newJob(id, q.shard.Waiting[id])}, time.UnixMicro(now))) > 0
	})
	if i > 0 {
		q.shard.Suspects = slices.Concat(all[i:], all[:i])
	}
	return i >= 0
}

// batchLen returns how many ready jobs make the next batch. A job that has failed goes alone.
func (q *Queue) batchLen() int {
	n := 0
	line, passed := q.shard.Line()
	for i, id := range line {
		job := q.shard.Waiting[id]
		switch {
		case passed(i) || job == nil:
			continue
		case model.FailedJob(job):
			return max(1, n)
		}
		if n++; n == q.rules.BatchSize {
			break
		}
	}
	return max(1, n)
}

// admitJobs takes jobs out of a batch that must not begin. In the order of a node, it puts back held jobs, ends expired payloads,
// and puts back jobs of stopped groups. It returns whether jobs are left.
func (q *Queue) admitJobs(batch *lowkiq.Batch) bool {
	q.takeJobs(batch, func(job *lowkiq.Job) bool {
		if !q.held.Holds(job.ID) {
			return false
		}
		q.shard.NackJob(protocol.Nack{Flight: batch.Flight, ID: job.ID, Kind: protocol.Hold})
		return true
	})
	q.mu.Lock()
	late := q.decider.Late(batch.Jobs, time.UnixMicro(q.shard.Now))
	q.mu.Unlock()
	gone := *batch
	if gone.Jobs = q.takeJobs(batch, func(job *lowkiq.Job) bool { return late[job.ID] != nil }); len(gone.Jobs) > 0 {
		all := verdict.Decide(&q.decider, &gone, late)
		q.applyOutcome(gone.Shard, &all)
	}
	q.takeJobs(batch, func(job *lowkiq.Job) bool {
		wait := q.stops[q.decider.Groups.Of(job.ID)] - q.shard.Now
		if wait <= 0 {
			return false
		}
		q.shard.NackJob(protocol.Nack{Flight: batch.Flight, ID: job.ID, Kind: protocol.Postpone, RetryCount: job.RetryCount,
			Delay: time.Duration(wait) * time.Microsecond, Limited: true})
		return true
	})
	return len(batch.Jobs) > 0
}

// takeJobs removes from a batch the jobs that satisfy goes, and returns them. goes is called with q.mu held.
func (q *Queue) takeJobs(batch *lowkiq.Batch, goes func(*lowkiq.Job) bool) (gone []lowkiq.Job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var left []lowkiq.Job
	for i := range batch.Jobs {
		if goes(&batch.Jobs[i]) {
			gone = append(gone, batch.Jobs[i])
		} else {
			left = append(left, batch.Jobs[i])
		}
	}
	batch.Jobs = left
	return gone
}

// storeNote implements [lowkiq.Batch.Note].
func (q *Queue) storeNote(flight int64, id string, note lowkiq.Note) error {
	if err := q.decider.EncodeNote(&note); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.shard.AddNote(protocol.Note{Flight: flight, ID: id, Note: note}) {
		return fmt.Errorf("job %q: %w", id, lowkiq.ErrNote)
	}
	return nil
}

func callHandler(ctx context.Context, handler lowkiq.Handler, batch *lowkiq.Batch) (err error, died bool) {
	defer func() {
		switch value := recover(); {
		case value == error(errCrash):
			died = true
		case value != nil:
			err = &verdict.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	mine := *batch // a handler may change the slice of jobs
	mine.Jobs = slices.Clone(batch.Jobs)
	return handler.Handle(ctx, &mine), false
}

// endRun applies the answer of a run, or recovers the jobs if there is no answer.
func (q *Queue) endRun(run *Run) {
	q.mu.Lock()
	if run.Died = run.Died || q.lose; run.Died {
		q.lose = false
		q.shard.MaxCrashes = max(0, q.rules.MaxCrashes)
		q.shard.RecoverFlights(protocol.Seize)
		q.fence++
		q.mu.Unlock()
		return
	}
	reports := verdict.Reports{Answers: run.Batch.EndAnswers()}
	if reports.Answers != nil {
		run.Err = q.decider.CheckAnswers(run.Batch, reports.Answers, run.Err)
	}
	run.Err = q.decider.AddFollowUps(run.Batch, &reports, run.Err, checkFollowUps)
	stops, answer := verdict.StopGroups(q.decider.Groups, run.Batch.Jobs, run.Err)
	for group, d := range stops {
		q.stops[group] = max(q.stops[group], q.shard.Now+d.Microseconds())
	}
	all := verdict.Decide(&q.decider, run.Batch, answer)
	acks := protocol.Acks{Flight: run.Batch.Flight, Answers: reports.Stored(all.Done, max(0, q.rules.State))}
	for _, job := range all.Done {
		acks.IDs = append(acks.IDs, job.ID)
		q.then = append(q.then, reports.Answers[job.ID].Then...)
		q.passOn(q.rules.Then.Done, job, "done", nil)
	}
	q.shard.AckJobs([]protocol.Acks{acks})
	q.mu.Unlock()
	q.applyOutcome(run.Batch.Shard, &all)
}

// FollowUps returns the follow-ups of all ended jobs, in the order of their ends. The handler and the rule then have made
// them. Nothing delivers them.
func (q *Queue) FollowUps() []lowkiq.FollowUp {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.then)
}

// checkFollowUps refuses follow-ups that a node would refuse. It knows no other queues.
func checkFollowUps(hops int, all []lowkiq.FollowUp) (stored []protocol.FollowUp, err error) {
	if hops >= lowkiq.MaxHops {
		return nil, protocol.ErrHops
	}
	for _, one := range all {
		push := envelope.All([]lowkiq.Push{one.Push})[0]
		if err := errors.Join(protocol.CheckName("queue", one.Queue), protocol.CheckNotReserved(one.Queue), envelope.Check(&push, lowkiq.MaxPayloadBytes, lowkiq.MaxIDPayload)); err != nil {
			return nil, fmt.Errorf("%w: %w", protocol.ErrFollowUp, err)
		}
		stored = append(stored, protocol.FollowUp{Queue: one.Queue, ID: push.ID, Payload: push.Payload})
	}
	return stored, nil
}

// passOn adds the follow-ups by the rule then for the payloads of a job. mu is held.
func (q *Queue) passOn(to string, job lowkiq.Job, ended string, why error) {
	if to == "" {
		return
	}
	text := ""
	if why != nil {
		text = why.Error()
	}
	for _, p := range job.Payloads {
		one, err := verdict.PassOn(to, job.ID, p, q.decider.Decode, map[string]string{"ended": ended, "error": text})
		if err != nil {
			q.t.Errorf("rule then: %v", err)
			continue
		}
		q.then = append(q.then, one)
	}
}

// applyOutcome puts back and buries jobs as decided, and calls the hooks.
func (q *Queue) applyOutcome(shard lowkiq.Shard, all *verdict.Outcome) {
	q.mu.Lock()
	for _, n := range all.Nacks {
		q.shard.NackJob(n)
	}
	for _, b := range all.Burials {
		q.shard.BuryJob(b)
	}
	for _, e := range all.Buried {
		q.passOn(q.rules.Then.Dead, e.Job, "buried", e.Err)
	}
	q.mu.Unlock()
	for _, told := range []struct {
		hook lowkiq.Hook
		kind lowkiq.EventKind
		jobs []lowkiq.Ended
	}{{q.rules.OnExhausted, lowkiq.Exhausted, all.Exhausted}, {q.rules.OnBuried, lowkiq.Buried, all.Buried}} {
		if told.hook == nil || len(told.jobs) == 0 {
			continue
		}
		if err := told.hook(context.Background(), &lowkiq.Event{Kind: told.kind, Shard: shard, Jobs: told.jobs}); err != nil {
			q.t.Errorf("hook: %v", err)
		}
	}
}
