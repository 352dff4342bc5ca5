package calendar

import (
	"fmt"
	"strings"
	"time"
)

// The values of fields that leave nothing out.
const (
	allMinutes  = 1<<60 - 1
	allHours    = 1<<24 - 1
	allDays     = 1<<32 - 2
	allMonths   = 1<<13 - 2
	allWeekdays = 1<<7 - 1
)

// maxListed is the largest number of values that are listed individually.
const maxListed = 4

// inWords describes an expression in words. It returns "" if the words would be harder to read than the
// expression.
func (e *expression) inWords() string {
	times, days := e.timesInWords(), e.daysInWords()
	if times == "" || days == "" {
		return ""
	}
	if strings.HasPrefix(times, "at ") || days != everyDay {
		return times + ", " + days
	}
	return times // "every minute" and "each hour" are complete by themselves
}

// timesInWords describes the times of a day.
func (e *expression) timesInWords() string {
	minutes, hours := valuesOf(e.minute), valuesOf(e.hour)
	step := evenStep(minutes)
	switch {
	case e.hour == allHours && e.minute == allMinutes:
		return "every minute"
	case e.hour == allHours && step > 0:
		return fmt.Sprintf("every %d minutes", step)
	case e.hour == allHours && e.minute == 1:
		return "each hour"
	case e.hour == allHours && len(minutes) <= maxListed:
		return "each hour at " + joinNames(minutes, func(m int) string { return fmt.Sprintf(":%02d", m) })
	case len(minutes)*len(hours) <= maxListed:
		var all []int
		for _, h := range hours {
			for _, m := range minutes {
				all = append(all, h*60+m)
			}
		}
		return "at " + joinNames(all, clockTime)
	case len(minutes) == 1 && areConsecutive(hours):
		return "each hour from " + clockTime(hours[0]*60+minutes[0]) + " to " + clockTime(hours[len(hours)-1]*60+minutes[0])
	}
	return ""
}

const everyDay = "each day"

// daysInWords describes the days of a year.
func (e *expression) daysInWords() string {
	text := ""
	weekdays, days := valuesOf(e.weekday), valuesOf(e.day)
	switch {
	case e.weekday == allWeekdays && e.day == allDays:
		text = everyDay
	case e.day == allDays && len(weekdays) > 2 && areConsecutive(weekdays):
		text = time.Weekday(weekdays[0]).String() + " to " + time.Weekday(weekdays[len(weekdays)-1]).String()
	case e.day == allDays && len(weekdays) <= maxListed:
		text = joinNames(weekdays, func(d int) string { return time.Weekday(d).String() })
	case e.weekday == allWeekdays && len(days) <= maxListed:
		text = "day " + joinNames(days, func(d int) string { return fmt.Sprint(d) })
	default:
		return ""
	}
	months := valuesOf(e.month)
	switch {
	case e.month == allMonths && strings.HasPrefix(text, "day "):
		return text + " of each month"
	case e.month == allMonths:
		return text
	case len(months) <= maxListed && strings.HasPrefix(text, "day "):
		return text + " of " + joinNames(months, monthName)
	case len(months) <= maxListed:
		return text + " in " + joinNames(months, monthName)
	}
	return ""
}

func monthName(m int) string { return time.Month(m).String() }

func clockTime(minutes int) string { return fmt.Sprintf("%02d:%02d", minutes/60, minutes%60) }

// valuesOf returns the values in a set.
func valuesOf(set uint64) (all []int) {
	for v := range 60 {
		if set&(1<<v) != 0 {
			all = append(all, v)
		}
	}
	return all
}

func joinNames(all []int, name func(int) string) string {
	var names []string
	for _, v := range all {
		names = append(names, name(v))
	}
	return strings.Join(names, ", ")
}

func areConsecutive(all []int) bool { return all[len(all)-1]-all[0] == len(all)-1 }

// evenStep returns the step of minutes that are evenly spaced over all hours, 0 if they are not.
func evenStep(minutes []int) int {
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
