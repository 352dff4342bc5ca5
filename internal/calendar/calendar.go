// Package calendar computes the ticks of recurring jobs, from a cron expression on the clocks of a
// time zone, or from a fixed interval. It is pure and knows no clock, no Redis and no job.
//
// [Cron] and [Every] make a [Schedule]. Their errors say where the input is wrong.
package calendar

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// Schedule is an endless rising sequence of instants, called ticks. The zero value has no ticks.
type Schedule struct {
	cron          *expression // nil for an interval
	zone          *time.Location
	every, offset time.Duration
}

// Shortest and Longest are the limits of an interval.
const (
	Shortest = time.Second
	Longest  = 366 * 24 * time.Hour
)

// Every returns a schedule with a tick in each interval, counted from the Unix epoch plus offset. So all
// nodes have the same ticks, whenever they began. Both must be whole milliseconds.
func Every(interval, offset time.Duration) (Schedule, error) {
	switch {
	case interval < Shortest || interval > Longest:
		return Schedule{}, fmt.Errorf("every %v: want %v to %v", interval, Shortest, Longest)
	case interval%time.Millisecond != 0:
		return Schedule{}, fmt.Errorf("every %v: want whole milliseconds", interval)
	case offset < 0 || offset >= interval:
		return Schedule{}, fmt.Errorf("offset %v: want 0 or more, and less than every, which is %v", offset, interval)
	case offset%time.Millisecond != 0:
		return Schedule{}, fmt.Errorf("offset %v: want whole milliseconds", offset)
	}
	return Schedule{every: interval, offset: offset}, nil
}

// Cron returns the schedule of a cron expression on the clocks of a zone of the time zone database. The
// zone "" is UTC.
//
// When clocks are put forward or back, each time of day still comes once. A time that is left out comes
// later by as much as the clocks were moved: 02:30 becomes 03:30. A time that comes twice counts the
// first time. But an expression of every hour has its ticks in each hour that passes.
func Cron(text, zone string) (Schedule, error) {
	location, err := Zone(zone)
	if err != nil {
		return Schedule{}, err
	}
	cron, err := parseExpression(text)
	if err != nil {
		return Schedule{}, err
	}
	return Schedule{cron: cron, zone: location}, nil
}

// Zone returns a zone of the time zone database. The name "" is UTC.
func Zone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // Local is the machine's zone, and nodes may differ
		return nil, fmt.Errorf("zone %q: want a name of the time zone database, as Europe/Berlin, America/New_York or UTC", name)
	}
	return zone, nil
}

// Gap returns the least time between two ticks. It ignores the nights when clocks change.
func (s Schedule) Gap() time.Duration {
	if s.cron != nil {
		return s.cron.smallestGap()
	}
	return s.every
}

// Next returns the first tick after an instant.
func (s Schedule) Next(after time.Time) time.Time {
	if s.cron == nil {
		since := after.UnixMilli() - s.offset.Milliseconds()
		every := s.every.Milliseconds()
		n := since / every
		if since%every < 0 {
			n--
		}
		return time.UnixMilli((n+1)*every + s.offset.Milliseconds()).UTC()
	}
	// Between two changes of its clocks a zone has a constant offset from UTC. So a search among wall
	// clock times is a search among instants.
	from := after.Unix() - floorMod(after.Unix(), 60) + 60
	for {
		here := time.Unix(from, 0).In(s.zone)
		start, end := here.ZoneBounds()
		_, offset := here.Zone()
		tick := s.nextWithin(from, start, int64(offset))
		if end.IsZero() || tick < end.Unix() {
			return time.Unix(tick, 0).UTC()
		}
		from = end.Unix() + floorMod(-end.Unix(), 60)
	}
}

// nextWithin returns the first tick at or after an instant, in the period of constant offset that began at
// start. It ignores the end of that period. A wall clock time is a number of seconds, that of the same
// time in UTC.
func (s Schedule) nextWithin(from int64, start time.Time, offset int64) int64 {
	wall := from + offset
	if start.IsZero() || s.cron.everyHour() {
		return s.cron.nextMatch(wall) - offset
	}
	_, before := start.Add(-time.Second).In(s.zone).Zone()
	old := int64(before)
	tick := s.cron.nextMatch(max(wall, start.Unix()+old)) - offset // after all times that come twice
	if left := s.cron.nextMatch(from + old); left < start.Unix()+offset {
		tick = min(tick, left-old) // a time that was left out
	}
	return tick
}

// floorMod returns the remainder that is never negative.
func floorMod(n, of int64) int64 { return ((n % of) + of) % of }

// Jitter returns how long after its tick a job of this name begins. It is less than most, and all nodes
// compute the same.
func Jitter(name string, tick time.Time, most time.Duration) time.Duration {
	if most < time.Millisecond {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", name, tick.UnixMicro())
	sum := h.Sum64()
	sum ^= sum >> 32 // in FNV the last byte hardly moves the high bits
	sum *= 0x9e3779b97f4a7c15
	return time.Duration((sum>>11)%uint64(most.Milliseconds())) * time.Millisecond
}

// Describe returns a schedule in words, for lists.
func (s Schedule) Describe() string {
	switch {
	case s.cron != nil && s.cron.inWords() != "":
		return s.cron.inWords() + ", " + s.zone.String()
	case s.cron != nil:
		return s.cron.text + " " + s.zone.String()
	case s.offset > 0:
		return "every " + shortDuration(s.every) + " + " + shortDuration(s.offset)
	}
	return "every " + shortDuration(s.every)
}

// shortDuration leaves out zero units: 1h instead of 1h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
