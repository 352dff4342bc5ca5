package judge

import (
	"fmt"
	"strings"
	"time"
)

// Kind names the rule that a fault breaks.
type Kind string

// The kinds of faults.
const (
	Overlap    Kind = "overlap"     // I1: two calls of an id at once
	Crowd      Kind = "crowd"       // more batches at once than allowed, of a shard (I1), a queue or a group
	StaleFence Kind = "stale fence" // I1: a batch began with a lower fence than an earlier batch, or with the fence of another process
	TooFast    Kind = "too fast"    // more ids were handed over than a rate allows
	Held       Kind = "held"        // a call of an id that was held
	Lost       Kind = "lost"        // I2: pushed and never handled
	Unknown    Kind = "unknown"     // I2: handled and never pushed
	Unsorted   Kind = "unsorted"    // I3: scores of a call do not ascend, or equal scores are not in push order
	Overtaken  Kind = "overtaken"   // I3: a payload was handled before an earlier push with at most its score
	WentBack   Kind = "went back"   // I3: a call repeated payloads of a call that was not the latest
	Repeated   Kind = "repeated"    // more duplicates than allowed, or a payload twice in a call
	Unfinished Kind = "unfinished"  // a call without an end, of a process without a death
	Unreadable Kind = "unreadable"  // a line without meaning
)

// kinds are in the order of the verdict.
var kinds = [...]Kind{Overlap, Crowd, TooFast, Held, StaleFence, Lost, Unknown, Unsorted, Overtaken, WentBack, Repeated, Unfinished, Unreadable}

// MaxFaults is how many faults a verdict quotes. It counts all.
const MaxFaults = 20

// Fault is a broken rule with the lines of the history that show it.
type Fault struct {
	Kind  Kind
	Text  string
	Lines []string
}

// String returns the fault in several lines.
func (f Fault) String() string {
	return fmt.Sprintf("%s: %s", f.Kind, strings.Join(append([]string{f.Text}, f.Lines...), "\n    "))
}

// Verdict is the result of a judgment. It counts payloads, unless a comment says otherwise.
type Verdict struct {
	Pushed      int
	Handled     int // in successful calls, with repeats
	Distinct    int // handled at least once
	Duplicates  int // handled again without another push
	Uncaused    int // duplicates without a death of the process that handled them before
	Lost        int
	Replaced    int           // not handled, because a later push replaced them; see Config.Latest
	Overlaps    int           // pairs of calls of an id at once
	Misordered  int           // sum of unsorted, overtaken and went back
	Calls       int           // a call per id of a batch
	Failed      int           // calls whose handler failed
	Interrupted int           // calls whose process died
	Busy        time.Duration // the sum of the times of all batches
	Deaths      int
	Wall        time.Duration // from the first push, or the first call if that is not known, to the last end
	PerSecond   float64       // Distinct / Wall

	Counts map[Kind]int // faults found
	Faults []Fault      // the first MaxFaults faults

	checked bool
}

// OK reports whether every rule was kept. It is false for a Verdict that [Check] did not make.
func (v *Verdict) OK() bool { return v.checked && len(v.Counts) == 0 }

// addFault counts a fault. It calls describe only for a fault that the verdict keeps.
func (v *Verdict) addFault(kind Kind, describe func() (text string, lines []string)) {
	if v.Counts == nil {
		v.Counts = map[Kind]int{}
	}
	v.Counts[kind]++
	if len(v.Faults) < MaxFaults {
		text, lines := describe()
		v.Faults = append(v.Faults, Fault{kind, text, lines})
	}
}

// Words describes the verdict for a person, a fact per line.
func (v *Verdict) Words() string {
	var b strings.Builder
	fact := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	switch {
	case v.OK():
		fact("verdict: good, every promise was kept")
	case !v.checked:
		fact("verdict: none, nothing was checked")
	default:
		fact("verdict: BAD, promises were broken")
	}
	fact("every payload handled (I2): %s, %d of %d pushed, %d lost", yesNo(v.Lost == 0), v.Distinct, v.Pushed, v.Lost)
	fact("order kept per id (I3): %s, %d out of order", yesNo(v.Misordered == 0), v.Misordered)
	fact("no id handled twice at once (I1): %s, %d overlaps", yesNo(v.Overlaps == 0), v.Overlaps)
	fact("handled twice: %d payloads, %d of them with no death to explain it", v.Duplicates, v.Uncaused)
	fact("handler calls: %d, %d failed, %d cut off by %d deaths", v.Calls, v.Failed, v.Interrupted, v.Deaths)
	fact("speed: %.0f payloads/s over %.1f s", v.PerSecond, v.Wall.Seconds())
	v.faultWords(fact)
	return b.String()
}

func (v *Verdict) faultWords(fact func(string, ...any)) {
	total := 0
	for _, kind := range kinds {
		if n := v.Counts[kind]; n > 0 {
			total += n
			fact("faults, %s: %d", kind, n)
		}
	}
	for _, f := range v.Faults {
		fact("  %s", f)
	}
	if total > len(v.Faults) {
		fact("  … and %d more faults", total-len(v.Faults))
	}
}

func yesNo(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}
