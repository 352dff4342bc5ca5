package runner

import (
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// acks holds the acks that Redis may not have yet. The next pop carries them, and a timer sends acks that
// no pop carried in time. Redis ignores repeated acks, so acks with an unknown outcome are sent again.
//
//	done --> waiting --> a pop, a flush, the release --> Redis has them
//	            ^               | no answer
//	            '---------------'
type acks struct {
	mu       sync.Mutex
	waiting  []protocol.Acks // guarded by mu
	next     int             // place, in its flight, after the last waiting ack; -1 if it is not known; guarded by mu
	flush    *time.Timer     // guarded by mu
	flushing chan struct{}   // closed when the running flush ends; nil if no flush runs; guarded by mu
}

const (
	// ackDelay is how long acks wait for the next pop at most, so that they are in Redis within 10 ms.
	ackDelay = 7 * time.Millisecond
	// ackTick is the interval at whose multiples the flushes of all shards of a process begin, so that they share requests.
	ackTick = 4 * time.Millisecond
	// ackRetry is the delay before a flush repeats acks without an answer.
	ackRetry = 100 * time.Millisecond
)

// add queues the acks of done jobs, with answers and lines for the journal. place is the place of the first job in its flight
// if the jobs follow each other there, and -1 otherwise. rest means that the flight has no other jobs. If a caller may wait
// for an answer, the acks are sent at once, together with acks that come until Redis has answered the last request.
func (a *acks) add(number int64, jobs []lowkiq.Job, place int, answers []protocol.Answer, runs journal.Block, rest bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.waiting) - 1
	if last < 0 || a.waiting[last].Flight != number || !a.canJoin(&a.waiting[last].Runs, &runs, place) {
		if last < 0 {
			a.flush.Reset(untilTick(time.Now()))
		}
		a.waiting = append(a.waiting, protocol.Acks{Flight: number, IDs: make([]string, 0, len(jobs))})
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

// canJoin reports whether acks from a place on can join the acks before them. Acks without lines for the journal always can.
// Acks with lines can if their jobs follow each other in the flight, because Redis finds a row of ids at once.
func (a *acks) canJoin(before, runs *journal.Block, place int) bool {
	if before.Empty() || runs.Empty() {
		return before.Empty() && runs.Empty()
	}
	return place >= 0 && place == a.next
}

// untilTick returns the time until the last tick within ackDelay.
func untilTick(now time.Time) time.Duration {
	return ackDelay - time.Duration(now.Add(ackDelay).UnixNano())%ackTick
}

// takeAll removes and returns all waiting acks, for a pop or the release.
func (a *acks) takeAll() []protocol.Acks {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.waiting
	a.waiting = nil
	if taken != nil {
		a.flush.Stop()
	}
	return taken
}

// putBack keeps acks with an unknown outcome.
func (a *acks) putBack(taken []protocol.Acks) {
	if len(taken) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		a.next = -1 // it belongs to later acks
	}
	a.waiting = append(taken, a.waiting...)
	a.flush.Reset(ackRetry)
}

// beginFlush returns the acks for a flush, none if another flush runs.
func (a *acks) beginFlush() []protocol.Acks {
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
	case slices.ContainsFunc(a.waiting, func(one protocol.Acks) bool { return len(one.Answers) > 0 }):
		a.flush.Reset(0)
	case len(a.waiting) > 0:
		a.flush.Reset(untilTick(time.Now()))
	}
}

// takeLast returns all acks that Redis may not have, once no lane runs. It waits for a running flush.
func (a *acks) takeLast() []protocol.Acks {
	taken := a.takeAll() // a later flush finds no acks
	a.mu.Lock()
	flushing := a.flushing
	a.mu.Unlock()
	if flushing != nil {
		<-flushing
	}
	return append(a.takeAll(), taken...)
}

// anyWaiting reports whether acks wait.
func (a *acks) anyWaiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting) > 0
}

// mayHave reports whether acks of a flight may still be on their way.
func (a *acks) mayHave(number int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flushing != nil || slices.ContainsFunc(a.waiting, func(one protocol.Acks) bool { return one.Flight == number })
}
