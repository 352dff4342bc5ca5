package recurring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Firer pushes due ticks. Each process of a cluster has a Firer.
type Firer struct {
	// Leads reports whether this process leads and pushes every due tick. Other processes push a
	// tick only when it is late by Patience.
	Leads func() bool
	// Files returns the live processes with the names in their files, and false if they are unknown
	// now. A leading process calls it every ten seconds if there are entries of files that it has
	// not written itself.
	Files func(ctx context.Context) (live []Process, known bool)
	// Patience is how late a tick may be before a process that does not lead pushes it.
	Patience time.Duration
	// File has the entries in the file of this process. Since returns when the process began by
	// Redis's clock, and is called once there are entries. Boot names the process.
	File  map[string]Spec
	Since func(ctx context.Context) (time.Time, error)
	Boot  string

	Late   func(time.Duration) // called in each round with the delay of the latest tick; 0 if none is late or if it is unknown
	Missed func(name string, n int64)
	Warn   func(op string, err error) // called with errors of Redis
	Log    *slog.Logger

	book     bookStore
	rev      string
	entries  map[string]knownEntry
	absent   map[string]time.Time // since when the process of an entry is dead or has lost the entry, by the clock of this process
	asked    time.Time            // time of the last call of Files
	declared bool
	since    int64 // result of Since, us; 0 before
	led      bool  // in the last round
}

// bookStore is the part of the book that a firer needs.
type bookStore interface {
	readSince(ctx context.Context, rev string) (snapshot, error)
	advanceTick(ctx context.Context, name, text string, tick, next time.Time, was string, of lastTick) (bool, error)
	deliverTick(ctx context.Context, name string, number int64, of begunPush) error
	dropFile(ctx context.Context, name string, since int64) error
	releaseFile(ctx context.Context, name string, since int64) error
	Declare(ctx context.Context, file map[string]Spec, since time.Time, boot string) error
}

// Process is a live process, from its lease.
type Process struct {
	Boot  string
	Names []string // recurring entries in its file
}

// knownEntry is an entry as it was last read.
type knownEntry struct {
	text     string
	stored   storedEntry
	spec     Spec
	schedule calendar.Schedule
	err      error // not nil if the entry is unreadable
}

const (
	lookEvery   = time.Second      // between two rounds of a leader
	leadEvery   = lookEvery / 4    // between two checks of whether the process leads
	retrySoon   = lookEvery / 4    // until the next round after a tick that could not be pushed
	ofFileFor   = time.Minute      // until an entry of an ended process is left to others or removed
	sweepEvery  = 10 * time.Second // without a cluster each process reads all leases for it
	lookTimeout = 10 * time.Second
)

// Run pushes due ticks until ctx ends.
func (f *Firer) Run(ctx context.Context, book *Book) { f.runWith(ctx, book) }

func (f *Firer) runWith(ctx context.Context, book bookStore) {
	f.book, f.entries, f.absent = book, map[string]knownEntry{}, map[string]time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		// A process that begins to lead does not wait for the end of its pause.
		if left := time.Until(next); left <= 0 || f.led != f.Leads() {
			next = time.Now().Add(f.runOnce(ctx))
		}
		timer.Reset(min(time.Until(next), leadEvery))
	}
}

// runOnce pushes what is due and returns the time until the next round.
func (f *Firer) runOnce(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := f.declareFile(ctx); err != nil {
		f.Warn("write the recurring entries of the file", err)
	}
	f.led = f.Leads()
	patience, every := time.Duration(0), lookEvery
	if !f.led {
		patience, every = f.Patience, max(lookEvery, f.Patience)
	}
	begun := time.Now()
	p, err := f.book.readSince(ctx, f.rev)
	if err != nil {
		f.Warn("read the recurring entries", err)
		f.Late(0) // it is unknown here
		return every
	}
	f.refreshEntries(p)
	late, next := time.Duration(0), p.now.Add(every)
	for _, name := range slices.Sorted(maps.Keys(f.entryNames(p))) {
		due, err := f.pushDue(ctx, name, p, patience)
		if err != nil {
			f.Warn("push a recurring entry", err)
			f.rev = ""
		}
		late = max(late, p.now.Sub(due))
		if due = due.Add(patience); !due.After(p.now) { // the push failed
			due = p.now.Add(retrySoon)
		}
		if due.Before(next) {
			next = due
		}
	}
	f.Late(late)
	f.sweepEnded(ctx)
	return max(time.Millisecond, next.Sub(p.now)-time.Since(begun))
}

// entryNames returns the names of entries with or without a tick.
func (f *Firer) entryNames(p snapshot) map[string]bool {
	names := map[string]bool{}
	for name := range p.ticks {
		names[name] = true
	}
	for name := range p.entries {
		names[name] = true
	}
	return names
}

