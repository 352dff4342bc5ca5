package runner

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Held ids (package queue/rules): a lane that has popped some puts them back before it takes a batch, and looks again right
// before the call, as it may have waited long for its turn. No retry is spent. The id's crashes are forgotten, as after an answer
// of its handler. What is in Redis until it is released is released by the node, which asks ToRelease.

// holds reports whether a job of a batch is held.
func (r *Runner) holds(batch *lowkiq.Batch) bool {
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

// holdBack puts what waits and is held back to Redis. It reports whether there was any. mu is held, and let go meanwhile.
func (r *Runner) holdBack() bool {
	held := r.queue.rules().Held
	if held == nil {
		return false
	}
	nacks := r.state.flights.held(held)
	if len(nacks) == 0 {
		return false
	}
	r.mu.Unlock()
	sent := r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) })
	if was := r.looked.Load(); was == nil || was.held != held || r.queue.rules().Held != held {
		r.looked.Store(nil) // these may be free before anybody has looked under the holds by which they were put back
	}
	r.mu.Lock()
	if sent {
		r.queue.postponed(nacks)
		for _, n := range nacks {
			r.state.close(n.Flight, 1)
		}
		r.state.change(flightEnds) // an id in quarantine may wait for that
	}
	return true
}

// lookedFor are the holds under which the shard's held ids were looked through last.
type lookedFor struct{ held *rules.Held }

// awaited are ids that were put back to be held, and when, Now(): the hold of a run that was cancelled is there before its cancel, and this process
// may not have read it yet. Once it has asked for the holds later than that, the id is held if it is among them.
type awaited struct {
	mu sync.Mutex
	at map[string]time.Duration // guarded by mu
}

// add notes which of these are put back to be held. asked: what was put back before that is not awaited any more.
func (a *awaited) add(nacks []queue.Nack, now, asked time.Duration) {
	for i := range nacks {
		if nacks[i].Kind != queue.Hold {
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

// has reports whether the hold of an id may be one that this process has not read, as it asked for the holds last at this time, Now().
func (a *awaited) has(id string, asked time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, awaited := a.at[id]
	return awaited && asked <= at
}

// ToRelease says whether held ids of the shard are to be released, all but those of which keep says that they are held still: once after the
// claim if there may be any, once after each change of the holds, and once the holds were asked for after an id was put back whose hold was
// awaited. Whoever asks does it then, or calls NotReleased. asked is when Redis was last asked for the holds, Now(): the last owner may have put
// ids back by a hold that this process has not read, and what is released by older ones runs although people hold it.
func (r *Runner) ToRelease(asked time.Duration) (keep func(id string) bool, now bool) {
	held := r.queue.rules().Held
	r.asked.Store(int64(asked))
	keep = func(id string) bool { return held.Holds(id) || r.awaited.has(id, asked) }
	if asked <= r.claimed && r.claim.HasHeld() {
		return keep, false
	}
	again := r.lookAt.Load()
	due := again != 0 && asked > time.Duration(again) && r.lookAt.CompareAndSwap(again, 0)
	if was := r.looked.Load(); !due && was != nil && was.held == held {
		return keep, false
	}
	r.looked.Store(&lookedFor{held}) // before it is done: what is put back meanwhile under older holds has it done again
	return keep, true
}

// NotReleased has ToRelease ask for it again.
func (r *Runner) NotReleased() { r.looked.Store(nil) }

// freeHeld ends the waiting of lanes whose batch has an id that is held now: they put it back, and wait anew with the others. mu is held.
func (r *Runner) freeHeld() {
	held := r.queue.rules().Held
	if held == nil {
		return
	}
	for _, t := range r.state.turns {
		if (t.waits || t.waiter != nil) && slices.ContainsFunc(t.ids, held.Holds) {
			r.state.interrupt()
			return
		}
	}
}
