package runner

import (
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue/rules"
)

// An id whose group is at its limit goes back to Redis and asks again later, which is some milliseconds after there was room: a good part of
// the limit where calls take no longer than that, or Redis is far. So a lane that has nothing else to do lingers with such an id if calls of
// its group run on this node: when one ends, the id has its permit. Redis is not asked, as the node has as many ids of the group in calls as
// before. Meanwhile it has no slot, and if its shard has something else to do, it does that.
//
// Ids on other nodes get their turn: what Redis has granted is handed over a few times only, then it goes back to Redis, which leaves it to an
// instance that has none (lua/group.lua).

// handOverBelow is how long calls of a queue may take, on average, for permits of its groups to be handed over. Where they take longer, the
// time until an id asks again is a small part of that.
const handOverBelow = 50 * time.Millisecond

// handOvers is how often permits of a group are handed over on a node after Redis has granted one.
const handOvers = 16

// waitersOfOne is how many ids may wait for a permit of their group, for each of them in calls on the node: they come at random times.
const waitersOfOne = 4

// lingers is for how long a lane waits for a permit, in calls.
const lingers = 4

// groupWaiter is a lane that waits for a permit of a group, with an id of it.
type groupWaiter struct {
	id, group string
	done      chan struct{} // closed when it waits no more
	given     bool          // it has the permit; guarded by the mutex of groups
}

// waitForGroup has a lane line up for a permit of a group; nil: none is to be had so, or by are not the rules in force any more.
func (q *Queue) waitForGroup(id, group string, by rules.Groups) *groupWaiter {
	g := &q.live.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.rules().Groups != by || by.Concurrency == 0 || by.Rate.N > 0 || g.took == 0 || g.took > handOverBelow ||
		len(g.waiters[group]) >= min(waitersOfOne*g.busy[group], g.handOvers[group]) {
		return nil
	}
	if g.waiters == nil {
		g.waiters = map[string][]*groupWaiter{}
	}
	w := &groupWaiter{id: id, group: group, done: make(chan struct{})}
	g.waiters[group] = append(g.waiters[group], w)
	return w
}

// leave ends the waiting, if it has not ended. It reports whether the permit was handed over by then.
func (g *groups) leave(w *groupWaiter) (given bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Contains(g.waiters[w.group], w) {
		g.goOn(w, false)
	}
	return w.given
}

// goOn has a lane go on that waits. mu is held.
func (g *groups) goOn(w *groupWaiter, given bool) {
	w.given = given
	close(w.done)
	left := g.waiters[w.group]
	i := slices.Index(left, w)
	if left = slices.Delete(left, i, i+1); len(left) == 0 {
		delete(g.waiters, w.group)
		return
	}
	g.waiters[w.group] = left
}

// granted notes that Redis has granted a permit, which may be handed over. mu is held.
func (g *groups) granted(group string) {
	if g.handOvers == nil {
		g.handOvers = map[string]int{}
	}
	g.handOvers[group] = handOvers
}

// handOver gives the permit of an id whose call has ended to another one of its group that waits for it; false: none does, or it is the turn of
// ids on other nodes. mu is held.
func (g *groups) handOver(group string) bool {
	if len(g.waiters[group]) == 0 { // they are no more than may be handed over
		return false
	}
	w := g.waiters[group][0]
	g.goOn(w, true)
	g.handOvers[group]--
	g.let(group, false)
	return true
}

// dismiss has no permit of a group handed over before Redis grants one. mu is held.
func (g *groups) dismiss(group string) {
	delete(g.handOvers, group)
	for len(g.waiters[group]) > 0 {
		g.goOn(g.waiters[group][0], false)
	}
}

// mayLinger reports whether a lane may wait for a permit: its shard can do without it, and what it gives back meanwhile can be had again at once.
func (r *Runner) mayLinger(t *turn) bool {
	if t.paced || t.queue.Reserve != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.spares(t)
}

// linger has a lane wait for a permit with an id of its batch, and give back what others may need; nil: it is not to.
func (r *Runner) linger(t *turn, id, group string, by rules.Groups) *groupWaiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.spares(t) { // any more: others of the batch were put back meanwhile
		return nil
	}
	if t.waiter = r.queue.waitForGroup(id, group, by); t.waiter != nil {
		t.stage.Store(&stageForGroup)
		t.give()
	}
	return t.waiter
}

// awaitPermit waits until a lane has the permit, and all else that its call needs. false: it is to wait no more, or somebody else was faster.
func (r *Runner) awaitPermit(t *turn, w *groupWaiter) bool {
	g := &r.queue.live.groups
	g.mu.Lock()
	timer := time.NewTimer(lingers * g.took)
	g.mu.Unlock()
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	case <-r.work.Done():
	}
	r.mu.Lock()
	t.waiter = nil
	r.mu.Unlock()
	if !g.leave(w) {
		return false
	}
	t.groups = append(t.groups, w.group)
	if !t.retake() {
		r.leaveGroups(t)
		return false
	}
	t.admitted = r.process.Now()
	g.mu.Lock()
	delete(g.back, w.id)
	g.mu.Unlock()
	return true
}

// retake takes a call of the queue and a slot of the node if nobody waits for them.
func (t *turn) retake() bool {
	if calls := t.queue.calls(); calls != nil {
		if !calls.takeFree(&t.queue.all) {
			return false
		}
		t.call = calls
	}
	if t.slot = t.slots.takeFree(&t.queue.share); !t.slot {
		t.give()
	}
	return t.slot
}

// spares reports whether the shard can do without a lane.
func (s *state) spares(t *turn) bool {
	return !s.stops() && !s.halted() && (!s.hasWork() || s.hasLane(t))
}

// hasWork reports whether a lane would have something to do now.
func (s *state) hasWork() bool { return s.more || s.due || len(s.flights.waiting) > 0 }

// hasLane reports whether another lane is about to look what there is to do.
func (s *state) hasLane(but *turn) bool {
	return slices.ContainsFunc(s.turns, func(t *turn) bool { return t != but && t.waiter == nil && !t.waits && t.began.Load() == 0 })
}

// endLinger has so many lanes that linger do something else. A lane that has its permit by now is none of them.
func (s *state) endLinger(n int) {
	for _, t := range s.turns {
		if n <= 0 {
			return
		}
		if t.waiter == nil {
			continue
		}
		if !s.queue.live.groups.leave(t.waiter) {
			n--
		}
		t.waiter = nil
	}
}

// leaveToOthers is called by a lane that begins a call.
func (r *Runner) leaveToOthers(t *turn) {
	if r.queue.rules().Groups.By == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.leaveToOthers(t)
}

// leaveToOthers has a lane that lingers do what there is to do, if a lane that does not look for it any more leaves nobody who does.
func (s *state) leaveToOthers(t *turn) {
	if s.hasWork() && !s.hasLane(t) {
		s.endLinger(1)
	}
}