// refreshEntries updates the entries after a change.
func (f *Firer) refreshEntries(p snapshot) {
	if p.entries == nil {
		return
	}
	was := f.entries
	f.rev, f.entries = p.rev, make(map[string]knownEntry, len(p.entries))
	for name, text := range p.entries {
		if was[name].text == text {
			f.entries[name] = was[name]
			continue
		}
		k := knownEntry{text: text}
		if k.stored, k.err = parseEntry(name, text); k.err == nil {
			k.spec = k.stored.effectiveSpec().withDefaults(name)
			k.schedule, k.err = k.spec.parseSchedule()
		}
		if k.err != nil {
			f.Log.Error("a recurring entry cannot be read and is left out", "name", name, "err", k.err)
		}
		f.entries[name] = k
	}
	for name := range f.File {
		k, there := f.entries[name]
		if !there || k.err == nil && k.stored.Since < f.since { // Redis has lost it, or the process that wrote it has ended
			f.declared = false
		}
	}
}

// declareFile writes the entries of the file once.
func (f *Firer) declareFile(ctx context.Context) error {
	if f.declared || len(f.File) == 0 {
		return nil
	}
	if f.since == 0 {
		since, err := f.Since(ctx)
		if err != nil {
			return err
		}
		f.since = since.UnixMicro()
	}
	err := f.book.Declare(ctx, f.File, time.UnixMicro(f.since), f.Boot)
	if errors.Is(err, ErrTooMany) {
		f.Log.Error("not all recurring entries of the file are written", "err", err)
		err = nil
	}
	f.declared = err == nil
	return err
}

// pushDue pushes the due ticks of an entry one by one. It returns when the next tick is due, or
// since when a tick is due that could not be pushed.
func (f *Firer) pushDue(ctx context.Context, name string, p snapshot, patience time.Duration) (due time.Time, err error) {
	k, there := f.entries[name]
	if !there || k.err != nil {
		return p.now.Add(lookEvery), nil
	}
	r := &tickRun{f, name, k, p.ticks[name], p.ticked[name], p.now}
	if r.tick.IsZero() { // Redis has lost the tick
		return p.now.Add(lookEvery), r.restoreTick(ctx)
	}
	if done, err := r.countDropped(ctx); !done || err != nil {
		return p.now.Add(retrySoon), err
	}
	for {
		do, due := k.nextStep(name, r.last, r.tick, p.now)
		if do.next.IsZero() || p.now.Sub(due) < patience {
			return due, nil
		}
		switch done, err := r.take(ctx, do, due); {
		case err != nil:
			return due, err
		case !done:
			return p.now.Add(retrySoon), nil
		}
	}
}

// tickRun is a round for one entry. Its methods return false if another process was first or the
// entry was changed.
type tickRun struct {
	f     *Firer
	name  string
	entry knownEntry
	tick  time.Time // the next tick
	last  lastTick
	now   time.Time // by Redis's clock
}

func (r *tickRun) restoreTick(ctx context.Context) error {
	to := r.entry.schedule.Next(r.now)
	if r.last.Begun != nil {
		to = time.UnixMicro(r.last.Begun.Tick)
	}
	_, err := r.f.book.advanceTick(ctx, r.name, r.entry.text, r.tick, to, r.last.text, r.last)
	return err
}

// move stores the last tick, and next as the next tick.
func (r *tickRun) move(ctx context.Context, next time.Time) (done bool, err error) {
	done, err = r.f.book.advanceTick(ctx, r.name, r.entry.text, r.tick, next, r.last.text, r.last)
	if err == nil {
		r.last.text, err = r.last.encodeJSON()
	}
	if !done {
		r.f.rev = ""
	}
	r.tick = next
	return done, err
}

// countDropped counts the ticks that changes have dropped in the metric of this process.
func (r *tickRun) countDropped(ctx context.Context) (done bool, err error) {
	n := r.last.Uncounted
	if n <= 0 {
		return true, nil
	}
	r.last.Uncounted = 0
	if done, err = r.move(ctx, r.tick); done && err == nil {
		r.f.Log.Warn("a change dropped ticks of a recurring entry", "name", r.name, "missed", n, "why", r.last.Error)
		r.f.Missed(r.name, n)
	}
	return done, err
}

// take takes a step that is due since due.
func (r *tickRun) take(ctx context.Context, do step, due time.Time) (done bool, err error) {
	if do.push && r.last.Begun == nil {
		if done, err = r.begin(ctx, &do); !done || err != nil {
			return done, err
		}
	}
	if do.push {
		if err = r.deliver(ctx, &do, due); err != nil {
			return false, err
		}
	}
	if do.missed > 0 {
		r.f.Log.Warn("ticks of a recurring entry were missed", "name", r.name, "missed", do.missed, "until", do.tick)
	}
	if last := do.tick.UnixMicro(); (do.push || do.missed > 0) && last > r.last.Tick {
		r.last.Tick, r.last.At = last, r.now.UnixMicro()
	}
	r.last.Begun, r.last.Missed = nil, r.last.Missed+do.missed
	if done, err = r.move(ctx, do.next); done && err == nil && do.missed > 0 {
		r.f.Missed(r.name, do.missed)
	}
	return done, err
}

