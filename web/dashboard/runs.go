package dashboard

import (
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

// Parts are the shares of its time that a run was due, popped, and with its handler, in percent.
func (r runLine) Parts() (parts [3]float64) {
	if r.Began.IsZero() {
		return parts
	}
	all := r.Ended.Sub(r.Due).Seconds()
	if all <= 0 {
		return parts
	}
	for i, d := range []time.Duration{r.Popped.Sub(r.Due), r.Began.Sub(r.Popped), r.Took} {
		parts[i] = 100 * max(0, min(1, d.Seconds()/all))
	}
	return parts
}

// Failed says whether the run came to nothing.
func (r runLine) Failed() bool {
	return r.Verdict == browse.RunFailed || r.Verdict == browse.RunExhausted || r.Verdict == browse.RunCrashed
}
