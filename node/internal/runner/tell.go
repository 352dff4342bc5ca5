package runner

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// Two are told how handler calls end: those who listen to the cluster, whoever and wherever they are, and the hooks of the
// queue, which are part of this process. To either it is told once at most.

// tellDone tells listeners of jobs that are done, by what their handler has answered: their acks are on the way.
func (r *Runner) tellDone(jobs []lowkiq.Job, end *ended) {
	if r.process.Listened == nil || !r.process.Listened(r.Shard.Queue) {
		return
	}
	runs := make([]journal.Run, len(jobs))
	for i := range jobs {
		runs[i] = *end.done(&jobs[i])
	}
	r.process.Ran(r.Shard, runs)
}

// tellNotDone tells listeners of jobs that were not, once Redis has taken that.
func (r *Runner) tellNotDone(nacks []queue.Nack, burials []queue.Burial) {
	if r.process.Listened == nil || !r.process.Listened(r.Shard.Queue) {
		return
	}
	runs := make([]journal.Run, 0, len(nacks)+len(burials))
	for i := range nacks {
		if run := nacks[i].Run(); run != nil {
			runs = append(runs, *run)
		}
	}
	for i := range burials {
		runs = append(runs, *burials[i].Run())
	}
	r.process.Ran(r.Shard, runs)
}

// hookPatience is how long a hook may take.
const hookPatience = 10 * time.Second

// callHooks tells the queue's hooks what Redis has taken of a batch: which jobs are out of retries, and what went to the
// morgue. The lane waits for them: a queue whose jobs fail faster than its hooks take is slowed down, and forgets nothing. It holds nothing
// meanwhile: others can use what a call needs, and so can a hook, of which a child process is told that is the queue's only one.
func (r *Runner) callHooks(t *turn, all Outcome) {
	rules := r.queue.rules()
	exhausted, buried := len(all.Exhausted) > 0 && rules.OnExhausted != nil, len(all.Buried) > 0 && rules.OnBuried != nil
	if exhausted || buried {
		t.give()
		t.unpace()
		r.leaveGroups(t)
	}
	if exhausted {
		r.callHook(r.work, rules.OnExhausted, &lowkiq.Event{Kind: lowkiq.Exhausted, Shard: r.Shard, Jobs: all.Exhausted})
	}
	if buried {
		r.callHook(r.work, rules.OnBuried, &lowkiq.Event{Kind: lowkiq.Buried, Shard: r.Shard, Jobs: all.Buried})
	}
}

// Recovered tells the queue's hook that a shard was taken over with jobs of its last owner. It waits for the hook, and before that for a process
// if calls of the queue need one: those of a node that has just taken over what another one did are busy, often for longer than a hook may take.
func (r *Runner) Recovered(e *lowkiq.Event) {
	hook, ctx := r.queue.rules().OnRecovered, r.work
	if hook == nil {
		return
	}
	if r.queue.Reserve != nil {
		if with, leave, err := r.queue.Reserve(ctx); err == nil { // else the hook says what is wrong
			ctx = with(ctx)
			defer leave()
		}
	}
	r.callHook(ctx, hook, e)
}

// callHook calls one. What goes wrong is logged, and nothing else: the hook is not called again. It counts as a handler call, so
// that one which ignores its context does not keep the process from ending.
func (r *Runner) callHook(ctx context.Context, hook lowkiq.Hook, e *lowkiq.Event) {
	ctx, cancel := context.WithTimeoutCause(ctx, hookPatience, fmt.Errorf("a hook may take %s", hookPatience))
	defer cancel()
	r.caller.running.Add(1)
	defer r.caller.running.Add(-1)
	late := time.AfterFunc(hookPatience+overdueAfter, func() {
		r.queue.Metrics.Overdue.Inc()
		r.process.Log.Error("hook has not returned after its time, and its shard waits", "event", string(e.Kind), "shard", e.Shard, "timeout", hookPatience, "stacks", string(Stacks()))
	})
	defer late.Stop()
	if err := guardedHook(ctx, hook, e); err != nil {
		r.queue.Metrics.HookErrors.Inc()
		if left, ok := r.process.MayLog(e.Shard.Queue, "hook failed"); ok {
			r.process.Log.Error("hook failed", "event", string(e.Kind), "shard", e.Shard, "jobs", len(e.Jobs), "left_out", left, "err", err)
		}
	}
}

// guardedHook is the call itself, whose panic is an error.
func guardedHook(ctx context.Context, hook lowkiq.Hook, e *lowkiq.Event) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{value, debug.Stack()}
		}
	}()
	return hook(ctx, e)
}
