package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Listeners of the cluster and the hooks of the queue learn how handler calls end, each at most once.

// publishDone sends the runs of done jobs to listeners. Their acks are on the way.
func (r *Runner) publishDone(jobs []lowkiq.Job, result *callResult) {
	if r.process.HasListeners == nil || !r.process.HasListeners(r.Shard.Queue) {
		return
	}
	runs := make([]journal.Run, len(jobs))
	for i := range jobs {
		runs[i] = *result.doneRun(&jobs[i])
	}
	r.process.PublishRuns(r.Shard, runs)
}

// publishNotDone sends the runs of other jobs to listeners, once Redis has the outcome.
func (r *Runner) publishNotDone(nacks []protocol.Nack, burials []protocol.Burial) {
	if r.process.HasListeners == nil || !r.process.HasListeners(r.Shard.Queue) {
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
	r.process.PublishRuns(r.Shard, runs)
}

// hookTimeout is how long a hook has before its context ends.
const hookTimeout = 10 * time.Second

// callHooks calls the queue's hooks for jobs that are out of retries and for buried jobs, once Redis has the outcome of their
// batch. The lane waits for the hooks. So they miss no event, and a queue whose jobs fail faster than its hooks work slows
// down. The lane holds no resources meanwhile, because a hook may need them, such as the only process of the queue.
func (r *Runner) callHooks(l *lane, all verdict.Outcome) {
	rules := r.queue.rules()
	exhausted, buried := len(all.Exhausted) > 0 && rules.OnExhausted != nil, len(all.Buried) > 0 && rules.OnBuried != nil
	if exhausted || buried {
		l.release()
		l.leaveRate()
		r.leaveGroups(l)
	}
	if exhausted {
		r.callHook(r.work, rules.OnExhausted, &lowkiq.Event{Kind: lowkiq.Exhausted, Shard: r.Shard, Jobs: all.Exhausted})
	}
	if buried {
		r.callHook(r.work, rules.OnBuried, &lowkiq.Event{Kind: lowkiq.Buried, Shard: r.Shard, Jobs: all.Buried})
	}
}

// CallRecoveredHook calls the queue's hook after a shard was taken over with in-flight jobs of its last owner. If calls of
// the queue need a process, it waits for a process first. The wait does not count as time of the hook, because
// processes are often busy for longer than a hook may take after a takeover.
func (r *Runner) CallRecoveredHook(e *lowkiq.Event) {
	hook, ctx := r.queue.rules().OnRecovered, r.work
	if hook == nil {
		return
	}
	if r.queue.Reserve != nil {
		if with, leave, err := r.queue.Reserve(ctx); err == nil { // otherwise the hook itself returns the error
			ctx = with(ctx)
			defer leave()
		}
	}
	r.callHook(ctx, hook, e)
}

// callHook calls a hook, and logs its error. It does not call the hook again. The hook counts as a handler call, so that a hook
// that ignores its context does not keep the process from ending.
func (r *Runner) callHook(ctx context.Context, hook lowkiq.Hook, e *lowkiq.Event) {
	ctx, cancel := context.WithTimeoutCause(ctx, hookTimeout, fmt.Errorf("a hook may take %s", hookTimeout))
	defer cancel()
	r.caller.running.Add(1)
	defer r.caller.running.Add(-1)
	late := time.AfterFunc(hookTimeout+overdueAfter, func() {
		r.queue.Metrics.Overdue.Inc()
		r.process.Log.Error("hook has not returned after its time, and its shard waits", "event", string(e.Kind), "shard", e.Shard, "timeout", hookTimeout, "stacks", string(AllStacks()))
	})
	defer late.Stop()
	if err := guardedHook(ctx, hook, e); err != nil {
		r.queue.Metrics.HookErrors.Inc()
		if left, ok := r.process.MayLog(e.Shard.Queue, "hook failed"); ok {
			r.process.Log.Error("hook failed", "event", string(e.Kind), "shard", e.Shard, "jobs", len(e.Jobs), "left_out", left, "err", err)
		}
	}
}

// guardedHook calls a hook, and returns its panic as an error. The hook has a goroutine of its own, because
// it may call runtime.Goexit, and the lane must go on then.
func guardedHook(ctx context.Context, hook lowkiq.Hook, e *lowkiq.Event) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the hook called runtime.Goexit")
		defer func() {
			if value := recover(); value != nil {
				err = &verdict.PanicError{Value: value, Stack: debug.Stack()}
			}
			ended <- err
		}()
		err = hook(ctx, e)
	}()
	return <-ended
}
