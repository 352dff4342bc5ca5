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
// code of a node: middlewares, codec, batches, retries, merges, quarantine and morgue are those of
// production. What it has no part of: Redis and nodes, several calls at once, [lowkiq.ErrTimeout], and
// schedules of more than one shard.
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
}

// Start is the time by a new queue's clock.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// New is an empty queue with these rules, as [node.Node.Handle] takes them; the name may be left out. A
// mistake in them ends the test. Unless they say otherwise, attempt number n+1 is due after
// n^4 + 15 + 15 * (n+1) seconds: the default without its random part, whose mean is the same.
func New(t testing.TB, rules node.QueueConfig) *Queue {
	t.Helper()
	if rules.Name == "" {
		rules.Name = "test"
	}
	if err := rules.Validate(); err != nil {
		t.Fatal(err)
	}
	if rules.RetryIn == nil {
		rules.RetryIn = func(n int) time.Duration {
			return time.Duration(min(math.Pow(float64(n), 4)+15+15*float64(n+1), 1e9)) * time.Second
		}
	}
	rules = rules.WithDefaults()
	limits := queue.Limits{PayloadBytes: rules.Push.PayloadBytes, Payloads: rules.Push.Payloads, IDPayload: rules.Push.IDPayload}.Effective()
	rules.Push.PayloadBytes, rules.Push.Payloads, rules.Push.IDPayload = limits.PayloadBytes, limits.Payloads, limits.IDPayload
	q := &Queue{t: t, rules: rules, shard: model.NewShard(limits.Payloads, limits.IDPayload), fence: 1}
	q.shard.Coalesce = rules.Push.Coalesce
	q.decider = runner.Rules{MaxRetryCount: rules.MaxRetryCount, Exhausted: rules.Exhausted, RetryIn: rules.RetryIn, FormatError: error.Error,
		States: rules.State != 0, StateFor: max(0, rules.State), Encode: rules.Push.Codec.Encode}
	q.shard.Now = Start.UnixMicro()
	q.push = q.store
	for _, m := range slices.Backward(rules.Push.Middlewares) {
		q.push = m(rules.Name, q.push)
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

// Advance lets time go by, and keeps the morgue within the bounds of the rules. Nothing is handled before the next Drain.
func (q *Queue) Advance(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shard.Now += max(0, d.Microseconds())
	q.shard.TrimMorgue(q.rules.Morgue.Keep, q.rules.Morgue.For)
}

// Waiting is the job of an id that waits for a handler, or for a person after its retries; ok is false if
// nothing of it waits. While the id is being handled, it is what was pushed meanwhile.
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
	job := lowkiq.Job{ID: id, PerformAt: time.UnixMicro(of.At), RetryCount: of.Retry, Error: of.Err}
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
	all := runner.Decide(&q.decider, run.Batch, run.Err)
	acks := queue.Acks{Flight: run.Batch.Flight, Answers: q.decider.Answers(all.Done, said)}
	for _, job := range all.Done {
		acks.IDs = append(acks.IDs, job.ID)
	}
	q.shard.AckAll([]queue.Acks{acks})
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
		if err := told.hook(context.Background(), &lowkiq.Event{Kind: told.kind, Shard: run.Batch.Shard, Jobs: told.jobs}); err != nil {
			q.t.Errorf("hook: %v", err)
		}
	}
}
