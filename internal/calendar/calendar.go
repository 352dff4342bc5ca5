// Package calendar says when something recurs: by a cron expression on the clocks of a time zone,
// or in a fixed interval. It is pure: it knows no clock, no Redis and no job.
//
// The type is [Schedule]; [Cron] and [Every] make one, or say where in their input what is wrong.
package calendar

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// Schedule is a rising sequence of instants, called ticks, without an end. The zero value has none.
type Schedule struct {
	cron          *expression // nil: by the interval
	zone          *time.Location
	every, offset time.Duration
}

// Shortest and longest are the limits of an interval.
const (
	Shortest = time.Second
	Longest  = 366 * 24 * time.Hour
)

// Every is a tick each interval, counted from the Unix epoch plus offset, so that all nodes have the
// same ticks whenever they began. Both are in whole milliseconds.
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

// Cron are the ticks of a cron expression on the clocks of a zone of the time zone database, "" =
// UTC. In a night in which clocks are put forward or back, a time of day comes once: one that is left
// out comes later by as much as the clocks were moved (02:30 becomes 03:30), and of one that comes
// twice the first counts. An expression of every hour has its ticks in each hour that passes instead.
func Cron(text, zone string) (Schedule, error) {
	location, err := Zone(zone)
	if err != nil {
		return Schedule{}, err
	}
	cron, err := parse(text)
	if err != nil {
		return Schedule{}, err
	}
	return Schedule{cron: cron, zone: location}, nil
}

// Zone is a zone of the time zone database, "" = UTC.
func Zone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // the machine's: nodes may differ
		return nil, fmt.Errorf("zone %q: want a name of the time zone database, as Europe/Berlin, America/New_York or UTC", name)
	}
	return zone, nil
}

// Gap is a time that no two ticks are closer together than, but for the nights in which clocks change.
func (s Schedule) Gap() time.Duration {
	if s.cron != nil {
		return s.cron.gap()
	}
	return s.every
}

// Next is the first tick after an instant.
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
	// Between two changes of its clocks a zone is a constant offset from UTC, so that a search
	// among wall clock times is one among instants.
	from := after.Unix() - mod(after.Unix(), 60) + 60
	for {
		here := time.Unix(from, 0).In(s.zone)
		start, end := here.ZoneBounds()
		_, offset := here.Zone()
		tick := s.within(from, start, int64(offset))
		if end.IsZero() || tick < end.Unix() {
			return time.Unix(tick, 0).UTC()
		}
		from = end.Unix() + mod(-end.Unix(), 60)
	}
}

// within is the first tick from an instant on, were the period that began at start not to end. Wall
// clock times are seconds: those of the same time in UTC.
func (s Schedule) within(from int64, start time.Time, offset int64) int64 {
	wall := from + offset
	if start.IsZero() || s.cron.everyHour() {
		return s.cron.next(wall) - offset
	}
	_, before := start.Add(-time.Second).In(s.zone).Zone()
	old := int64(before)
	tick := s.cron.next(max(wall, start.Unix()+old)) - offset // later than any time that comes twice
	if left := s.cron.next(from + old); left < start.Unix()+offset {
		tick = min(tick, left-old) // left out
	}
	return tick
}

// mod is the remainder that is never negative.
func mod(n, of int64) int64 { return ((n % of) + of) % of }

// Jitter is how long after its tick something of this name is done: less than most, and the same
// wherever it is asked for.
func Jitter(name string, tick time.Time, most time.Duration) time.Duration {
	if most < time.Millisecond {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", name, tick.UnixMicro())
	sum := h.Sum64()
	sum ^= sum >> 32 // of FNV the last byte moves the high bits least
	sum *= 0x9e3779b97f4a7c15
	return time.Duration((sum>>11)%uint64(most.Milliseconds())) * time.Millisecond
}

// Describe says in words what a schedule is, for lists.
func (s Schedule) Describe() string {
	switch {
	case s.cron != nil && s.cron.words() != "":
		return s.cron.words() + ", " + s.zone.String()
	case s.cron != nil:
		return s.cron.text + " " + s.zone.String()
	case s.offset > 0:
		return "every " + short(s.every) + " + " + short(s.offset)
	}
	return "every " + short(s.every)
}

// short leaves out what is zero: 1h, not 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
