// Package lowkiqtest answers one question: does a handler do what it should when jobs fail, merge, come
// late, or come twice? It is a queue without Redis and without a clock of its own: what is pushed waits,
// [Queue.Drain] handles what is due, [Queue.Advance] lets time go by, and [Queue.Crash] and
// [Queue.Lose] let happen what production does seldom.
//
//	q := lowkiqtest.New(t, node.QueueConfig{MaxRetryCount: 3})
//	q.Push(ctx, lowkiq.Push{ID: "order-1", Payload: []byte(`{"n":1}`)})
//	q.Drain(ctx, handler)
//
// It is the model that lowkiq's own tests hold the scripts of Redis against, and it decides with the
// code of a node: middlewares, codec, batches, retries, merges, coalescing and debouncing, expiry, holds,
// quarantine and morgue are those of production, and so are groups that handlers hold back
// ([lowkiq.Limit]). One handler runs at a time, so a limit of calls at once has no meaning here; nor does
// it know rates. What else it has no part of: Redis and nodes, [lowkiq.ErrTimeout], [lowkiq.ErrStuck] and
// [lowkiq.ErrCancelled], and schedules of more than one shard.
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
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Queue is a queue of one shard in memory. Its methods may be called by several goroutines, and by
// the handler that Drain calls; of the handlers one runs at a time.
type Queue struct {
	t       testing.TB
	rules   node.QueueConfig
	decider runner.Rules
	push    queue.Pusher

	mu    sync.Mutex
	shard *model.Shard // guarded by mu
	last  int64        // default score, us; guarded by mu
	calls int          // guarded by mu
	fence int64        // guarded by mu
	lose  bool         // the next answer of a handler is lost; guarded by mu

	holds []rules.Hold     // guarded by mu
	held  *rules.Held      // the same; guarded by mu
	stops map[string]int64 // until when no job of a group begins, us, as a handler has said; guarded by mu
}

// Start is the time by a new queue's clock.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// New is an empty queue with these rules, as [node.Node.Handle] takes them; the name may be left out. A
// mistake in them ends the test. Unless they say otherwise, the next attempt is due after
// n^4 + 15 + 15 * (n+1) seconds, n being 0 after the first failure in a row: the default without its random part, whose mean is the same.
func New(t testing.TB, cfg node.QueueConfig) *Queue {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg.RetryIn == nil {
		cfg.RetryIn = func(n int) time.Duration {
			return time.Duration(min(math.Pow(float64(n), 4)+15+15*float64(n+1), 1e9)) * time.Second
		}
	}
	cfg = cfg.WithDefaults()
	limits := queue.Limits{PayloadBytes: cfg.Push.PayloadBytes, Payloads: cfg.Push.Payloads, IDPayload: cfg.Push.IDPayload}.Effective()
	cfg.Push.PayloadBytes, cfg.Push.Payloads, cfg.Push.IDPayload = limits.PayloadBytes, limits.Payloads, limits.IDPayload
	q := &Queue{t: t, rules: cfg, shard: model.NewShard(limits.Payloads, limits.IDPayload), fence: 1, stops: map[string]int64{}}
	q.shard.Coalesce, q.shard.Debounce = cfg.Push.Coalesce, cfg.Push.Debounce.WithDefaults()
	q.decider = runner.Rules{MaxRetryCount: cfg.MaxRetryCount, Exhausted: cfg.Exhausted, RetryIn: cfg.RetryIn, FormatError: error.Error,
		States: cfg.State != 0, StateFor: max(0, cfg.State), Encode: cfg.Push.Codec.Encode, Expire: cfg.Expire, Groups: cfg.Groups}
	q.shard.Now = Start.UnixMicro()
	q.push = q.store
	for _, m := range slices.Backward(cfg.Push.Middlewares) {
		q.push = m(cfg.Name, q.push)
	}
	return q
}

// Push stores jobs as [queue.Queue.Push] does.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]queue.Result, error) {
	return q.push(ctx, jobs)
}

