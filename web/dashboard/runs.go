package dashboard

import (
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// runLine is a run as pages show it.
type runLine struct {
	browse.Run
	Answer *payloadText // its handler's result; nil: none
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

// Waited is how long the job was due before its handler was called, or, where nobody knows that, before it was popped.
func (r runLine) Waited() time.Duration {
	if r.Began.IsZero() {
		return max(0, r.Popped.Sub(r.Due))
	}
	return max(0, r.Began.Sub(r.Due))
}

// Node is whose handler it was.
func (r runLine) Node() string { return nodeOf(r.Instance) }

// bar is a part of a run's time, in percent of all.
type bar struct {
	Class       string
	From, Width string
}

// Bars are the parts of a run's time: due, popped and waiting, with its handler.
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

// Failed says whether the run came to nothing.
func (r runLine) Failed() bool {
	return r.Verdict == browse.RunFailed || r.Verdict == browse.RunExhausted || r.Verdict == browse.RunCrashed
}