// begin stores that the push of a tick has begun, or leaves out a tick that is not after the last tick.
func (r *tickRun) begin(ctx context.Context, do *step) (done bool, err error) {
	if do.tick.UnixMicro() <= r.last.Tick {
		do.push, do.missed = false, do.missed+1
		r.last.Error = fmt.Sprintf("the tick %s was left out because Redis's clock was ahead; the last tick was %s",
			do.tick.UTC().Format(time.RFC3339Nano), time.UnixMicro(r.last.Tick).UTC().Format(time.RFC3339Nano))
		return true, nil
	}
	r.last.Number = max(do.tick.UnixMicro(), r.last.Number+1, r.entry.stored.Above+1)
	r.last.Begun = &begunPush{do.tick.UnixMicro(), do.missed, r.entry.spec}
	return r.move(ctx, r.tick)
}

// deliver pushes a tick. A refused tick is missed; an error means that an attempt later may push it.
func (r *tickRun) deliver(ctx context.Context, do *step, due time.Time) error {
	err := r.f.book.deliverTick(ctx, r.name, r.last.Number, *r.last.Begun)
	switch {
	case err == nil:
		r.last.Error = ""
	case protocol.Transient(err) || ctx.Err() != nil || r.now.Sub(due) < r.f.Patience*2 && otherMayPush(err):
		return err
	default: // a later attempt at this tick would fail as well
		r.last.Error = err.Error()
		do.missed++
		r.f.Log.Warn("a tick of a recurring entry was refused", "name", r.name, "tick", do.tick, "err", err)
	}
	return nil
}

// nextStep returns the next step of an entry. It finishes a push that has begun first, even if the
// entry has changed.
func (k knownEntry) nextStep(name string, of lastTick, tick, now time.Time) (do step, due time.Time) {
	if of.Begun == nil {
		return decideStep(name, k.spec, k.schedule, k.stored.Paused, tick, now)
	}
	do = step{push: true, tick: time.UnixMicro(of.Begun.Tick), missed: of.Begun.Missed}
	do.next = k.stored.nextAfter(k.schedule, do.tick)
	return do, do.tick.Add(calendar.Jitter(name, do.tick, time.Duration(of.Begun.Spec.Jitter)))
}

// otherMayPush reports whether another process could push what this process cannot.
func otherMayPush(err error) bool {
	return errors.Is(err, protocol.ErrCodec) || !errors.Is(err, protocol.ErrTooManyPayloads) && !errors.Is(err, protocol.ErrTooManyBytes) && !errors.Is(err, protocol.ErrDamaged) &&
		!errors.Is(err, protocol.ErrPayloadSize) && !errors.Is(err, lowkiq.ErrUnknownQueue)
}

// sweepEnded leaves the entries of ended processes to live processes that have them, or removes
// them. Only the leader does so.
func (f *Firer) sweepEnded(ctx context.Context) {
	var foreign []string // entries written by other processes
	for name, k := range f.entries {
		if k.err == nil && k.stored.File != nil && k.stored.By != f.Boot {
			foreign = append(foreign, name)
		}
	}
	if !f.led || len(foreign) == 0 {
		clear(f.absent)
		return
	}
	now := time.Now() // Redis's clock may jump
	if now.Sub(f.asked) < sweepEvery {
		return
	}
	f.asked = now
	live, known := f.Files(ctx)
	if !known {
		clear(f.absent)
		return
	}
	has := func(name string, boot string) bool {
		return slices.ContainsFunc(live, func(p Process) bool { return (boot == "" || p.Boot == boot) && slices.Contains(p.Names, name) })
	}
	foreign = slices.DeleteFunc(foreign, func(name string) bool {
		by := f.entries[name].stored.By
		return by != "" && has(name, by)
	})
	maps.DeleteFunc(f.absent, func(name string, _ time.Time) bool { return !slices.Contains(foreign, name) })
	for _, name := range foreign {
		since, seen := f.absent[name]
		if !seen {
			f.absent[name] = now
		}
		if !seen || now.Sub(since) < ofFileFor {
			continue
		}
		if err := f.endEntry(ctx, name, has(name, "")); err != nil {
			f.Warn("end the recurring entries of a process that has ended", err)
			continue
		}
		delete(f.absent, name)
	}
}

// endEntry leaves an entry of an ended process to the live processes that have it, or removes it.
func (f *Firer) endEntry(ctx context.Context, name string, others bool) error {
	since := f.entries[name].stored.Since
	if others {
		return f.book.releaseFile(ctx, name, since)
	}
	if err := f.book.dropFile(ctx, name, since); err != nil {
		return err
	}
	f.Log.Info("a recurring entry is no longer in any file and was removed", "name", name)
	return nil
}
