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
			due = p.now.Add(lookEvery / 4)
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
	tick, of := p.ticks[name], p.ticked[name]
	if tick.IsZero() { // Redis has lost the tick
		to := k.schedule.Next(p.now)
		if of.Begun != nil {
			to = time.UnixMicro(of.Begun.Tick)
		}
		_, err := f.book.advanceTick(ctx, name, k.text, tick, to, of.text, of)
		return p.now.Add(lookEvery), err
	}
	// move returns false if another process was first or the entry was changed.
	move := func(next time.Time) (bool, error) {
		done, err := f.book.advanceTick(ctx, name, k.text, tick, next, of.text, of)
		if err == nil {
			of.text, err = of.encodeJSON()
		}
		if !done {
			f.rev = ""
		}
		tick = next
		return done, err
	}
	if n := of.Uncounted; n > 0 {
		of.Uncounted = 0
		if done, err := move(tick); !done || err != nil {
			return p.now.Add(lookEvery / 4), err
		}
		f.Log.Warn("a change dropped ticks of a recurring entry", "name", name, "missed", n, "why", of.Error)
		f.Missed(name, n)
	}
	for {
		do, due := k.nextStep(name, of, tick, p.now)
		if do.next.IsZero() || p.now.Sub(due) < patience {
			return due, nil
		}
		switch {
		case !do.push || of.Begun != nil:
		case do.tick.UnixMicro() <= of.Tick:
			do.push, do.missed = false, do.missed+1
			of.Error = fmt.Sprintf("the tick %s was left out because Redis's clock was ahead; the last tick was %s",
				do.tick.UTC().Format(time.RFC3339Nano), time.UnixMicro(of.Tick).UTC().Format(time.RFC3339Nano))
		default:
			of.Number = max(do.tick.UnixMicro(), of.Number+1, k.stored.Above+1)
			of.Begun = &begunPush{do.tick.UnixMicro(), do.missed, k.spec}
			switch done, err := move(tick); {
			case err != nil:
				return due, err
			case !done:
				return p.now.Add(lookEvery / 4), nil
			}
		}
		if do.push {
			err := f.book.deliverTick(ctx, name, of.Number, *of.Begun)
			switch {
			case err == nil:
				of.Error = ""
			case protocol.Transient(err) || ctx.Err() != nil || p.now.Sub(due) < f.Patience*2 && otherMayPush(err):
				return due, err
			default: // a later attempt at this tick would fail as well
				of.Error = err.Error()
				do.missed++
				f.Log.Warn("a tick of a recurring entry was refused", "name", name, "tick", do.tick, "err", err)
			}
		}
		if do.missed > 0 {
			f.Log.Warn("ticks of a recurring entry were missed", "name", name, "missed", do.missed, "until", do.tick)
		}
		if last := do.tick.UnixMicro(); (do.push || do.missed > 0) && last > of.Tick {
			of.Tick, of.At = last, p.now.UnixMicro()
		}
		of.Begun, of.Missed = nil, of.Missed+do.missed
		switch done, err := move(do.next); {
		case err != nil:
			return due, err
		case !done:
			return p.now.Add(lookEvery / 4), nil
		}
		if do.missed > 0 {
			f.Missed(name, do.missed)
		}
	}
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
