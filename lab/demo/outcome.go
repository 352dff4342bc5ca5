package demo

import (
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// Outcome is the verdict of the judge, with some figures.
type Outcome struct {
	judge.Verdict
	Changes  []Change
	Repeated int // pushes that were repeated because a node was gone
}

// judgeHistory returns the judge's verdict on a history. A payload may be handled twice, which is the price of losing none.
// Nothing else is allowed.
func judgeHistory(f *feeder, path string) (judge.Verdict, error) {
	cfg := judge.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1}
	v, err := judge.Check(cfg, f.listPushed(), path)
	if err != nil {
		return v, fmt.Errorf("verdict: %w", err)
	}
	if v.OK() && v.Distinct != Payloads {
		return v, fmt.Errorf("verdict: %d events were handled of %d", v.Distinct, Payloads)
	}
	return v, nil
}

// Words describes the outcome for a person. The judge's own words follow if it is bad.
func (o Outcome) Words() string {
	word := "GOOD: every promise was kept."
	if !o.OK() {
		word = "BAD: promises were broken."
	}
	text := fmt.Sprintf(`
Verdict: %s
  every event handled:           %s (%d of %d, %d lost)
  order of each file kept:       %s (%d out of order)
  no file handled twice at once: %s (%d overlaps in %d handler calls)
  handled twice:                 %d events; kill -9 cut off %d calls
`, word, yesNo(o.Lost == 0 && o.Distinct == Payloads), o.Distinct, Payloads, o.Lost, yesNo(o.Misordered == 0), o.Misordered,
		yesNo(o.Overlaps == 0), o.Overlaps, o.Calls, o.Duplicates, o.Interrupted)
	var changes []string
	for _, c := range o.Changes {
		changes = append(changes, fmt.Sprintf("%s %d in %s", c.Event, c.Moved, formatSeconds(c.Took)))
	}
	text += fmt.Sprintf(`  shards moved, of %d:           %s
  pushes repeated:               %d (a node was gone or going)
  pace:                          %.0f jobs/s for %s, slow on purpose: lowkiq-bench measures speed
`, queueShards, strings.Join(changes, ", "), o.Repeated, o.PerSecond, formatSeconds(o.Wall))
	if !o.OK() {
		text += "\n" + o.Verdict.Words()
	}
	return text
}

func yesNo(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}