// Call pushes a job as [queue.Client.Call] does, and does not wait: reply says at any time how its
// payload has ended, which it does in a [Queue.Drain]; [lowkiq.ReplyPending] until then. Replies are kept
// for ever.
func (q *Queue) Call(ctx context.Context, job lowkiq.Push) (reply func() lowkiq.Reply, err error) {
	q.mu.Lock()
	q.calls++
	token := fmt.Sprintf("call-%d", q.calls)
	q.mu.Unlock()
	job.ReplyTo = envelope.Address(token, time.Minute, "test")
	if _, err := q.push(ctx, []lowkiq.Push{job}); err != nil {
		return nil, err
	}
	return func() lowkiq.Reply { return q.reply(job.ID, token) }, nil
}

func (q *Queue) reply(id, token string) lowkiq.Reply {
	q.mu.Lock()
	defer q.mu.Unlock()
	reply := lowkiq.Reply{ID: id, Token: token, State: lowkiq.ReplyPending}
	told, ok := q.shard.Replies[token]
	if !ok {
		return reply
	}
	if err := envelope.ReadReply(&reply, told.Text, q.rules.Push.Codec.Decode); err != nil {
		q.t.Errorf("lowkiqtest: %v", err)
	}
	return reply
}

// store is the end of a push's way.
func (q *Queue) store(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs = slices.Clone(jobs)
	results := make([]queue.Result, len(jobs))
	refused, full := map[string]error{}, map[string]error{} // ids: one payload could not be encoded; too much waits
	for i := range jobs {
		if encode := q.rules.Push.Codec.Encode; encode != nil {
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
		if results[i].Err = envelope.Check(job, q.rules.Push.PayloadBytes, q.rules.Push.IDPayload); results[i].Err == nil {
			results[i] = q.add(job, full)
		}
	}
	q.shard.Forget()
	for i := range results {
		if results[i].Err != nil {
			return results, results[i].Err
		}
	}
	return results, nil
}

// add stores one job. The caller holds q.mu.
func (q *Queue) add(job *lowkiq.Push, full map[string]error) (result queue.Result) {
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
	}
	switch q.shard.Push(job.ID, p, at, full[job.ID] != nil) {
	case model.Merged:
		result.Merged = true
	case model.TooMany:
		result.Err = fmt.Errorf("job %q: %w: %d is the limit", job.ID, queue.ErrTooManyPayloads, q.rules.Push.Payloads)
	case model.TooManyByte:
		result.Err = fmt.Errorf("job %q: %w: %d is the limit", job.ID, queue.ErrTooManyBytes, q.rules.Push.IDPayload)
	case model.Unsent:
		return queue.Result{Err: fmt.Errorf("%w: %w", queue.ErrUnsent, full[job.ID])}
	}
	if result.Err != nil {
		full[job.ID] = result.Err
	}
	return result
}

// Now is the time by the queue's clock.
func (q *Queue) Now() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.UnixMicro(q.shard.Now)
}

// Advance lets time go by: holds end whose time is over, and the morgue is kept within the bounds of the rules. Nothing is
// handled before the next Drain; what has expired by then is dropped or buried in it.
func (q *Queue) Advance(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shard.Now += max(0, d.Microseconds())
	q.shard.TrimMorgue(q.rules.Morgue.Keep, q.rules.Morgue.For)
	now := time.UnixMicro(q.shard.Now)
	q.hold(slices.DeleteFunc(q.holds, func(h rules.Hold) bool { return !h.Until.IsZero() && !now.Before(h.Until) }))
}

