package pause

import (
	"context"
	"sync/atomic"
	"time"
)

// Tenth is the way to something that must mostly be left to others: it lets one caller through at a
// time, and none for nine times as long as the one before has taken. A nil one lets all through.
type Tenth struct {
	free chan time.Time // holds the time from which on the next caller may go
	owed atomic.Int64   // rests of those who did not wait, ns
}

// restFactor makes what is done and the rest after it ten times what is done.
const restFactor = 9

// NewTenth returns one that is free.
func NewTenth() *Tenth {
	t := &Tenth{free: make(chan time.Time, 1)}
	t.free <- time.Time{}
	return t
}

// Do waits for its turn and calls do, or returns the cause of ctx's end if that comes first.
func (t *Tenth) Do(ctx context.Context, do func() error) error {
	_, err := t.By(ctx, time.Time{}, do)
	return err
}

// By is Do for who has something else to do if its turn does not come by then: it waits until then, and reports that do was not called. The
// zero time is no bound.
func (t *Tenth) By(ctx context.Context, until time.Time, do func() error) (ran bool, err error) {
	if t == nil {
		return true, do()
	}
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		late = timer.C
	}
	var free time.Time
	select {
	case free = <-t.free:
	case <-late:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if owed := time.Duration(t.owed.Swap(0)); owed > 0 {
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(owed)
	}
	if late != nil && free.After(until) {
		t.free <- free // others may wait for longer
		return false, For(ctx, time.Until(until))
	}
	defer func() { t.free <- free }()
	if err := For(ctx, time.Until(free)); err != nil {
		return false, err
	}
	began := time.Now()
	defer func() {
		now := time.Now()
		free = now.Add(restFactor * now.Sub(began))
	}()
	return true, do()
}

// Owe calls do at once. Who comes next rests for it, too.
func (t *Tenth) Owe(do func() error) error {
	if t == nil {
		return do()
	}
	began := time.Now()
	defer func() { t.owed.Add(int64(restFactor * time.Since(began))) }()
	return do()
}
