package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// Why is an id not with a handler now? The facts are read, then judged apart from it.

// facts are what is known of an id and its shard.
type facts struct {
	job      queue.Listed
	found    bool
	standing queue.Standing
	paused   bool
	shard    status.Shard
	where    queue.Whereabouts // of an id in flight, as its owner says
	handled  bool              // a live node that is not draining handles the queue
	refused  string            // what Redis refuses the shard's owner, "" if nothing
	unready  string            // why the owner's handler of the queue cannot work, "" if it can
}

func (n *Node) Why(ctx context.Context, q *queue.Queue, id string) (status.Why, error) {
	var f facts
	var err error
	if f.job, f.found, err = q.Job(ctx, id); err != nil {
		return status.Why{}, err
	}
	if f.standing, err = q.Standing(ctx, id); err != nil {
		return status.Why{}, err
	}
	entries, err := n.client.Registry(ctx)
	if err != nil {
		return status.Why{}, err
	}
	live, err := n.holders(ctx)
	if err != nil {
		return status.Why{}, err
	}
	f.paused = entries[q.Name].Paused
	f.shard = shardStatus(q.Of(id).Shard, queue.Stats{Owner: f.standing.Owner}, n.agreed(), live)
	f.handled = shardState(q.Name, "", "", false, live) == status.Claiming
	f.refused = live[f.shard.Owner].RefusedFor(q.Of(id).Shard)
	f.unready = live[f.shard.Owner].Unready[q.Name]
	if f.job.State == queue.InFlight && f.alive() {
		if f.where, err = n.ask(ctx, q.Of(id), f.shard.Owner, id); err != nil {
			return status.Why{}, err
		}
	}
	why := f.judge(id)
	why.ID, why.Queue, why.Shard = id, q.Name, f.shard.Index
	return why, nil
}

// judge names the first thing that keeps an id from its handler.
func (f *facts) judge(id string) status.Why {
	if !f.found {
		return status.Why{State: status.Absent, Reason: fmt.Sprintf("queue %q has no job %q: it is done, or was never pushed", f.shard.Queue, id)}
	}
	r := status.Why{State: string(f.job.State)}
	if f.job.State != queue.Dead && f.job.State != queue.Waiting {
		due := f.job.PerformAt.Sub(f.standing.Now).Seconds()
		r.Due = &due
	}
	if !f.job.Since.IsZero() {
		since := f.standing.Now.Sub(f.job.Since).Seconds()
		r.Since = &since
	}
	switch f.job.State {
	case queue.Dead:
		r.Reason = "it is in the morgue" + f.lastError() + ": requeue it, or delete it"
	case queue.Waiting:
		r.Reason = "it ran out of retries and waits for a person" + f.lastError() + ": blocked requeue, skip or bury"
	case queue.InFlight:
		r.Reason = f.inFlight()
	default:
		r.Reason = f.waiting()
	}
	return r
}

func (f *facts) lastError() string {
	if f.job.Error == "" {
		return ""
	}
	return fmt.Sprintf(" (last error: %s)", queue.Gist(f.job.Error))
}

func (f *facts) inFlight() string {
	switch {
	case f.shard.Owner == "":
		return "it was in flight, and its shard has no owner now: it runs again once the shard is claimed"
	case !f.alive():
		return fmt.Sprintf("it was in flight with %s, whose lease is gone: it runs again once the shard is seized%s", f.shard.Owner, f.successor())
	}
	if f.refused != "" {
		return fmt.Sprintf("it is in flight (%d) with %s, which Redis refuses an operation: %s", f.job.Flight, f.shard.Owner, f.refused)
	}
	return f.handling()
}

// alive reports whether the shard's owner has a lease.
func (f *facts) alive() bool { return f.shard.State == status.Owned || f.shard.State == status.Leaving }

func (f *facts) waiting() string {
	wait := f.job.PerformAt.Sub(f.standing.Now)
	switch {
	case wait > 0 && f.job.State == queue.Retrying:
		return fmt.Sprintf("attempt %d failed%s; the next one is due in %s%s", f.job.RetryCount+1, f.lastError(), f.in(wait), f.notReady())
	case wait > 0:
		return "it is due in " + f.in(wait) + f.notReady()
	case f.paused:
		return fmt.Sprintf("queue %q is paused", f.shard.Queue)
	case !f.alive():
		return f.ownerless()
	case f.refused != "":
		return fmt.Sprintf("its shard waits, because Redis refuses %s an operation: %s", f.shard.Owner, f.refused)
	case f.shard.State == status.Leaving:
		return fmt.Sprintf("its shard is on its way from %s to %s", f.shard.Owner, cmp.Or(f.shard.Assigned, "another node"))
	case f.unready != "":
		return fmt.Sprintf("its shard waits, because the handler of %s is not ready: %s", f.shard.Owner, f.unready)
	case f.standing.Suspect:
		return fmt.Sprintf("it is on probation (%d crashes): it was in flight when a worker died, and runs alone, once the %d ids in flight are done",
			f.standing.Crashes, f.standing.InFlight)
	case f.standing.Ahead > 0:
		return fmt.Sprintf("it waits behind %s in its shard, which %s works on (%d in flight)", ids(f.standing.Ahead), f.shard.Owner, f.standing.InFlight)
	}
	return fmt.Sprintf("it is next in its shard, which %s works on (%d in flight)", f.shard.Owner, f.standing.InFlight)
}

// notReady adds that the owner's handler cannot work: what it has put back waits for more than its time.
func (f *facts) notReady() string {
	if f.unready == "" || !f.alive() {
		return ""
	}
	return fmt.Sprintf("; the handler of %s is not ready: %s", f.shard.Owner, f.unready)
}

// ids counts them.
func ids[N int | int64](n N) string {
	if n == 1 {
		return "1 id"
	}
	return fmt.Sprintf("%d ids", n)
}

// in says how long it is until the job is due, in days if that is long.
func (f *facts) in(wait time.Duration) string {
	const day = 24 * time.Hour
	if wait < 2*day {
		return wait.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%d days, at %s", wait/day, f.job.PerformAt.UTC().Format(time.RFC3339))
}

func (f *facts) ownerless() string {
	switch {
	case !f.handled:
		return fmt.Sprintf("no live node handles queue %q", f.shard.Queue)
	case f.shard.Owner == "":
		return "nobody owns its shard now" + f.successor()
	}
	return fmt.Sprintf("its shard is held by %s, whose lease is gone%s", f.shard.Owner, f.successor())
}

// successor names who is to take the shard.
func (f *facts) successor() string {
	if f.shard.Assigned == "" || f.shard.State != status.Claiming {
		return ""
	}
	return fmt.Sprintf("; %s is to claim it", f.shard.Assigned)
}
