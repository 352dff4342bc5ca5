package runner

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// People hold ids (see package queue/rules). No handler call of a held id begins. A lane puts held ids back to Redis
// before it takes a batch, and checks the batch again right before the call, because it may have waited long for
// resources. No retry is counted. Crashes of the id are forgotten, as after an answer of its handler.
//
// Redis keeps held ids apart until their shard's owner releases them. The node asks ShouldReleaseHeld when to do so.
// Two orders of events need care, because a process reads the holds from time to time only:
//
//   - An id may be put back as held before the process has read its hold. This happens when a person cancels a run
//     and holds the id at once. Such ids are in awaitedHolds, and are not released before the holds were read again.
//   - An id may be put back under a hold that has ended meanwhile. So after each such put-back the held ids are
//     checked again, even if the holds have not changed since the last check.

// hasHeldJob reports whether a job of a batch is held.
func (r *Runner) hasHeldJob(batch *lowkiq.Batch) bool {
	held := r.queue.rules().Held
	if held == nil {
		return false
	}
	for i := range batch.Jobs {
		if held.Holds(batch.Jobs[i].ID) {
			return true
		}
	}
	return false
}

// hasHeldWaiting reports whether a waiting job is held. The caller holds mu.
func (r *Runner) hasHeldWaiting() bool {
	held := r.queue.rules().Held
	return held != nil && slices.ContainsFunc(r.state.flights.waiting, func(one flight) bool {
		return slices.ContainsFunc(one.jobs, func(job lowkiq.Job) bool { return held.Holds(job.ID) })
	})
}

// returnHeld returns to Redis the waiting jobs that are held. It returns whether there were any. The caller holds mu, which
// is released during the request.
func (r *Runner) returnHeld() bool {
	held := r.queue.rules().Held
	if held == nil {
		return false
	}
	nacks := r.state.flights.removeHeld(held)
	if len(nacks) == 0 {
		return false
	}
	r.mu.Unlock()
	sent := r.sendNacks(nacks)
	if was := r.releasedUnder.Load(); was == nil || was.held != held || r.queue.rules().Held != held {
		r.releasedUnder.Store(nil) // the holds may have ended before the next check, so check even without a change
	}
	r.mu.Lock()
	if sent {
		r.queue.countPostponed(nacks)
		for _, n := range nacks {
			r.state.closeJobs(n.Flight, 1)
		}
		r.state.change(flightEnds) // an id in quarantine may wait for that
	}
	return true
}

// releasedUnder has the holds of the last check of the shard's held ids.
type releasedUnder struct{ held *rules.Held }

// awaitedHolds has ids that were put back as held, with the time of the put-back by Now. When a person cancels a run and
// holds its id, the hold is in Redis before the cancel, but this process may not have read it yet. Until the process
// has asked for the holds after the put-back, such an id counts as held. After that it is held if a hold says so.
type awaitedHolds struct {
	mu sync.Mutex
	at map[string]time.Duration // guarded by mu
}

// addNacks adds the ids of the nacks that put jobs back as held. asked is the time when the process last asked for the
// holds. addNacks forgets ids that were put back before that.
func (a *awaitedHolds) addNacks(nacks []protocol.Nack, now, asked time.Duration) {
	for i := range nacks {
		if nacks[i].Kind != protocol.Hold {
			continue
		}
		a.mu.Lock()
		maps.DeleteFunc(a.at, func(_ string, at time.Duration) bool { return at < asked })
		if a.at == nil {
			a.at = map[string]time.Duration{}
		}
		a.at[nacks[i].ID] = now
		a.mu.Unlock()
	}
}

// mayBeHeld reports whether an id may have a hold that this process has not read. asked is the time when the process last
// asked for the holds.
func (a *awaitedHolds) mayBeHeld(id string, asked time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, awaited := a.at[id]
	return awaited && asked <= at
}

// ShouldReleaseHeld reports whether the caller should release held ids of the shard now, except the ids that satisfy keep.
// asked is the time, by Now, when the process last asked Redis for the holds.
//
// It reports this once for each of these reasons:
//
//   - the shard was claimed, and it may have held ids
//   - the holds have changed
//   - an id was put back that awaitedHolds has, and the holds were read since
//
// After the claim it waits until the holds were read. The last owner may have put ids back under a hold that this
// process has not read, and an id that is released by older holds runs although people hold it. If the release
// fails, the caller calls RetryReleaseHeld.
func (r *Runner) ShouldReleaseHeld(asked time.Duration) (keep func(id string) bool, now bool) {
	held := r.queue.rules().Held
	r.holdsAsked.Store(int64(asked))
	keep = func(id string) bool { return held.Holds(id) || r.awaited.mayBeHeld(id, asked) }
	if asked <= r.claimed && r.claim.HasHeld() {
		return keep, false
	}
	again := r.releaseAgain.Load()
	due := again != 0 && asked > time.Duration(again) && r.releaseAgain.CompareAndSwap(again, 0)
	if was := r.releasedUnder.Load(); !due && was != nil && was.held == held {
		return keep, false
	}
	r.releasedUnder.Store(&releasedUnder{held}) // before the release, so that a put-back under older holds meanwhile leads to another release
	return keep, true
}

// RetryReleaseHeld makes ShouldReleaseHeld report once more that held ids should be released.
func (r *Runner) RetryReleaseHeld() { r.releasedUnder.Store(nil) }

// interruptHeld interrupts lanes that wait for resources, if their batch or a job that waits behind them is held. They put
// the held jobs back, and wait again with the others. Jobs behind lanes in calls need no interrupt, because they do
// not wait for long; see patience. The caller holds mu.
func (r *Runner) interruptHeld() {
	held := r.queue.rules().Held
	if held == nil {
		return
	}
	for _, l := range r.state.lanes {
		if l.waits && (slices.ContainsFunc(l.ids, held.Holds) || r.hasHeldWaiting()) {
			r.state.interruptWaits()
			return
		}
	}
}
