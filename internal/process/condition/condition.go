// Package condition answers one question: should a repeated event be logged now?
//
// A [Condition] is logged when it begins, and then at growing intervals while it lasts. Each line says how many events were
// left out.
package condition

import "time"

// Most is the maximum time between two lines of a condition that lasts.
const Most = 5 * time.Minute

// calm is the minimum time without an event after which the next event begins a new condition.
const calm = 2 * time.Minute

// Condition is an event that may happen often. The zero value has not happened. It is not safe for concurrent use. All times
// are readings of a clock that does not go back.
type Condition struct {
	lasts  bool
	logged time.Duration // the last line
	seen   time.Duration
	pause  time.Duration // until the next line
	left   int           // not logged since the last line
}

// See records an event. If ok is true the caller should log it, and left events were left out since the last line. The
// second line follows the first after at least the time first. Each later interval is twice as long as the last, up to Most.
func (c *Condition) See(now, first time.Duration) (left int, ok bool) {
	anew := !c.lasts || now-c.seen >= max(calm, 2*c.pause)
	c.seen = now
	switch {
	case anew:
		c.pause = first
	case now-c.logged < c.pause:
		c.left++
		return 0, false
	default:
		c.pause = min(2*c.pause, max(first, Most))
	}
	left = c.left
	c.lasts, c.logged, c.left = true, now, 0
	return left, true
}

// End ends a condition without an event for the time quiet. ok reports whether it did, and left is the number of events left
// out since the last line.
func (c *Condition) End(now, quiet time.Duration) (left int, ok bool) {
	if !c.lasts || now-c.seen < quiet {
		return 0, false
	}
	left, *c = c.left, Condition{}
	return left, true
}

// Left returns how many events were left out since the last line.
func (c *Condition) Left() int { return c.left }

// Seen returns the time of the last event.
func (c *Condition) Seen() time.Duration { return c.seen }
