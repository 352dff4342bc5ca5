// Package tally counts by day and hour of Redis's clock what processes do: each process writes every ten seconds what it has
// counted, in parts of its own, and each time all of a part, so that to write it again changes nothing.
//
// Nobody can tell a process that is frozen from one that is dead. So parts are joined while their process may be alive: it
// learns from the answer to its next write up to where it was counted, and goes on in a new part (lua/tally.lua, lua/join.lua).
package tally

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Every is how often a process writes what is new: what a killed one loses.
const Every = 10 * time.Second

// spans are the kinds of periods.
var spans = []string{redisdb.Days, redisdb.Hours}

// Figures are readings of counters that only rise.
type Figures[F any] interface {
	Since(earlier F) F
	Same(other F) bool
}

// Tally is what one process has counted. An idle one writes nothing, and asks nothing.
type Tally[F Figures[F]] struct {
	Boot   string                                   // names the process
	Read   func() map[string]F                      // since it began, by queue
	Ask    func(context.Context) (time.Time, error) // Redis's clock
	Guess  func() time.Time                         // the same, from when it was last asked
	Write  func(context.Context, []Write[F]) []Answer
	Failed func(error)

	Early bool // ask for the time at once, so that what is counted first belongs to the right day, too

	asked bool
	ends  bool         // the step is the last one
	now   time.Time    // of the last step; what was counted since belongs to its day and hour
	seen  map[string]F // the last reading
	parts int          // so far
	open  map[[2]string]*part[F]
	owed  []*part[F] // that are not in Redis as they are here, or go on
}

// part is what was counted of a queue in one period, between two readings.
type part[F Figures[F]] struct {
	queue, name, period string
	from, to            F
	wrote               F // the reading of the last write with an answer
	sent                F // that of the write on its way
	unanswered, over    bool
	only                bool      // that write is the only one of the part: the process ends
	since               time.Time // that write was sent first, by Redis's clock
	writes              int64     // with an answer
}

// Write is one that is to be done. Number is one more with each write of a part, 0 if it is the only one.
type Write[F any] struct {
	Queue, Period, Part string
	Number              int64
	Figures             F
	Since               time.Time // it was sent first, by Redis's clock
}

// Answer is that to a Write. After an error it may have been done.
type Answer struct {
	Joined bool  // the part counts up to write Last, this one or the one before; 0: up to one of these
	Last   int64 // see Joined
	Err    error
}

// Run writes until ctx ends, and then what is left.
func (t *Tally[F]) Run(ctx context.Context) {
	if t.Early {
		t.begin(ctx)
	}
	for {
		wait := Every
		if !t.now.IsZero() {
			wait = min(wait, max(time.Millisecond, nextHour(t.now).Sub(t.Guess())))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			t.End(last)
			return
		case <-timer.C:
			t.Step(ctx)
		}
	}
}

func nextHour(now time.Time) time.Time { return now.Truncate(time.Hour).Add(time.Hour) }

// begin asks for the time. If there is no answer, the first step asks.
func (t *Tally[F]) begin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, Every/2)
	defer cancel()
	if now, err := t.Ask(ctx); err == nil {
		t.asked, t.now = true, now.UTC()
	}
}

// Begin says when the next step is due of a process that does its steps itself: what it counts from now on belongs to the day
// and the hour that it is now. No step may be under way.
func (t *Tally[F]) Begin() time.Duration {
	if !t.asked {
		return Every
	}
	t.now = t.Guess().UTC()
	return min(Every, nextHour(t.now).Sub(t.now))
}

// Idle reports whether there is nothing to write.
func (t *Tally[F]) Idle() bool {
	for name, f := range t.Read() {
		if !f.Same(t.seen[name]) {
			return false
		}
	}
	return len(t.due()) == 0
}

// End is the last step of a process that ends.
func (t *Tally[F]) End(ctx context.Context) {
	t.ends = true
	t.Step(ctx)
}

