package calendar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"
)

func at(t testing.TB, zone, text string) time.Time {
	t.Helper()
	location, err := Zone(zone)
	if err != nil {
		t.Fatal(err)
	}
	when, err := time.ParseInLocation("2006-01-02 15:04", text, location)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

// The nights in which clocks change: 2026 in Berlin, New York and Lord Howe, whose clocks move by half
// an hour; Kathmandu's never do, and are 5:45 h ahead of UTC.
func TestNightsOfDaylightSaving(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, cron, from, want string }{
		{"Europe/Berlin", "30 2 * * *", "2026-03-28 12:00", "29 03:30 CEST, 30 02:30 CEST"},
		{"Europe/Berlin", "0,30 2 * * *", "2026-03-28 12:00", "29 03:00 CEST, 29 03:30 CEST, 30 02:00 CEST"},
		{"Europe/Berlin", "30 2,3 * * *", "2026-03-28 12:00", "29 03:30 CEST, 30 02:30 CEST, 30 03:30 CEST"},
		{"Europe/Berlin", "0 3 * * *", "2026-03-28 12:00", "29 03:00 CEST, 30 03:00 CEST"},
		{"Europe/Berlin", "*/30 * * * *", "2026-03-29 01:15", "29 01:30 CET, 29 03:00 CEST, 29 03:30 CEST"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-24 12:00", "25 02:30 CEST, 26 02:30 CET"},
		{"Europe/Berlin", "0,30 2 * * *", "2026-10-24 12:00", "25 02:00 CEST, 25 02:30 CEST, 26 02:00 CET"},
		{"Europe/Berlin", "30 2,3 * * *", "2026-10-24 12:00", "25 02:30 CEST, 25 03:30 CET, 26 02:30 CET"},
		{"Europe/Berlin", "*/30 * * * *", "2026-10-25 01:45", "25 02:00 CEST, 25 02:30 CEST, 25 02:00 CET, 25 02:30 CET, 25 03:00 CET"},
		{"America/New_York", "30 2 * * *", "2026-03-07 12:00", "08 03:30 EDT, 09 02:30 EDT"},
		{"America/New_York", "30 1 * * *", "2026-10-31 12:00", "01 01:30 EDT, 02 01:30 EST"},
		{"America/New_York", "15 * * * *", "2026-11-01 00:30", "01 01:15 EDT, 01 01:15 EST, 01 02:15 EST"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", "04 02:45 +11, 05 02:15 +11"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-04 12:00", "05 01:45 +11, 06 01:45 +1030"},
		{"Australia/Lord_Howe", "45 * * * *", "2026-04-05 01:00", "05 01:45 +11, 05 01:45 +1030, 05 02:45 +1030"},
		{"Asia/Kathmandu", "30 2 * * *", "2026-03-28 12:00", "29 02:30 +0545, 30 02:30 +0545"},
		{"Asia/Kathmandu", "30 2 * * *", "2026-10-24 12:00", "25 02:30 +0545, 26 02:30 +0545"},
		{"Asia/Kathmandu", "0 * * * *", "2026-10-24 12:00", "24 13:00 +0545, 24 14:00 +0545"},
		{"Pacific/Apia", "0 6 * * *", "2011-12-29 05:00", "29 06:00 -10, 31 06:00 +14"}, // there was no 30th
		{"UTC", "@weekly", "2026-10-24 12:00", "25 00:00 UTC, 01 00:00 UTC"},
	} {
		s, err := Cron(c.cron, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for tick, n := at(t, c.zone, c.from), strings.Count(c.want, ",")+1; n > 0; n-- {
			tick = s.Next(tick)
			got = append(got, tick.In(s.zone).Format("02 15:04 MST"))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s, %s from %s:\n got %s\nwant %s", c.zone, c.cron, c.from, text, c.want)
		}
	}
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	for cron, want := range map[string]string{
		"0 6 * * 1-5":       "Fri 2026-01-02 06:00, Mon 2026-01-05 06:00",
		"0 6 * * MON-fri":   "Fri 2026-01-02 06:00, Mon 2026-01-05 06:00",
		"0 0 * * 7":         "Sun 2026-01-04 00:00, Sun 2026-01-11 00:00",
		"0 0 * * SAT-SUN":   "Sat 2026-01-03 00:00, Sun 2026-01-04 00:00",
		"0 0 13 * SUN":      "Sun 2026-01-04 00:00, Sun 2026-01-11 00:00",
		"0 0 3 * FRI":       "Fri 2026-01-02 00:00, Sat 2026-01-03 00:00", // either is enough
		"0 0 */13 * FRI":    "Fri 2026-02-27 00:00, Fri 2026-03-27 00:00", // both, with a star
		"0 0 29 2 */7":      "Sun 2032-02-29 00:00, Sun 2060-02-29 00:00",
		"0 0 29 FEB *":      "Tue 2028-02-29 00:00, Sun 2032-02-29 00:00",
		"5/20 0-4/2 1 * *":  "Sun 2026-02-01 00:05, Sun 2026-02-01 00:25",
		"0 0 31 * *":        "Sat 2026-01-31 00:00, Tue 2026-03-31 00:00",
		"@yearly":           "Fri 2027-01-01 00:00, Sat 2028-01-01 00:00",
		" 0\t0 1 JAN,jul *": "Wed 2026-07-01 00:00, Fri 2027-01-01 00:00",
		"@Daily":            "Fri 2026-01-02 00:00, Sat 2026-01-03 00:00",
	} {
		s, err := Cron(cron, "")
		if err != nil {
			t.Error(err)
			continue
		}
		first := s.Next(at(t, "", "2026-01-01 12:00"))
		got := first.Format("Mon 2006-01-02 15:04, ") + s.Next(first).Format("Mon 2006-01-02 15:04")
		if got != want {
			t.Errorf("%q: got %s, want %s", cron, got, want)
		}
	}
}

// Errors say at which character the expression is wrong, and what would be right.
func TestErrorsSayWhere(t *testing.T) {
	t.Parallel()
	for cron, want := range map[string]string{
		"61 * * * *":           `cron "61 * * * *", at character 1: minute: "61", want 0 to 59, or *`,
		"0 6 * * 1-9":          `cron "0 6 * * 1-9", at character 11: day of the week: "9", want 0 to 7, or SUN to SAT`,
		"0 6 * FOO *":          `cron "0 6 * FOO *", at character 7: month: "FOO", want 1 to 12, or JAN to DEC`,
		"0,5,x 6 * * *":        `cron "0,5,x 6 * * *", at character 5: minute: "x", want 0 to 59, or *`,
		"*/0 * * * *":          `cron "*/0 * * * *", at character 3: minute: step "0", want a number from 1 to 59`,
		"0 22-2 * * *":         `cron "0 22-2 * * *", at character 3: hour: range 22-2 ends before it begins; write it as two, with a comma`,
		"0 6 * *":              `cron "0 6 * *", at character 8: 4 fields; want minute, hour, day of the month, month and day of the week, as in "0 6 * * 1-5"`,
		"":                     `cron "", at character 1: 0 fields; want minute, hour, day of the month, month and day of the week, as in "0 6 * * 1-5"`,
		"0 0 6 * * *":          `cron "0 0 6 * * *", at character 11: more than 5 fields, there is none for seconds; want minute, hour, day of the month, month and day of the week, as in "0 6 * * 1-5". For less than a minute use every`,
		"@every 5m":            `cron "@every 5m", at character 1: an interval is no cron expression; write it as every, as in every: 30s`,
		" @often":              `cron " @often", at character 2: unknown shorthand; want @hourly, @daily, @weekly, @monthly or @yearly`,
		"TZ=Europe/Berlin 0 6": `cron "TZ=Europe/Berlin 0 6", at character 1: the time zone is no part of the expression; write it as zone, as in zone: Europe/Berlin`,
		"0 0 31 2 *":           `cron "0 0 31 2 *" never comes: no February has a day 31`,
		"0 0 31 4,6 *":         `cron "0 0 31 4,6 *" never comes: no April or June has a day 31`,
		"0 0 L * *":            `cron "0 0 L * *", at character 5: day of the month: "L", want 1 to 31, or *`,
		"+1 * * * *":           `cron "+1 * * * *", at character 1: minute: "+1", want 0 to 59, or *`,
		"1- * * * *":           `cron "1- * * * *", at character 3: minute: "", want 0 to 59, or *`,
	} {
		if _, err := Cron(cron, ""); err == nil || err.Error() != want {
			t.Errorf("%q:\n got %v\nwant %s", cron, err, want)
		}
	}
	for _, zone := range []string{"Europe/Berln", "Local", "../etc/passwd", "CEST", "+02:00"} {
		if _, err := Cron("@daily", zone); err == nil || !strings.Contains(err.Error(), "Europe/Berlin") {
			t.Errorf("zone %q: got %v, want an error with an example", zone, err)
		}
	}
	if _, err := Cron(strings.Repeat("0,", 600)+"0 * * * *", ""); err == nil {
		t.Error("a long expression: got no error")
	}
}

func TestEvery(t *testing.T) {
	t.Parallel()
	s, err := Every(30*time.Second, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ after, want int64 }{{0, 5}, {5, 35}, {4, 5}, {1_700_000_000, 1_700_000_015}, {-1, 5}, {-26, -25}, {-25, 5}} {
		if got := s.Next(time.Unix(c.after, 0)).Unix(); got != c.want {
			t.Errorf("after %d: got %d, want %d", c.after, got, c.want)
		}
	}
	for _, c := range []struct{ every, offset time.Duration }{
		{0, 0}, {time.Second - 1, 0}, {400 * 24 * time.Hour, 0}, {time.Minute, time.Minute}, {time.Minute, -1}, {time.Second + 1, 0}, {time.Second, 1},
	} {
		if _, err := Every(c.every, c.offset); err == nil {
			t.Errorf("every %v, offset %v: got no error", c.every, c.offset)
		}
	}
}

func TestJitterFollowsFromNameAndTick(t *testing.T) {
	t.Parallel()
	const most = 2 * time.Second
	seen := map[time.Duration]bool{}
	for i := range int64(1000) {
		tick := time.Unix(1_700_000_000+i, 0)
		j := Jitter("sync", tick, most)
		if j != Jitter("sync", tick.In(time.FixedZone("x", 3600)), most) || j < 0 || j >= most {
			t.Fatalf("tick %v: got %v, want the same below %v", tick, j, most)
		}
		seen[j] = true
	}
	if len(seen) < 700 {
		t.Errorf("got %d different of 1000 of 2000, want about 787", len(seen))
	}
	if got := Jitter("sync", time.Now(), 0); got != 0 {
		t.Errorf("no jitter: got %v", got)
	}
}

func TestDescribeAndGap(t *testing.T) {
	t.Parallel()
	hour, _ := Every(time.Hour, 0)
	later, _ := Every(90*time.Second, 5*time.Second)
	cron, _ := Cron("0,50 * * * *", "Asia/Kathmandu")
	daily, _ := Cron("0 6 * * *", "")
	for _, c := range []struct {
		s    Schedule
		want string
		gap  time.Duration
	}{
		{hour, "every 1h", time.Hour}, {later, "every 1m30s + 5s", 90 * time.Second},
		{cron, "each hour at :00, :50, Asia/Kathmandu", 10 * time.Minute}, {daily, "at 06:00, each day, UTC", time.Hour},
	} {
		if got := c.s.Describe(); got != c.want || c.s.Gap() != c.gap {
			t.Errorf("got %q, %v, want %q, %v", got, c.s.Gap(), c.want, c.gap)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for cron, want := range map[string]string{
		"0 6 * * 1-5": "at 06:00, Monday to Friday, UTC", "30 2,14 * * *": "at 02:30, 14:30, each day, UTC", "* * * * *": "every minute, UTC", "*/5 * * * *": "every 5 minutes, UTC",
		"@hourly": "each hour, UTC", "15 * * * 0,6": "each hour at :15, Sunday, Saturday, UTC", "0 9-17 * * 1-5": "each hour from 09:00 to 17:00, Monday to Friday, UTC",
		"@monthly": "at 00:00, day 1 of each month, UTC", "@yearly": "at 00:00, day 1 of January, UTC", "0 0 1,15 6 *": "at 00:00, day 1, 15 of June, UTC", "@weekly": "at 00:00, Sunday, UTC",
		"0 12 * 6-8 MON": "at 12:00, Monday in June, July, August, UTC", "*/7 * * * *": "*/7 * * * * UTC", "0 6 13 * 5": "0 6 13 * 5 UTC", "0 */2 * * *": "0 */2 * * * UTC", "0 0 * 1-6 *": "0 0 * 1-6 * UTC",
		"0 0 */2 * *": "0 0 */2 * * UTC", "0 0 * * 5-7": "at 00:00, Sunday, Friday, Saturday, UTC", "@daily": "at 00:00, each day, UTC",
	} {
		s, err := Cron(cron, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Describe(); got != want {
			t.Errorf("%s: got %q, want %q", cron, got, want)
		}
	}
}

// drawCron makes expressions that come.
func drawCron(t *rapid.T) string {
	item := func(f field) string {
		last := min(f.max, 28)
		a := rapid.IntRange(f.min, last).Draw(t, f.name)
		switch rapid.IntRange(0, 5).Draw(t, "form") {
		case 0:
			return fmt.Sprint(a)
		case 1:
			return fmt.Sprintf("%d-%d", a, rapid.IntRange(a, last).Draw(t, "to"))
		case 2:
			return fmt.Sprintf("*/%d", rapid.IntRange(1, f.max-f.min).Draw(t, "step"))
		case 3:
			return fmt.Sprintf("%d,%d", a, rapid.IntRange(f.min, last).Draw(t, "and"))
		}
		return "*"
	}
	var words []string
	for _, f := range fields {
		words = append(words, item(f))
	}
	return strings.Join(words, " ")
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca"}

// Next rises, and skips nothing: what is asked in between has the same answer.
func TestNextIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, err := Cron(drawCron(t), rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		after := time.Unix(rapid.Int64Range(1_200_000_000, 2_000_000_000).Draw(t, "after"), 0)
		next := s.Next(after)
		if !next.After(after) {
			t.Fatalf("after %v: got %v", after, next)
		}
		between := after.Add(time.Duration(rapid.Int64Range(0, int64(next.Sub(after)-1)).Draw(t, "between")))
		if got := s.Next(between); !got.Equal(next) {
			t.Fatalf("after %v got %v, but after %v, which is later, %v", after, next, between, got)
		}
		if got := s.Next(next); !got.After(next) {
			t.Fatalf("after %v: got %v", next, got)
		}
	})
}

// plain are the ticks of some days as one would find them by hand: each minute of the clock, looked
// for among the instants.
func plain(s Schedule, from time.Time, days int) []time.Time {
	seen := map[string]time.Time{} // by wall clock: the first instant that shows it
	var ticks []time.Time
	to := from.Add(time.Duration(days) * 24 * time.Hour)
	const form = "2006-01-02 15:04"
	for t := from.Add(-48 * time.Hour); t.Before(to.Add(48 * time.Hour)); t = t.Add(time.Minute) {
		wall := t.In(s.zone)
		text := wall.Format(form)
		if _, again := seen[text]; !again {
			seen[text] = t
		}
		asUTC, _ := time.Parse(form, text)
		if s.cron.everyHour() && s.cron.matchesDay(asUTC) && s.cron.minute&(1<<wall.Minute()) != 0 {
			ticks = append(ticks, t)
		}
	}
	first := from.Add(-24 * time.Hour).In(s.zone)
	for wall := time.Date(first.Year(), first.Month(), first.Day(), 0, 0, 0, 0, time.UTC); !s.cron.everyHour() && wall.Before(to.Add(48*time.Hour)); wall = wall.Add(time.Minute) {
		if !s.cron.matchesDay(wall) || s.cron.minute&(1<<wall.Minute()) == 0 || s.cron.hour&(1<<wall.Hour()) == 0 {
			continue
		}
		t, ok := seen[wall.Format(form)]
		for moved := wall; !ok; { // left out: as long after the time of the change
			moved = moved.Add(-time.Minute)
			if t, ok = seen[moved.Format(form)]; ok {
				t = t.Add(wall.Sub(moved))
			}
		}
		ticks = append(ticks, t)
	}
	slices.SortFunc(ticks, time.Time.Compare)
	ticks = slices.CompactFunc(ticks, time.Time.Equal)
	return slices.DeleteFunc(ticks, func(t time.Time) bool { return !t.After(from) || t.After(to) })
}

func TestNextAgreesWithThePlainWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		cron := drawCron(t)
		if rapid.Bool().Draw(t, "any day") {
			words := strings.Fields(cron)
			cron = words[0] + " " + words[1] + " * * *"
		}
		s, err := Cron(cron, zone)
		if err != nil {
			t.Fatal(err)
		}
		from := time.Unix(rapid.Int64Range(1_200_000_000, 2_000_000_000).Draw(t, "from"), 0).Truncate(time.Minute)
		if rapid.Bool().Draw(t, "near a change") {
			if start, end := from.In(s.zone).ZoneBounds(); !end.IsZero() {
				from = end.Add(-30 * time.Hour).Truncate(time.Minute)
			} else if !start.IsZero() {
				from = start.Add(-30 * time.Hour).Truncate(time.Minute)
			}
			if from.Before(time.Unix(1_200_000_000, 0)) {
				t.Skip("the zone had other seconds then")
			}
		}
		for _, want := range plain(s, from, 3) {
			if from = s.Next(from); !from.Equal(want) {
				t.Fatalf("%s %s: got %v, want %v", cron, zone, from.In(s.zone), want.In(s.zone))
			}
		}
	})
}

func FuzzCron(f *testing.F) {
	for _, seed := range []string{"0 6 * * 1-5", "*/5 * * * *", "@daily", "0 0 31 2 *", "1-5/2,7 22 L * MON#1", "TZ=x", "0 0 29 2 */7", "\t", "0 0 1 jan-dec sun"} {
		f.Add(seed, "Europe/Berlin", int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, cron, zone string, after int64) {
		s, err := Cron(cron, zone)
		if err != nil || after < 0 || after > 1<<33 {
			return
		}
		from := time.Unix(after, 0)
		if next := s.Next(from); !next.After(from) || next.Sub(from) > 45*366*24*time.Hour {
			t.Errorf("%q in %q after %v: got %v", cron, zone, from, next)
		}
	})
}

func BenchmarkNext(b *testing.B) {
	s, err := Cron("* 6-23 * * *", "Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	for tick := time.Unix(1_790_000_000, 0); b.Loop(); {
		tick = s.Next(tick)
	}
}
