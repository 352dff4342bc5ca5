// Package daycounts adds the counts of a process to the figures of days and hours in Redis.
//
// Every ten seconds a [Tally] adds the new counts to Redis. If the answer to an addition is lost,
// the process sends it again. It then counts once more for each lost answer.
package daycounts

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Every is the time between two additions. A killed process loses what it has counted since the
// last.
const Every = 10 * time.Second

const (
	stepTimeout = 2 * time.Second // for reading the time, and for an addition
	maxCalls    = 50              // of a pipeline
)

// Counts are numbers by name that only rise. The figures of a period in Redis are a hash of the
// same form.
type Counts map[string]float64

// SetDurations counts durations under a name: their number by bucket, their sum and the sum of
// their squares.
func (c Counts) SetDurations(name string, buckets map[int]uint64, sum, squares float64) {
	for k, n := range buckets {
		c[name+":"+strconv.Itoa(k)] = float64(n)
	}
	c[name+":"+Sum], c[name+":"+Squares] = sum, squares
}

// Names of counts. Of Run and Wait there is a count for each bucket, and Sum and Squares.
const (
	Pushed    = "pushed"
	Processed = "processed"
	Failed    = "failed"
	Retried   = "retried"
	Buried    = "buried"
	Run       = "run"
	Wait      = "wait"
	Sum       = "sum"
	Squares   = "squares"
)

// addedSince returns what was counted after an earlier reading.
func (c Counts) addedSince(earlier Counts) Counts {
	added := Counts{}
	for name, n := range c {
		if n > earlier[name] {
			added[name] = n - earlier[name]
		}
	}
	return added
}

// Addition is what a process has to add to the figures of a queue and a period.
type Addition struct {
	Queue, Period string
	Counts        Counts
	begun         time.Time // the first of it was counted, by Redis's clock
}

// Tally adds a process's counts to Redis. An idle process writes nothing.
type Tally struct {
	Read   func() map[string]Counts                           // by queue, since the process began
	Time   func(context.Context) (time.Time, error)           // Redis's clock
	Write  func(ctx context.Context, all []*Addition) []error // see [Into]
	Failed func(error)                                        // told of each failed step

	now, asked time.Time // Redis's clock, and this process's at that time
	last       time.Time // the last reading, by Redis's clock; zero until Redis has told the time
	seen       map[string]Counts
	unwritten  map[[2]string]*Addition // by queue and period
}

// Run adds until ctx ends, and then the rest, which takes four seconds at most.
func (t *Tally) Run(ctx context.Context) {
	t.readClock(ctx) //nolint:errcheck // the first step asks again
	for ctx.Err() == nil {
		timer := time.NewTimer(t.untilStep())
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
			t.takeStep(ctx)
		}
	}
	t.takeStep(ctx)
}

// untilStep returns the time until the next step. A step is due when an hour ends, so that each reading
// belongs to one hour.
func (t *Tally) untilStep() time.Duration {
	if t.last.IsZero() {
		return Every
	}
	return min(Every, max(time.Millisecond, t.last.Truncate(time.Hour).Add(time.Hour).Sub(t.estimateClock())))
}

// readClock reads Redis's clock.
func (t *Tally) readClock(ctx context.Context) error {
	now, err := t.Time(ctx)
	if err != nil {
		return err
	}
	t.now, t.asked = now, time.Now()
	if t.last.IsZero() {
		t.last = t.estimateClock()
	}
	return nil
}

// estimateClock estimates Redis's clock.
func (t *Tally) estimateClock() time.Time { return t.now.Add(time.Since(t.asked)).UTC() }

// takeStep takes a reading, and adds what is new to the periods of the reading before. It does not end
// with ctx: an addition that is cut off would be repeated. For the same reason the addition has a
// timeout of its own, which a slow answer to the question for the time does not shorten.
func (t *Tally) takeStep(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	reading := t.Read()
	added := map[string]Counts{}
	for queue, c := range reading {
		if news := c.addedSince(t.seen[queue]); len(news) > 0 {
			added[queue] = news
		}
	}
	if len(added)+len(t.unwritten) > 0 {
		// A Redis that hangs does not answer this, and gets no addition.
		asking, cancel := context.WithTimeout(ctx, stepTimeout)
		err := t.readClock(asking)
		cancel()
		defer func() {
			if err != nil {
				t.Failed(err)
			}
		}()
		if t.last.IsZero() {
			return // the day is not known; the next reading has it all
		}
		t.addUnwritten(added)
		if err == nil {
			paying, cancel := context.WithTimeout(ctx, stepTimeout)
			err = t.writeUnwritten(paying)
			cancel()
		}
	}
	if !t.last.IsZero() {
		t.seen, t.last = reading, t.estimateClock()
	}
}

// addUnwritten adds new counts to the additions of the day and the hour of the last reading.
func (t *Tally) addUnwritten(added map[string]Counts) {
	if t.unwritten == nil {
		t.unwritten = map[[2]string]*Addition{}
	}
	for queue, counts := range added {
		for _, span := range []string{redisdb.Days, redisdb.Hours} {
			key := [2]string{queue, t.last.Format(span)}
			if t.unwritten[key] == nil {
				t.unwritten[key] = &Addition{Queue: queue, Period: key[1], Counts: Counts{}, begun: t.last}
			}
			for name, n := range counts {
				t.unwritten[key].Counts[name] += n
			}
		}
	}
	maps.DeleteFunc(t.unwritten, func(_ [2]string, a *Addition) bool { return t.last.Sub(a.begun) > redisdb.PeriodKept(a.Period) })
}

// writeUnwritten writes what is owed, and returns the first error.
func (t *Tally) writeUnwritten(ctx context.Context) (first error) {
	for some := range slices.Chunk(slices.Collect(maps.Values(t.unwritten)), maxCalls) {
		for i, err := range t.Write(ctx, some) {
			if err == nil {
				delete(t.unwritten, [2]string{some[i].Queue, some[i].Period})
			} else if first == nil {
				first = err
			}
		}
		if first != nil {
			return first
		}
	}
	return nil
}

// Into returns the function that writes to Redis.
func Into(db *redisdb.DB) func(context.Context, []*Addition) []error {
	return func(ctx context.Context, all []*Addition) []error {
		calls, errs := make([]*redisdb.Call, len(all)), make([]error, len(all))
		for i, a := range all {
			args := []any{redisdb.PeriodKept(a.Period).Milliseconds()}
			for name, n := range a.Counts {
				args = append(args, name, strconv.FormatFloat(n, 'f', -1, 64))
			}
			calls[i] = &redisdb.Call{Script: db.Scripts.Tally, Keys: []string{db.Keys.Day(a.Queue, a.Period)}, Args: args}
		}
		db.RunAll(ctx, calls)
		for i, call := range calls {
			errs[i] = call.Err
		}
		return errs
	}
}
