package demo

import (
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq/internal/history"
)

// Outcome is the judge's verdict, and what else was seen.
type Outcome struct {
	history.Verdict
	Changes  []Change
	Repeated int // pushes, because a node was gone
}

// judge gives the verdict on a history. A payload may be handled twice, that is the
// price of losing none; nothing else is allowed.
func judge(f *feeder, path string) (history.Verdict, error) {
	cfg := history.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1}
	verdict, err := history.Check(cfg, f.sent(), path)
	if err != nil {
		return verdict, fmt.Errorf("verdict: %w", err)
	}
	if verdict.OK() && verdict.Distinct != Payloads {
		return verdict, fmt.Errorf("verdict: %d events were handled of %d", verdict.Distinct, Payloads)
	}
	return verdict, nil
}

// Words is the outcome for a person. The judge's own words follow if it is bad.
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
`, word, yes(o.Lost == 0 && o.Distinct == Payloads), o.Distinct, Payloads, o.Lost, yes(o.Misordered == 0), o.Misordered,
		yes(o.Overlaps == 0), o.Overlaps, o.Calls, o.Duplicates, o.Interrupted)
	var changes []string
	for _, c := range o.Changes {
		changes = append(changes, fmt.Sprintf("%s %d in %s", c.Event, c.Moved, tenths(c.Took)))
	}
	text += fmt.Sprintf(`  shards moved, of %d:           %s
  pushes repeated:               %d (a node was gone or going)
  pace:                          %.0f jobs/s for %s, slow on purpose: lowkiq-bench measures speed
`, queueShards, strings.Join(changes, ", "), o.Repeated, o.PerSecond, tenths(o.Wall))
	if !o.OK() {
		text += "\n" + o.Verdict.Words()
	}
	return text
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}
