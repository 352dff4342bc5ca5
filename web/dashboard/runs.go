package dashboard

import (
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// runLine is a run as pages show it.
type runLine struct {
	browse.Run
	Answer *payloadText // its handler's result, nil if there is none
}

func runLines(runs []browse.Run) []runLine {
	lines := make([]runLine, len(runs))
	for i, r := range runs {
		lines[i] = runLine{Run: r}
		if r.Result != nil {
			text := textOf(r.Result)
			lines[i].Answer = &text
		}
	}
	return lines
}

// Waited returns the time from the job's due time to the call of its handler, or to the pop if the time of the call is unknown.
func (r runLine) Waited() time.Duration {
	if r.Began.IsZero() {
		return max(0, r.Popped.Sub(r.Due))
	}
	return max(0, r.Began.Sub(r.Due))
}

// Node returns the node of the handler.
func (r runLine) Node() string { return nodeOf(r.Instance) }

// bar is a part of a run's time, in percent of the whole time.
type bar struct {
	Class       string
	From, Width string
}

// Bars returns the parts of a run's time: due, popped, and with its handler.
func (r runLine) Bars() (bars []bar) {
	all := r.Ended.Sub(r.Due).Seconds()
	if all <= 0 {
		all = r.Took.Seconds()
	}
	if r.Began.IsZero() || all <= 0 {
		return nil
	}
	at := 0.0
	for i, d := range []time.Duration{r.Popped.Sub(r.Due), r.Began.Sub(r.Popped), r.Took} {
		width := min(100*max(0, d.Seconds()/all), 100-at)
		bars = append(bars, bar{[]string{"due", "popped", "ran"}[i], strconv.FormatFloat(at, 'f', 2, 64), strconv.FormatFloat(width, 'f', 2, 64)})
		at += width
	}
	return bars
}

// Failed reports whether the run failed.
func (r runLine) Failed() bool {
	return r.Verdict == browse.RunFailed || r.Verdict == browse.RunExhausted || r.Verdict == browse.RunCrashed
}
