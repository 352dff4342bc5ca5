package calendar

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// expression is a cron expression. Each field is a set of values, as bits.
type expression struct {
	text                              string
	minute, hour, day, month, weekday uint64
	// anyDay is true if the day or the weekday begins with a star. Then a date must match both.
	// Otherwise a match of the day or of the weekday is enough, as in every cron.
	anyDay bool
}

// field describes one of the five fields.
type field struct {
	name     string
	min, max int
	names    []string // names of the values, beginning with min
}

var fields = [5]field{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{"day of the week", 0, 7, []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// shorthands are the expressions that have a name.
var shorthands = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

const cronForm = `want minute, hour, day of the month, month and day of the week, as in "0 6 * * 1-5"`

// maxCron is the largest number of bytes in an expression.
const maxCron = 1000

// parseExpression reads an expression. Its errors name the field, the position of the wrong character
// (from 1), and the values that it may have.
func parseExpression(text string) (*expression, error) {
	if len(text) > maxCron {
		return nil, fmt.Errorf("cron expression of %d bytes: at most %d are allowed", len(text), maxCron)
	}
	fail := func(at int, format string, args ...any) error {
		return fmt.Errorf("cron %q, at character %d: %s", text, at+1, fmt.Sprintf(format, args...))
	}
	line, begin := text, 0
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "@") {
		long, ok := shorthands[strings.ToLower(trimmed)]
		switch {
		case strings.HasPrefix(trimmed, "@every"):
			return nil, fail(strings.IndexByte(text, '@'), "an interval is no cron expression; write it as every, as in every: 30s")
		case !ok:
			return nil, fail(strings.IndexByte(text, '@'), "unknown shorthand; want @hourly, @daily, @weekly, @monthly or @yearly")
		}
		line = long
	} else if name, _, ok := strings.Cut(trimmed, "="); ok && (name == "TZ" || name == "CRON_TZ") {
		return nil, fail(strings.Index(text, name), "the time zone is no part of the expression; write it as zone, as in zone: Europe/Berlin")
	}
	e := &expression{text: text}
	sets := [5]*uint64{&e.minute, &e.hour, &e.day, &e.month, &e.weekday}
	for n := 0; ; n++ {
		begin += len(line[begin:]) - len(strings.TrimLeft(line[begin:], " \t"))
		if begin == len(line) {
			if n < 5 {
				return nil, fail(begin, "%d fields; %s", n, cronForm)
			}
			break
		}
		if n == 5 {
			return nil, fail(begin, "more than 5 fields, there is none for seconds; %s. For less than a minute use every", cronForm)
		}
		word := line[begin:]
		if end := strings.IndexAny(word, " \t"); end >= 0 {
			word = word[:end]
		}
		set, at, err := fields[n].parseField(word)
		if err != nil {
			return nil, fail(begin+at, "%s: %v", fields[n].name, err)
		}
		*sets[n] = set
		e.anyDay = e.anyDay || (n == 2 || n == 4) && word[0] == '*'
		begin += len(word)
	}
	if e.weekday&(1<<7) != 0 {
		e.weekday = e.weekday&^(1<<7) | 1
	}
	if e.nextMatch(0) == never {
		return nil, fmt.Errorf("cron %q never comes: no %s has a day %s", text, monthNames(e.month), listValues(e.day))
	}
	return e, nil
}

// parseField reads a field, which is a list of values, ranges and steps. at is the place of an error in
// the word.
func (f *field) parseField(word string) (set uint64, at int, err error) {
	for item := range strings.SplitSeq(word, ",") {
		bits, off, err := f.parseItem(item)
		if err != nil {
			return 0, at + off, err
		}
		set |= bits
		at += len(item) + 1
	}
	return set, 0, nil
}

// parseItem reads a value or a range, with or without a step.
func (f *field) parseItem(item string) (set uint64, at int, err error) {
	span, stepText, stepped := strings.Cut(item, "/")
	step := 1
	if stepped {
		at = len(span) + 1
		if step, err = parseNumber(stepText); err != nil || step < 1 || step > f.max-f.min {
			return 0, at, fmt.Errorf("step %q, want a number from 1 to %d", stepText, f.max-f.min)
		}
	}
	first, last := f.min, f.max
	if f.max == 7 {
		last = 6 // 7 is another number for Sunday
	}
	if span != "*" {
		from, to, ranged := strings.Cut(span, "-")
		if first, err = f.parseValue(from); err != nil {
			return 0, 0, err
		}
		switch {
		case ranged:
			at = len(from) + 1
			if last, err = f.parseValue(to); err != nil {
				return 0, at, err
			}
			if f.max == 7 && last == 0 && first > 0 {
				last = 7
			}
			if last < first {
				return 0, 0, fmt.Errorf("range %s ends before it begins; write it as two, with a comma", span)
			}
		case !stepped:
			last = first
		}
	}
	for v := first; v <= last; v += step {
		set |= 1 << v
	}
	return set, 0, nil
}

// parseValue reads a number or a name of the field.
func (f *field) parseValue(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToUpper(text)); i >= 0 {
		return f.min + i, nil
	}
	n, err := parseNumber(text)
	if err != nil || n < f.min || n > f.max {
		if len(f.names) > 0 {
			return 0, fmt.Errorf("%q, want %d to %d, or %s to %s", text, f.min, f.max, f.names[0], f.names[len(f.names)-1])
		}
		return 0, fmt.Errorf("%q, want %d to %d, or *", text, f.min, f.max)
	}
	return n, nil
}

