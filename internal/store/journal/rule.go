package journal

import (
	"math"
	"strconv"
	"time"
)

// Rule says which runs get a line in the journal, and how many lines a shard keeps.
type Rule struct {
	Runs Runs
	// Keep is the number of lines that the shard keeps, at least 1. For is the time that it keeps them; 0
	// keeps them for ever. Scripts trim when they write, and up to a tenth more lines may exist meanwhile.
	Keep int
	For  time.Duration

	tracked map[string]bool
}

// Track makes the rule keep all runs of ids.
func (j *Rule) Track(ids []string) {
	j.tracked = nil
	if len(ids) > 0 {
		j.tracked = make(map[string]bool, len(ids))
		for _, id := range ids {
			j.tracked[id] = true
		}
	}
}

// Runs says which runs get a line. Crashes always get a line.
type Runs string

// The runs of a journal.
const (
	Failures Runs = "failures" // runs that failed
	All      Runs = "all"
	None     Runs = "none"
)

// Default keeps the last failures of a shard.
var Default = Rule{Runs: Failures, Keep: 64}

// KeepsSome reports whether a run of any id with this verdict gets a line.
func (j *Rule) KeepsSome(end Verdict) bool { return len(j.tracked) > 0 || j.Keeps(end, "") }

// Keeps reports whether a run of an id with this verdict gets a line.
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

// Line returns the line of a run, or "" if it gets none.
func (j *Rule) Line(r *Run) string {
	if !j.Keeps(r.Verdict, r.ID) {
		return ""
	}
	return string(r.Append(nil))
}

// Bounds returns the bounds as lua/lib/journal.lua expects them.
func (j *Rule) Bounds() string {
	return strconv.Itoa(min(max(1, j.Keep), math.MaxInt32)) + " " + strconv.FormatInt(max(0, j.For.Milliseconds()), 10)
}
