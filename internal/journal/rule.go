package journal

import (
	"math"
	"strconv"
	"time"
)

// Rule says of which runs a shard keeps a line, and how many lines.
type Rule struct {
	Runs Runs
	// Keep is how many lines the shard keeps: 1 or more. For is how long it keeps them, 0 without a bound. Both are
	// seen to when lines are written: up to a tenth more are there meanwhile.
	Keep int
	For  time.Duration

	tracked map[string]bool
}

// Track has the rule keep all runs of these ids.
func (j *Rule) Track(ids []string) {
	j.tracked = nil
	if len(ids) > 0 {
		j.tracked = make(map[string]bool, len(ids))
		for _, id := range ids {
			j.tracked[id] = true
		}
	}
}

// Runs are those of which lines are kept. Crashes are kept always.
type Runs string

// The runs of a journal.
const (
	Failures Runs = "failures" // those that failed
	All      Runs = "all"
	None     Runs = "none"
)

// Default keeps the last failures of a shard.
var Default = Rule{Runs: Failures, Keep: 64}

// KeepsSome reports whether a run that ends so gets a line, of whatever id.
func (j *Rule) KeepsSome(end Verdict) bool { return len(j.tracked) > 0 || j.Keeps(end, "") }

// Keeps reports whether a run of an id that ends so gets a line.
func (j *Rule) Keeps(end Verdict, id string) bool {
	if len(j.tracked) > 0 && j.tracked[id] {
		return true
	}
	switch j.Runs {
	case None:
		return false
	case All:
		return true
	}
	return end != Done && end != Postponed
}

// Line is that of a run; "" if it gets none.
func (j *Rule) Line(r *Run) string {
	if !j.Keeps(r.Verdict, r.ID) {
		return ""
	}
	return string(r.Append(nil))
}

// Bounds are what lua/lib/journal.lua gets.
func (j *Rule) Bounds() string {
	return strconv.Itoa(min(max(1, j.Keep), math.MaxInt32)) + " " + strconv.FormatInt(max(0, j.For.Milliseconds()), 10)
}
