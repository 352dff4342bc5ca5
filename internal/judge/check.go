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

// Config says what the judge may expect of a run. The zero value allows no
// duplicates and does not look at shards as a whole.
type Config struct {
	// ShardConcurrency is how many batches of a shard may run at once; 0 = not checked.
	ShardConcurrency int
	// Limits bound what all processes do.
	Limits []Limit
	// Holds are times in which ids are not handled.
	Holds []Hold
	// Latest are queues in which a push may take the place of those of its id that wait and have no higher score: each
	// needs a call that begins after it and has a payload with no lower score.
	Latest []string
	// MaxDuplicates is how many payloads may be handled again; -1 = any number.
	MaxDuplicates int
	// MaxUncaused is how many duplicates may lack a death of the process that handled
	// the payload before: Redis went away, a lease ran out. -1 = any number. They
	// count as duplicates too.
	MaxUncaused int
}

// Validate names the field that makes no sense.
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

// Check judges the histories at paths, written during one run on one host, against
// what was pushed: per id in the order in which the pushes took effect. The error
// is about reading, or about nothing having been pushed; broken promises are in the
// verdict. It keeps about 100 bytes per call and per pushed payload.
func Check(cfg Config, pushed iter.Seq[Pushed], paths ...string) (Verdict, error) {
	t := newTable()
	for _, path := range paths {
		if err := readFile(t, path); err != nil {
			return Verdict{}, err
		}
	}
	return judge(cfg, pushed, t)
}

// CheckReader is [Check] for one history that is not a file.
func CheckReader(cfg Config, pushed iter.Seq[Pushed], r io.Reader) (Verdict, error) {
	t := newTable()
	if err := t.read("history", r); err != nil {
		return Verdict{}, err
	}
	return judge(cfg, pushed, t)
}

func readFile(t *table, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer file.Close()
	return t.read(filepath.Base(path), file)
}

func judge(cfg Config, pushed iter.Seq[Pushed], t *table) (Verdict, error) {
	if err := cfg.Validate(); err != nil {
		return Verdict{}, fmt.Errorf("judge.Config: %w", err)
	}
	t.settle()
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
	v.repeats(l)
	v.judgeDuplicates(cfg)
	v.measure(t, l)
	return v, nil
}

// judgeLines objects to lines that a death does not explain and to calls that
// neither ended nor died.
func (t *table) judgeLines(v *Verdict) {
	explained := 0 // lines torn: one by each process that died, children included
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
		v.fault(Unreadable, func() (string, []string) { return t.where(u.file, u.line) + ": " + u.why, nil })
	}
	for i := range t.calls {
		switch t.calls[i].outcome {
		case failed:
			v.Failed++
		case interrupted:
			v.Interrupted++
		case running:
			v.fault(Unfinished, func() (string, []string) {
				return "a call without an end, and no death of its process was noted", []string{t.describe(int32(i))}
			})
		}
	}
}

// sorted returns the indexes of all calls, in an order.
func (t *table) sorted(order func(a, b *call) int) []int32 {
	indexes := make([]int32, len(t.calls))
	for i := range indexes {
		indexes[i] = int32(i)
	}
	slices.SortFunc(indexes, func(a, b int32) int {
		return cmp.Or(order(&t.calls[a], &t.calls[b]), cmp.Compare(a, b))
	})
	return indexes
}

func (v *Verdict) judgeDuplicates(cfg Config) {
	if cfg.MaxDuplicates >= 0 && v.Duplicates > cfg.MaxDuplicates {
		v.fault(Repeated, func() (string, []string) {
			return fmt.Sprintf("%d payloads handled again, want at most %d", v.Duplicates, cfg.MaxDuplicates), nil
		})
	}
	if cfg.MaxUncaused >= 0 && v.Uncaused > cfg.MaxUncaused {
		v.fault(Repeated, func() (string, []string) {
			return fmt.Sprintf("%d payloads handled again with no death to explain it, want at most %d", v.Uncaused, cfg.MaxUncaused), nil
		})
	}
}

func (v *Verdict) measure(t *table, l *ledger) {
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
