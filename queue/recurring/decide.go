package recurring

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/calendar"
)

// step is what is to be done for an entry now.
type step struct {
	push   bool      // a push for tick
	tick   time.Time // which one
	missed int64     // how many before it are left out
	next   time.Time // the tick that then takes its place
}

// farthest is how much of the past is counted: what was down for longer misses no more.
const farthest = 366 * 24 * time.Hour

// decide says what is to be done for an entry whose next tick this is; due is when, after now if there
// is nothing to do yet. It is pure.
func decide(name string, spec Spec, schedule calendar.Schedule, paused bool, tick, now time.Time) (do step, due time.Time) {
	at := func(tick time.Time) time.Time {
		return tick.Add(calendar.Jitter(name, tick, time.Duration(spec.Jitter)))
	}
	if due = at(tick); due.After(now) {
		return step{}, due
	}
	if paused { // ticks go by
		return step{next: schedule.Next(latest(tick, now.Add(-time.Duration(spec.Jitter))))}, due
	}
	late := now.Add(-soonEnough)
	if due.After(late) {
		return step{push: true, tick: tick, next: schedule.Next(tick)}, due
	}
	// The ticks from this one on that are late are n, the newest of them is last.
	first := tick
	if oldest := now.Add(-farthest); first.Before(oldest) {
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

func latest(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
