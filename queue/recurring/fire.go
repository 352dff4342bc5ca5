package recurring

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/queue"
)

// Firer pushes what is due: each of a cluster's processes has one.
type Firer struct {
	// Leads reports whether this process is to push what is due. Any other one pushes what is late by Patience.
	Leads func() bool
	// Files are the names that the files of live processes have; false if that is not known now. It is asked
	// of a process that leads, if there are entries of files that it does not have itself.
	Files func(ctx context.Context) (names []string, known bool)
	// Patience is how late a tick may be before others than the leader push it.
	Patience time.Duration
	// File is what this process's file has, Since when it began by Redis's clock, asked for once there is something.
	File  map[string]Spec
	Since func(ctx context.Context) (time.Time, error)

	Late   func(time.Duration) // told with each look how late the latest is: 0 if none is, or nobody knows
	Missed func(name string, n int64)
	Warn   func(op string, err error) // told what goes wrong with Redis
	Log    *slog.Logger

	book     store
	rev      string
	entries  map[string]known
	absent   map[string]time.Time // entries of files that no live process has, since when
	declared bool
	led      bool // with the last look
}

// store is what a firer needs of the book.
type store interface {
	read(ctx context.Context, rev string) (page, error)
	advance(ctx context.Context, name, text string, tick, next time.Time, of kept) (bool, error)
	deliver(ctx context.Context, name string, spec Spec, tick time.Time, missed int64) error
	drop(ctx context.Context, name string, since int64) error
	Declare(ctx context.Context, file map[string]Spec, since time.Time) error
}

// known is an entry as it was last read.
type known struct {
	text     string
	stored   stored
	spec     Spec
	schedule calendar.Schedule
	err      error // it cannot be read
}

const (
	lookEvery   = time.Second   // a leader learns of changes so soon
	leadEvery   = lookEvery / 4 // a process learns so soon that it leads
	ofFileFor   = time.Minute   // an entry that no file has any more is removed after
	lookTimeout = 10 * time.Second
)

// Run pushes what is due until ctx ends.
func (f *Firer) Run(ctx context.Context, book *Book) { f.run(ctx, book) }

func (f *Firer) run(ctx context.Context, book store) {
	f.book, f.entries, f.absent = book, map[string]known{}, map[string]time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		// Who comes to lead does not wait as long as those that do not.
		if left := time.Until(next); left <= 0 || f.led != f.Leads() {
			next = time.Now().Add(f.look(ctx))
		}
		timer.Reset(min(time.Until(next), leadEvery))
	}
}

// look does what is due now, and says when to look again.
func (f *Firer) look(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := f.declare(ctx); err != nil {
		f.Warn("write what recurs by the file", err)
	}
	f.led = f.Leads()
	patience, every := time.Duration(0), lookEvery
	if !f.led {
		patience, every = f.Patience, max(lookEvery, f.Patience)
	}
	begun := time.Now()
	p, err := f.book.read(ctx, f.rev)
	if err != nil {
		f.Warn("read what recurs", err)
		f.Late(0) // others may know
		return every
	}
	f.learn(p)
	late, next := time.Duration(0), p.now.Add(every)
	for _, name := range slices.Sorted(maps.Keys(f.pending(p))) {
		due, err := f.work(ctx, name, p, patience)
		if err != nil {
			f.Warn("push what recurs", err)
			f.rev = ""
		}
		late = max(late, p.now.Sub(due))
		if due = due.Add(patience); !due.After(p.now) { // it could not be pushed
			due = p.now.Add(lookEvery / 4)
		}
		if due.Before(next) {
			next = due
		}
	}
	f.Late(late)
	f.sweep(ctx, p.now)
	return max(time.Millisecond, next.Sub(p.now)-time.Since(begun))
}

// pending are the entries of which a look has shown the next tick, or that have none.
func (f *Firer) pending(p page) map[string]bool {
	names := map[string]bool{}
	for name := range p.ticks {
		names[name] = true
	}
	for name := range p.entries {
		names[name] = true
	}
	return names
}

// learn takes in what has changed.
func (f *Firer) learn(p page) {
	if p.entries == nil {
		return
	}
	for name := range f.File {
		if _, there := p.entries[name]; !there { // Redis has lost it
			f.declared = false
		}
	}
	was := f.entries
	f.rev, f.entries = p.rev, make(map[string]known, len(p.entries))
	for name, text := range p.entries {
		if was[name].text == text {
			f.entries[name] = was[name]
			continue
		}
		k := known{text: text}
		if k.stored, k.err = parse(name, text); k.err == nil {
			k.spec = k.stored.spec().withDefaults(name)
			k.schedule, k.err = k.spec.schedule()
		}
		if k.err != nil {
			f.Log.Error("a recurring push cannot be read, and is left out", "name", name, "err", k.err)
		}
		f.entries[name] = k
	}
}

