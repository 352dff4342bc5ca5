package recurring

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/calendar"
)

// step is what to do for an entry now.
type step struct {
	push   bool      // push a job for tick
	tick   time.Time // the tick
	missed int64     // number of ticks before it that are left out
	next   time.Time // the next tick
}

// maxPast bounds how far back missed ticks are counted.
const maxPast = 366 * 24 * time.Hour

// decideStep decides what to do for an entry with this next tick. due is the time of its push,
// which is after now if there is nothing to do yet. The function is pure.
func decideStep(name string, spec Spec, schedule calendar.Schedule, paused bool, tick, now time.Time) (do step, due time.Time) {
	at := func(tick time.Time) time.Time {
		return tick.Add(calendar.Jitter(name, tick, time.Duration(spec.Jitter)))
	}
	if due = at(tick); due.After(now) {
		return step{}, due
	}
	if paused { // skip the ticks
		return step{next: schedule.Next(laterOf(tick, now.Add(-time.Duration(spec.Jitter))))}, due
	}
	late := now.Add(-maxLate)
	if due.After(late) {
		return step{push: true, tick: tick, next: schedule.Next(tick)}, due
	}
	// Late ticks begin with first. n is their number, and last is the newest of them.
	first := tick
	if oldest := now.Add(-maxPast); first.Before(oldest) {
		first = schedule.Next(oldest)
	}
	n, last := int64(1), first
	for next := schedule.Next(last); !at(next).After(late); next = schedule.Next(next) {
		n, last = n+1, next
	}
	switch spec.Missed {
	case None:
		return step{tick: last, missed: n, next: schedule.Next(last)}, due
	case All:
		left := max(0, n-int64(spec.Backlog))
		for range left {
			first = schedule.Next(first)
		}
		return step{push: true, tick: first, missed: left, next: schedule.Next(first)}, due
	}
	return step{push: true, tick: last, missed: n - 1, next: schedule.Next(last)}, due
}

func laterOf(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
