package judge

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Config says what a run may do. The zero value allows no duplicates and does not check shards as a whole.
type Config struct {
	// ShardConcurrency is the maximum number of concurrent batches of a shard. 0 is not checked.
	ShardConcurrency int
	// Limits bound all processes together.
	Limits []Limit
	// Holds are times when ids must not be handled.
	Holds []Hold
	// Latest are queues where a push may replace waiting pushes of the same id whose score is not higher. After each push a
	// call must begin that has a payload with at least its score.
	Latest []string
	// MaxDuplicates is how many payloads may be handled again. -1 is any number.
	MaxDuplicates int
	// MaxUncaused is how many duplicates may lack a death of the process that handled the payload before, because Redis went
	// away or a lease ran out. They also count as duplicates. -1 is any number.
	MaxUncaused int
}

// Validate returns an error that names the wrong field.
func (c Config) Validate() error {
	switch {
	case c.ShardConcurrency < 0:
		return fmt.Errorf("ShardConcurrency is %d, want 0 or more", c.ShardConcurrency)
	case c.MaxDuplicates < -1:
		return fmt.Errorf("MaxDuplicates is %d, want -1 or more", c.MaxDuplicates)
	case c.MaxUncaused < -1:
		return fmt.Errorf("MaxUncaused is %d, want -1 or more", c.MaxUncaused)
	}
	for i := range c.Limits {
		if err := c.Limits[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// Check judges the histories at paths, which were written during a run on one host. pushed yields the pushed payloads. The
// payloads of an id come in the order that their pushes took effect. The error is about reading, or says that nothing was
// pushed. Broken promises are in the verdict. Check keeps about 100 bytes per call and per pushed payload.
func Check(cfg Config, pushed iter.Seq[Pushed], paths ...string) (Verdict, error) {
	t := newTable()
	for _, path := range paths {
		if err := readFile(t, path); err != nil {
			return Verdict{}, err
		}
	}
	return judgeTable(cfg, pushed, t)
}

// CheckReader judges as [Check] does, with a single history that is not a file.
func CheckReader(cfg Config, pushed iter.Seq[Pushed], r io.Reader) (Verdict, error) {
	t := newTable()
	if err := t.readFile("history", r); err != nil {
		return Verdict{}, err
	}
	return judgeTable(cfg, pushed, t)
}

func readFile(t *table, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer file.Close()
	return t.readFile(filepath.Base(path), file)
}

// judgeTable judges the calls of a history. A run without pushes is an error, because it keeps every promise.
func judgeTable(cfg Config, pushed iter.Seq[Pushed], t *table) (Verdict, error) {
	if err := cfg.Validate(); err != nil {
		return Verdict{}, fmt.Errorf("judge.Config: %w", err)
	}
	t.settleCalls()
	l := newLedger(pushed, t, cfg.Latest)
	if len(l.entries) == 0 {
		return Verdict{}, errors.New("check history: nothing was pushed, so there is nothing to judge")
	}
	v := Verdict{Pushed: len(l.entries), Calls: len(t.calls), checked: true}
	t.judgeLines(&v)
	t.judgeShards(&v, cfg.ShardConcurrency)
	t.judgeLimits(&v, cfg.Limits)
	t.judgeHolds(&v, cfg.Holds)
	t.measureBusy(&v)
	t.judgeIDs(&v, l)
	v.judgeLost(t, l)
	v.countRepeats(l)
	v.judgeDuplicates(cfg)
	v.addFigures(t, l)
	return v, nil
}

// judgeLines reports lines that no death explains, and calls that neither ended nor died.
func (t *table) judgeLines(v *Verdict) {
	explained := 0 // torn lines that deaths explain: a line per death, also of children
	for _, deaths := range t.deaths {
		explained += len(deaths)
		for _, d := range deaths {
			if !d.inherited {
				v.Deaths++
			}
		}
	}
	unexplained := t.torn[min(explained, len(t.torn)):]
	for _, u := range slices.Concat(t.broken, unexplained) {
		v.addFault(Unreadable, func() (string, []string) { return t.placeOf(u.file, u.line) + ": " + u.why, nil })
	}
	for i := range t.calls {
		switch t.calls[i].outcome {
		case failed:
			v.Failed++
		case interrupted:
			v.Interrupted++
		case running:
			v.addFault(Unfinished, func() (string, []string) {
				return "a call without an end, and no death of its process was noted", []string{t.describe(int32(i))}
			})
		}
	}
}

// sortCalls returns the indexes of all calls in the given order.
func (t *table) sortCalls(order func(a, b *call) int) []int32 {
	indexes := make([]int32, len(t.calls))
	for i := range indexes {
		indexes[i] = int32(i)
	}
	slices.SortFunc(indexes, func(a, b int32) int {
		return cmp.Or(order(&t.calls[a], &t.calls[b]), cmp.Compare(a, b))
	})
	return indexes
}

// judgeDuplicates reports a fault if more payloads were handled again than cfg allows. A negative maximum allows any number.
func (v *Verdict) judgeDuplicates(cfg Config) {
	if cfg.MaxDuplicates >= 0 && v.Duplicates > cfg.MaxDuplicates {
		v.addFault(Repeated, func() (string, []string) {
			return fmt.Sprintf("%d payloads handled again, want at most %d", v.Duplicates, cfg.MaxDuplicates), nil
		})
	}
	if cfg.MaxUncaused >= 0 && v.Uncaused > cfg.MaxUncaused {
		v.addFault(Repeated, func() (string, []string) {
			return fmt.Sprintf("%d payloads handled again with no death to explain it, want at most %d", v.Uncaused, cfg.MaxUncaused), nil
		})
	}
}

// addFigures sums up the faults and the speed. Wall is the time from the first push or call to the last end of a call.
// PerSecond counts a payload once, however often it was handled.
func (v *Verdict) addFigures(t *table, l *ledger) {
	v.Misordered = v.Counts[Unsorted] + v.Counts[Overtaken] + v.Counts[WentBack]
	v.Overlaps, v.Lost = v.Counts[Overlap], v.Counts[Lost]
	if len(t.calls) == 0 {
		return
	}
	first, last := t.calls[0].start, t.calls[0].end
	for i := range t.calls {
		first, last = min(first, t.calls[i].start), max(last, t.calls[i].end)
	}
	for i := range l.entries {
		if at := l.entries[i].at; at > 0 {
			first = min(first, at)
		}
	}
	v.Wall = time.Duration(last - first)
	if v.Wall > 0 {
		v.PerSecond = float64(v.Distinct) / v.Wall.Seconds()
	}
}
