package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
)

func functions() template.FuncMap {
	return template.FuncMap{
		"count": count, "lag": lag, "ago": ago, "perSecond": perSecond, "plural": plural, "seconds": secondsText,
		"clock": clock, "stamp": stamp, "showID": showID, "key": keyOf, "jobLink": jobLink, "lagClass": lagClass, "bytes": bytesText, "took": took, "asked": asked,
		"failures": failures, "span": span, "words": words, "count64": func(n uint64) string { return count(int(n)) }, "percent": percent,
	}
}

// count writes a number with its thousands apart.
func count(n int) string {
	text := strconv.Itoa(n)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// percent writes a share of 0 to 1.
func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// failures is how often a job failed in a row, by its retry count: the first failure has cost no
// retry yet. A crash of its process is an attempt that failed, and no failure of the job.
func failures(retryCount int) int { return retryCount + 1 }

// plural is "1 job", "2 jobs".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// lag writes a duration as people read it: 0 s, 12 s, 4 m 10 s, 3 h 5 m, 2 d 4 h.
func lag(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < 10*time.Millisecond:
		return "< 10 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", math.Floor(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d m %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d m", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

func secondsText(s float64) string { return lag(time.Duration(s * float64(time.Second))) }

// lagClass marks a queue that does not keep up.
func lagClass(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return "bad"
	case d >= 10*time.Second:
		return "warn"
	}
	return ""
}

// ago says how long ago an instant was, or how long it is to it.
func ago(at, now time.Time) string {
	if d := now.Sub(at); d >= 0 {
		return lag(d) + " ago"
	}
	return "in " + lag(at.Sub(now))
}

// span is how long ago an instant was.
func span(at, now time.Time) string { return lag(now.Sub(at)) }

// words is the name of a state as people write it.
func words(state any) string { return strings.ReplaceAll(fmt.Sprint(state), "_", " ") }

func perSecond(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return count(int(math.Round(r)))
}

// clock is a time of day, stamp a time for machines.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func bytesText(n int) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// took writes the duration of a handler call.
func took(s float64) string {
	switch {
	case s < 1e-3:
		return strconv.FormatFloat(s*1e3, 'f', 2, 64) + " ms"
	case s < 1:
		return strconv.FormatFloat(s*1e3, 'g', 3, 64) + " ms"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	}
	return secondsText(s)
}