// declare writes what the file has, once.
func (f *Firer) declare(ctx context.Context) error {
	if f.declared || len(f.File) == 0 {
		return nil
	}
	since, err := f.Since(ctx)
	if err != nil {
		return err
	}
	err = f.book.Declare(ctx, f.File, since)
	if errors.Is(err, ErrTooMany) {
		f.Log.Error("not all that recurs by the file is written", "err", err)
		err = nil
	}
	f.declared = err == nil
	return err
}

// work does for one entry what is due, tick by tick. It says when the next one is, or since when one is
// due that could not be pushed.
func (f *Firer) work(ctx context.Context, name string, p page, patience time.Duration) (due time.Time, err error) {
	k, there := f.entries[name]
	if !there || k.err != nil {
		return p.now.Add(lookEvery), nil
	}
	tick, of := p.ticks[name], p.ticked[name]
	if tick.IsZero() { // Redis has lost it
		_, err := f.book.advance(ctx, name, k.text, tick, k.schedule.Next(p.now), of)
		return p.now.Add(lookEvery), err
	}
	for {
		do, due := decide(name, k.spec, k.schedule, k.stored.Paused, tick, p.now)
		if do.next.IsZero() || p.now.Sub(due) < patience {
			return due, nil
		}
		if do.push {
			err := f.book.deliver(ctx, name, k.spec, do.tick, do.missed)
			switch {
			case err == nil:
				of.Error = ""
			case queue.Transient(err) || ctx.Err() != nil || p.now.Sub(due) < f.Patience*2 && elsewhere(err):
				return due, err
			default: // no later attempt at this tick would be better
				of.Error = err.Error()
				do.missed++
				f.Log.Warn("a tick of a recurring push was refused", "name", name, "tick", do.tick, "err", err)
			}
		}
		if do.push || do.missed > 0 {
			if do.missed > 0 {
				f.Log.Warn("ticks of a recurring push were missed", "name", name, "missed", do.missed, "until", do.tick)
			}
			of.Tick, of.At, of.Missed = do.tick.UnixMicro(), p.now.UnixMicro(), of.Missed+do.missed
		}
		done, err := f.book.advance(ctx, name, k.text, tick, do.next, of)
		switch {
		case err != nil:
			return due, err
		case !done: // somebody else was there before, or it was changed
			f.rev = ""
			return p.now.Add(lookEvery / 4), nil
		}
		if do.missed > 0 {
			f.Missed(name, do.missed)
		}
		tick = do.next
	}
}

// elsewhere reports whether another process could push what this one cannot.
func elsewhere(err error) bool {
	return errors.Is(err, queue.ErrCodec) || !errors.Is(err, queue.ErrTooManyPayloads) && !errors.Is(err, queue.ErrTooManyBytes) && !errors.Is(err, queue.ErrDamaged) &&
		!errors.Is(err, queue.ErrPayloadSize) && !errors.Is(err, lowkiq.ErrUnknownQueue)
}

// sweep removes what no file has any more: one process does, that leads.
func (f *Firer) sweep(ctx context.Context, now time.Time) {
	var foreign []string // entries of files, but not of this process's
	for name, k := range f.entries {
		if _, own := f.File[name]; !own && k.err == nil && k.stored.File != nil {
			foreign = append(foreign, name)
		}
	}
	var files []string
	known := f.led && len(foreign) > 0
	if known {
		files, known = f.Files(ctx)
	}
	if !known {
		clear(f.absent)
		return
	}
	maps.DeleteFunc(f.absent, func(name string, _ time.Time) bool {
		return !slices.Contains(foreign, name) || slices.Contains(files, name)
	})
	for _, name := range foreign {
		since, seen := f.absent[name]
		switch {
		case slices.Contains(files, name):
		case !seen:
			f.absent[name] = now
		case now.Sub(since) >= ofFileFor:
			if err := f.book.drop(ctx, name, f.entries[name].stored.Since); err != nil {
				f.Warn("remove what recurs by no file", err)
				continue
			}
			f.Log.Info("a recurring push is in no file any more, and was removed", "name", name)
			delete(f.absent, name)
		}
	}
}