// Step takes a reading, and writes what is new. What was counted until a period is over belongs to it.
func (t *Tally[F]) Step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, Every/2)
	defer cancel()
	reading := t.Read()
	counted := false
	for name, f := range reading {
		counted = counted || !f.Same(t.seen[name])
	}
	if counted || len(t.due()) > 0 {
		if _, err := t.Ask(ctx); err != nil && !t.asked {
			t.Failed(err) // of what day it is cannot be said: the next reading has it, too
			return
		}
		t.asked = true
	}
	if !t.asked {
		return
	}
	now := t.Guess().UTC()
	if t.now.IsZero() {
		t.now = now
	}
	for _, name := range slices.Sorted(maps.Keys(reading)) {
		if !reading[name].Same(t.seen[name]) {
			t.count(name, reading[name])
		}
	}
	t.seen = reading
	for key, p := range t.open {
		if now.Format(key[1]) != p.period {
			p.over = true
			delete(t.open, key)
		}
	}
	t.now = now
	t.pay(ctx)
}

// count adds a queue's reading to the parts of the day and the hour.
func (t *Tally[F]) count(queue string, to F) {
	for _, span := range spans {
		p := t.open[[2]string{queue, span}]
		if p == nil {
			p = &part[F]{queue: queue, period: t.now.Format(span), from: t.seen[queue]}
			p.wrote = p.from
			t.rename(p)
			if t.open == nil {
				t.open = map[[2]string]*part[F]{}
			}
			t.open[[2]string{queue, span}], t.owed = p, append(t.owed, p)
		}
		p.to = to
	}
}

// rename gives a part a name that no other one has, of any period: Redis's clock may be set back.
func (t *Tally[F]) rename(p *part[F]) {
	t.parts++
	p.name = fmt.Sprintf("%s/%d", t.Boot, t.parts)
}

// most is how many writes are sent together.
const most = 50

// pay writes what is owed.
func (t *Tally[F]) pay(ctx context.Context) {
	for again := true; again; {
		again = false
		for some := range slices.Chunk(t.due(), most) {
			writes := make([]Write[F], len(some))
			for i, p := range some {
				writes[i] = p.write(t.Guess(), t.ends)
			}
			var failed error
			for i, answer := range t.Write(ctx, writes) {
				if failed = cmp.Or(failed, answer.Err); answer.Err == nil {
					again = t.answered(some[i], answer) || again
				}
			}
			if failed != nil {
				t.Failed(failed)
				return
			}
		}
	}
	t.owed = slices.DeleteFunc(t.owed, func(p *part[F]) bool { return p.over && !p.unanswered && p.to.Same(p.wrote) })
}

// due are the parts that have something to write.
func (t *Tally[F]) due() (parts []*part[F]) {
	for _, p := range t.owed {
		if p.unanswered || !p.to.Same(p.wrote) {
			parts = append(parts, p)
		}
	}
	return parts
}

// write is the next one of a part, or the one before again if that had no answer.
func (p *part[F]) write(now time.Time, last bool) Write[F] {
	if !p.unanswered {
		p.sent, p.unanswered, p.since, p.only = p.to, true, now, last && p.writes == 0
	}
	w := Write[F]{Queue: p.queue, Period: p.period, Part: p.name, Number: p.writes + 1, Figures: p.sent.Since(p.from), Since: p.since}
	if p.only {
		w.Number = 0
	}
	return w
}

// answered takes an answer in, and reports whether there is more to write at once. A part that was joined goes on as a new
// one, from where it was joined. Where that is forgotten, the write on its way is taken to be in it: nothing is counted twice.
func (t *Tally[F]) answered(p *part[F], a Answer) (more bool) {
	p.unanswered = false
	if !a.Joined {
		p.wrote, p.writes = p.sent, p.writes+1
		return !p.to.Same(p.wrote)
	}
	if a.Last == 0 || a.Last > p.writes {
		p.wrote = p.sent
	}
	p.from, p.writes = p.wrote, 0
	t.rename(p)
	return !p.to.Same(p.wrote)
}
