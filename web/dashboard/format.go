package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
)

func templateFunctions() template.FuncMap {
	return template.FuncMap{
		"count": formatCount, "lag": formatLag, "ago": formatAgo, "perSecond": perSecond, "plural": formatCountOf, "seconds": secondsText,
		"clock": formatClock, "stamp": formatStamp, "showID": showID, "key": keyOf, "jobLink": jobLink, "lagClass": lagClass, "bytes": bytesText, "bytes64": func(n int64) string { return bytesText(int(n)) }, "took": formatTook, "asked": kindParam,
		"failures": countFailures, "span": formatSpan, "words": spellState, "count64": func(n uint64) string { return formatCount(int(n)) }, "percent": formatPercent, "buttons": buttonsIn,
	}
}

// formatCount writes a number with its thousands apart.
func formatCount(n int) string {
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

// formatPercent writes a share of 0 to 1.
func formatPercent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// countFailures returns how often a job has failed in a row, by its retry count. The first failure has not
// counted as a retry. A crash of its process is a failed attempt, and no failure of the job.
func countFailures(retryCount int) int { return retryCount + 1 }

// formatCountOf returns a count with its noun, as in "1 job" and "2 jobs".
func formatCountOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatCount(n) + " " + many
}

// formatLag writes a duration as people read it: 0 s, 12 s, 4 m 10 s, 3 h 5 m, 2 d 4 h.
func formatLag(d time.Duration) string {
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

func secondsText(s float64) string { return formatLag(time.Duration(s * float64(time.Second))) }

// lagBad is the class of a red lag, which has a sentence beside it.
const lagBad = "bad"

// lagClass marks a queue that does not keep up.
func lagClass(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return lagBad
	case d >= 10*time.Second:
		return "warn"
	}
	return ""
}

// formatAgo returns the time since an instant, or until it.
func formatAgo(at, now time.Time) string {
	if d := now.Sub(at); d >= 0 {
		return formatLag(d) + " ago"
	}
	return "in " + formatLag(at.Sub(now))
}

// formatSpan returns the time since an instant.
func formatSpan(at, now time.Time) string { return formatLag(now.Sub(at)) }

// spellState returns the name of a state as people write it.
func spellState(state any) string { return strings.ReplaceAll(fmt.Sprint(state), "_", " ") }

func perSecond(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return formatCount(int(math.Round(r)))
}

// formatClock returns a time for people, and formatStamp a time for machines.
func formatClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }
func formatStamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

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

// formatTook writes the duration of a handler call.
func formatTook(s float64) string {
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
