package runner

import (
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// acks are those that Redis may not have yet. The next pop takes them along; a timer has those sent
// that none took in time. Redis ignores what it has seen, so those whose fate is unknown are sent
// again.
//
//	done --> waiting --> a pop, a flush, the release --> Redis has them
//	            ^               | no answer
//	            '---------------'
type acks struct {
	mu       sync.Mutex
	waiting  []queue.Acks  // guarded by mu
	next     int           // the place in its flight that follows the last of waiting; -1: it is not known; guarded by mu
	flush    *time.Timer   // guarded by mu
	flushing chan struct{} // closed when the flush that runs ends; nil if none runs; guarded by mu
}

const (
	// ackDelay is how long acks wait for the next pop at most, so that they are in Redis within 10
	// ms.
	ackDelay = 7 * time.Millisecond
	// ackTick: the flushes of all shards of a process begin at multiples of it, so that they share
	// requests.
	ackTick = 4 * time.Millisecond
	// ackAgain is after how long a flush sends again what had no answer.
	ackAgain = 100 * time.Millisecond
)

// add queues the acks of jobs that are done, with the answers of some and what the journal gets. place: of the first one in
// its flight, in which they came one after the other; -1: they did not. rest: it has no others.
// Somebody may wait for an answer: then they are sent at once, together with what comes until Redis has
// answered the last ones.
func (a *acks) add(number int64, jobs []lowkiq.Job, place int, answers []queue.Answer, runs journal.Block, rest bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.waiting) - 1
	if last < 0 || a.waiting[last].Flight != number || !a.joins(&a.waiting[last].Runs, &runs, place) {
		if last < 0 {
			a.flush.Reset(untilTick(time.Now()))
		}
		a.waiting = append(a.waiting, queue.Acks{Flight: number, IDs: make([]string, 0, len(jobs))})
		last++
	}
	a.waiting[last].Runs.Join(runs)
	a.waiting[last].InRow = place >= 0
	if a.next = -1; place >= 0 {
		a.next = place + len(jobs)
	}
	for i := range jobs {
		a.waiting[last].IDs = append(a.waiting[last].IDs, jobs[i].ID)
	}
	a.waiting[last].Rest = rest
	if len(answers) > 0 {
		a.waiting[last].Answers = append(a.waiting[last].Answers, answers...)
		if a.flushing == nil {
			a.flush.Reset(0)
		}
	}
}

// joins reports whether acks from a place on go into those before them: without lines of the journal they do. Such lines are
// taken together where their jobs came one after the other: Redis finds a row of ids at once.
func (a *acks) joins(before, runs *journal.Block, place int) bool {
	if before.Empty() || runs.Empty() {
		return before.Empty() && runs.Empty()
	}
	return place >= 0 && place == a.next
}

// untilTick is how long it is to the last tick within ackDelay.
func untilTick(now time.Time) time.Duration {
	return ackDelay - time.Duration(now.Add(ackDelay).UnixNano())%ackTick
}

// take takes all that wait, for a pop or the release.
func (a *acks) take() []queue.Acks {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.waiting
	a.waiting = nil
	if taken != nil {
		a.flush.Stop()
	}
	return taken
}

// putBack keeps acks whose fate is unknown.
func (a *acks) putBack(taken []queue.Acks) {
	if len(taken) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		a.next = -1 // it is that of others, which came later
	}
	a.waiting = append(taken, a.waiting...)
	a.flush.Reset(ackAgain)
}

// beginFlush takes the acks that a flush is to send, none if another runs.
func (a *acks) beginFlush() []queue.Acks {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flushing != nil || len(a.waiting) == 0 {
		return nil
	}
	a.flushing = make(chan struct{})
	taken := a.waiting
	a.waiting = nil
	return taken
}

func (a *acks) endFlush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.flushing)
	a.flushing = nil
	switch {
	case slices.ContainsFunc(a.waiting, func(one queue.Acks) bool { return len(one.Answers) > 0 }):
		a.flush.Reset(0)
	case len(a.waiting) > 0:
		a.flush.Reset(untilTick(time.Now()))
	}
}

// last takes all acks that Redis may not have, once no lane runs. It waits for a flush that does.
func (a *acks) last() []queue.Acks {
	taken := a.take() // a flush that begins from now on finds none
	a.mu.Lock()
	flushing := a.flushing
	a.mu.Unlock()
	if flushing != nil {
		<-flushing
	}
	return append(a.take(), taken...)
}

// any reports whether some wait.
func (a *acks) any() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting) > 0
}

// of reports whether acks of a flight may still be on their way.
func (a *acks) of(number int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flushing != nil || slices.ContainsFunc(a.waiting, func(one queue.Acks) bool { return one.Flight == number })
}
