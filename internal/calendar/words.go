package calendar

import (
	"fmt"
	"strings"
	"time"
)

// What the fields of an expression hold if they leave nothing out.
const (
	allMinutes  = 1<<60 - 1
	allHours    = 1<<24 - 1
	allDays     = 1<<32 - 2
	allMonths   = 1<<13 - 2
	allWeekdays = 1<<7 - 1
)

// mostWords is how many values are named one by one.
const mostWords = 4

// words says in words when an expression comes, "" if that would be longer than the expression is clear.
func (e *expression) words() string {
	times, days := e.times(), e.days()
	if times == "" || days == "" {
		return ""
	}
	if strings.HasPrefix(times, "at ") || days != everyDay {
		return times + ", " + days
	}
	return times // every minute, each hour
}

// times are those of a day.
func (e *expression) times() string {
	minutes, hours := values(e.minute), values(e.hour)
	step := evenly(minutes)
	switch {
	case e.hour == allHours && e.minute == allMinutes:
		return "every minute"
	case e.hour == allHours && step > 0:
		return fmt.Sprintf("every %d minutes", step)
	case e.hour == allHours && e.minute == 1:
		return "each hour"
	case e.hour == allHours && len(minutes) <= mostWords:
		return "each hour at " + join(minutes, func(m int) string { return fmt.Sprintf(":%02d", m) })
	case len(minutes)*len(hours) <= mostWords:
		var all []int
		for _, h := range hours {
			for _, m := range minutes {
				all = append(all, h*60+m)
			}
		}
		return "at " + join(all, clock)
	case len(minutes) == 1 && inARow(hours):
		return "each hour from " + clock(hours[0]*60+minutes[0]) + " to " + clock(hours[len(hours)-1]*60+minutes[0])
	}
	return ""
}

const everyDay = "each day"

// days are those of a year.
func (e *expression) days() string {
	text := ""
	weekdays, days := values(e.weekday), values(e.day)
	switch {
	case e.weekday == allWeekdays && e.day == allDays:
		text = everyDay
	case e.day == allDays && len(weekdays) > 2 && inARow(weekdays):
		text = time.Weekday(weekdays[0]).String() + " to " + time.Weekday(weekdays[len(weekdays)-1]).String()
	case e.day == allDays && len(weekdays) <= mostWords:
		text = join(weekdays, func(d int) string { return time.Weekday(d).String() })
	case e.weekday == allWeekdays && len(days) <= mostWords:
		text = "day " + join(days, func(d int) string { return fmt.Sprint(d) })
	default:
		return ""
	}
	months := values(e.month)
	switch {
	case e.month == allMonths && strings.HasPrefix(text, "day "):
		return text + " of each month"
	case e.month == allMonths:
		return text
	case len(months) <= mostWords && strings.HasPrefix(text, "day "):
		return text + " of " + join(months, monthName)
	case len(months) <= mostWords:
		return text + " in " + join(months, monthName)
	}
	return ""
}

func monthName(m int) string { return time.Month(m).String() }

func clock(minutes int) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }

// values are those that a set has.
func values(set uint64) (all []int) {
	for v := range 60 {
		if set&(1<<v) != 0 {
			all = append(all, v)
		}
	}
	return all
}

func join(all []int, name func(int) string) string {
	var names []string
	for _, v := range all {
		names = append(names, name(v))
	}
	return strings.Join(names, ", ")
}

func inARow(all []int) bool { return all[len(all)-1]-all[0] == len(all)-1 }

// evenly is the step of minutes that come evenly, also from one hour to the next; 0 if they do not.
func evenly(minutes []int) int {
	if len(minutes) < 2 || minutes[0] != 0 || 60%len(minutes) != 0 {
		return 0
	}
	step := 60 / len(minutes)
	for i, m := range minutes {
		if m != i*step {
			return 0
		}
	}
	return step
}