// Hold keeps an id, or all ids with a prefix, from handlers, until its Until or an [Queue.Unhold]: what is pushed piles up in
// order. A mistake in it ends the test.
func (q *Queue) Hold(h rules.Hold) {
	q.t.Helper()
	if err := h.Check(); err != nil {
		q.t.Fatal(err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(append(q.without(h), h))
}

// Unhold undoes the hold of the same id or prefix: what it held is due now. If there is none, the test ends.
func (q *Queue) Unhold(h rules.Hold) {
	q.t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.without(h)
	if len(left) == len(q.holds) {
		q.t.Fatalf("lowkiqtest: nobody holds %s", &h)
	}
	q.hold(left)
}

// without are the holds of other ids. The caller holds q.mu.
func (q *Queue) without(h rules.Hold) (left []rules.Hold) {
	return slices.DeleteFunc(slices.Clone(q.holds), func(one rules.Hold) bool { return one.ID == h.ID && one.Prefix == h.Prefix })
}

// hold puts these holds in force, and no others. The caller holds q.mu.
func (q *Queue) hold(all []rules.Hold) {
	q.holds, q.held = all, rules.NewHeld(all)
	q.shard.Release(q.held.Holds)
}

// Waiting is the job of an id that waits for a handler, or for a person after its retries; ok is false if
// nothing of it waits. While the id is being handled, it is what was pushed meanwhile. One that a Drain has found held is due
// at [queue.HeldAt].
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
	return q.job(id, found), true
}

// Morgue are the jobs that are not tried again, those buried first before the others.
func (q *Queue) Morgue() (dead []lowkiq.Job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range q.shard.DeadInOrder() {
		dead = append(dead, q.job(id, q.shard.Morgue[id]))
	}
	return dead
}

// job is a job as a node would give it. The caller holds q.mu.
func (q *Queue) job(id string, of *model.Job) lowkiq.Job {
	job := lowkiq.Job{ID: id, PerformAt: time.UnixMicro(of.At), WaitingSince: time.UnixMicro(of.WaitsSince()), RetryCount: of.Retry, Error: of.Err}
	for _, stored := range of.InOrder() {
		p := lowkiq.Payload{Score: stored.Score}
		called, err := packed.Open(string([]byte(stored.Data)), &p) // a copy: a handler may write to it
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

// errCrash and errEnd are how a crash leaves a handler.
var errCrash = errors.New("the process died")

// Crash ends the handler that calls it as the death of its process would: it does not return, and what
// the handler had comes again, on its own at first, as it may be what killed the process. A job that has
// done so MaxCrashes times is buried. It may be called by the goroutine of the handler alone.
func (q *Queue) Crash() { panic(errCrash) }

// Lose loses the answer of the handler that runs, or of the next one: what it did is done, its process
// dies before the queue knows, and the jobs come again. A handler must bear that.
func (q *Queue) Lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lose = true
}

// Run is one call of a handler.
type Run struct {
	At    time.Time // by the queue's clock
	Batch *lowkiq.Batch
	Err   error // what the handler returned; a panic of it is one, too
	Died  bool  // the queue has no answer: of a Crash or a Lose
}

// mostRuns is how many calls a Drain makes at most: then the handler makes work for itself.
const mostRuns = 100_000

// Drain calls the handler, within the middlewares of the rules, until nothing is due by the queue's
// clock, and returns the calls. It also handles what they push. When ctx ends it returns early.
func (q *Queue) Drain(ctx context.Context, handler lowkiq.Handler) (runs []Run) {
	q.t.Helper()
	for _, m := range slices.Backward(q.rules.Middlewares) {
		handler = m(handler)
	}
	if decode := q.rules.Push.Codec.Decode; decode != nil {
		handler = runner.Decoded(decode, handler)
	}
	for ctx.Err() == nil {
		batch := q.pop()
		if batch == nil {
			return runs
		}
		if !q.admit(batch) {
			continue
		}
		if len(runs) == mostRuns {
			q.t.Fatalf("lowkiqtest: %d handler calls, and jobs are still due, the next one %q: does the handler push or postpone what it handles?", mostRuns, batch.Jobs[0].ID)
		}
		run := Run{At: q.Now(), Batch: batch}
		run.Err, run.Died = call(ctx, handler, batch)
		q.end(&run)
		runs = append(runs, run)
	}
	return runs
}

// pop takes the next batch, nil if nothing is due.
func (q *Queue) pop() *lowkiq.Batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids, _ := q.shard.Take(q.rules.BatchSize, false, true)
	if len(ids) == 0 {
		return nil
	}
	var jobs []lowkiq.Job
	for _, id := range ids {
		job := q.job(id, q.shard.Flying[id])
		if state := q.shard.States[id]; state != nil && q.decider.States {
			job.State = []byte(state.Data)
		}
		jobs = append(jobs, job)
	}
	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: q.rules.Name}, q.fence, q.shard.Pop, jobs)
	batch.NotesTo(lowkiq.NoteFunc(func(_ context.Context, b *lowkiq.Batch, id string, note lowkiq.Note) error {
		return q.note(b.Flight, id, note)
	}))
	return batch
}