// parseNumber reads digits without a sign.
func parseNumber(text string) (int, error) {
	if text == "" || len(text) > 4 || strings.Trim(text, "0123456789") != "" {
		return 0, errors.New("no number")
	}
	return strconv.Atoi(text)
}

func (e *expression) everyHour() bool { return e.hour == 1<<24-1 }

// smallestGap returns the shortest time between two minutes of the field, an hour if the field has a
// single minute.
func (e *expression) smallestGap() time.Duration {
	shortest, last := 60, -1
	first := bits.TrailingZeros64(e.minute)
	for m := range 60 {
		if e.minute&(1<<m) != 0 {
			if last >= 0 {
				shortest = min(shortest, m-last)
			}
			last = m
		}
	}
	return time.Duration(min(shortest, first+60-last)) * time.Minute
}

// never is later than any time. nextMatch returns it for an expression without a time.
const never = int64(1) << 60

// search is how many days and months nextMatch tries. In 40 years the 29th of February is each weekday.
const search = 41 * 366

// nextMatch returns the first wall clock time of the expression at or after wall, a whole minute. Both
// are in seconds of the same time in UTC.
func (e *expression) nextMatch(wall int64) int64 {
	wall += floorMod(-wall, 60)
	day, minutes := (wall-floorMod(wall, 86400))/86400, int(floorMod(wall, 86400)/60)
	for range search {
		date := time.Unix(day*86400, 0).UTC()
		switch {
		case e.month&(1<<date.Month()) == 0:
			day += int64(date.AddDate(0, 1, 1-date.Day()).Sub(date) / (24 * time.Hour))
			minutes = 0
			continue
		case e.matchesDay(date):
			if m := e.nextInDay(minutes); m >= 0 {
				return day*86400 + int64(m)*60
			}
		}
		day, minutes = day+1, 0
	}
	return never
}

// matchesDay reports whether the expression has a time on a date, which must be in UTC.
func (e *expression) matchesDay(date time.Time) bool {
	if e.month&(1<<date.Month()) == 0 {
		return false
	}
	day, weekday := e.day&(1<<date.Day()) != 0, e.weekday&(1<<date.Weekday()) != 0
	if e.anyDay {
		return day && weekday
	}
	return day || weekday
}

// nextInDay returns the first minute of a day that is not before from, -1 if there is none.
func (e *expression) nextInDay(from int) int {
	hour, minute := from/60, from%60
	if e.hour&(1<<hour) != 0 {
		if m := e.minute >> minute; m != 0 {
			return hour*60 + minute + bits.TrailingZeros64(m)
		}
	}
	if later := e.hour >> (hour + 1); later != 0 {
		return (hour+1+bits.TrailingZeros64(later))*60 + bits.TrailingZeros64(e.minute)
	}
	return -1
}

func monthNames(set uint64) string {
	var names []string
	for m := time.January; m <= time.December; m++ {
		if set&(1<<m) != 0 {
			names = append(names, m.String())
		}
	}
	return strings.Join(names, " or ")
}

func listValues(set uint64) string {
	var all []string
	for v := range 32 {
		if set&(1<<v) != 0 {
			all = append(all, strconv.Itoa(v))
		}
	}
	return strings.Join(all, ", ")
}