// admit puts back what of a batch is held, or whose group is, and ends what has expired. It reports whether anything is left.
func (q *Queue) admit(batch *lowkiq.Batch) bool {
	q.mu.Lock()
	now, left := q.shard.Now, []lowkiq.Job(nil)
	for _, job := range batch.Jobs {
		wait := q.stops[q.decider.Groups.Of(job.ID)] - now
		switch {
		case q.held.Holds(job.ID):
			q.shard.Nack(queue.Nack{Flight: batch.Flight, ID: job.ID, Kind: queue.Hold})
		case wait > 0:
			q.shard.Nack(queue.Nack{Flight: batch.Flight, ID: job.ID, Kind: queue.Postpone, RetryCount: job.RetryCount,
				Delay: time.Duration(wait) * time.Microsecond, Limited: true})
		default:
			left = append(left, job)
		}
	}
	gone := q.decider.Late(left, time.UnixMicro(now))
	q.mu.Unlock()
	late := *batch
	late.Jobs, batch.Jobs = nil, nil
	for _, job := range left {
		if gone[job.ID] != nil {
			late.Jobs = append(late.Jobs, job)
		} else {
			batch.Jobs = append(batch.Jobs, job)
		}
	}
	if len(gone) > 0 {
		all := runner.Decide(&q.decider, &late, gone)
		q.settle(late.Shard, &all)
	}
	return len(batch.Jobs) > 0
}

// note is [lowkiq.Batch.Note].
func (q *Queue) note(flight int64, id string, note lowkiq.Note) error {
	if err := q.decider.Keepable(&note); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.shard.Note(queue.Note{Flight: flight, ID: id, Note: note}) {
		return fmt.Errorf("job %q: %w", id, lowkiq.ErrNote)
	}
	return nil
}

func call(ctx context.Context, handler lowkiq.Handler, batch *lowkiq.Batch) (err error, died bool) {
	defer func() {
		switch value := recover(); {
		case value == error(errCrash):
			died = true
		case value != nil:
			err = &runner.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	mine := *batch // a handler may change the slice of jobs
	mine.Jobs = slices.Clone(batch.Jobs)
	return handler.Handle(ctx, &mine), false
}

// end does what the answer says, or what follows from there being none.
func (q *Queue) end(run *Run) {
	q.mu.Lock()
	if run.Died = run.Died || q.lose; run.Died {
		q.lose = false
		q.shard.MaxCrashes = max(0, q.rules.MaxCrashes)
		q.shard.Recover(queue.Seize)
		q.fence++
		q.mu.Unlock()
		return
	}
	said := runner.Spoken{Answers: run.Batch.EndAnswers()}
	if said.Answers != nil {
		run.Err = q.decider.Objections(run.Batch, said.Answers, run.Err)
	}
	stops, answer := q.decider.StopGroups(run.Batch.Jobs, run.Err)
	for group, d := range stops {
		q.stops[group] = max(q.stops[group], q.shard.Now+d.Microseconds())
	}
	all := runner.Decide(&q.decider, run.Batch, answer)
	acks := queue.Acks{Flight: run.Batch.Flight, Answers: q.decider.Answers(all.Done, said)}
	for _, job := range all.Done {
		acks.IDs = append(acks.IDs, job.ID)
	}
	q.shard.AckAll([]queue.Acks{acks})
	q.mu.Unlock()
	q.settle(run.Batch.Shard, &all)
}

// settle puts back and buries what was decided, and tells the hooks.
func (q *Queue) settle(shard lowkiq.Shard, all *runner.Outcome) {
	q.mu.Lock()
	for _, n := range all.Nacks {
		q.shard.Nack(n)
	}
	for _, b := range all.Burials {
		q.shard.Bury(b)
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
