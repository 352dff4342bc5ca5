package pause

import (
	"context"
	"time"
)

// Tenth is the way to something that must mostly be left to others: it lets one caller through at a
// time, and none for nine times as long as the one before has taken. A nil one lets all through.
type Tenth struct{ free chan time.Time } // holds the time from which on the next caller may go

// restFactor makes what is done and the rest after it ten times what is done.
const restFactor = 9

// NewTenth returns one that is free.
func NewTenth() *Tenth {
	t := &Tenth{make(chan time.Time, 1)}
	t.free <- time.Time{}
	return t
}

// Do waits for its turn and calls do, or returns the cause of ctx's end if that comes first.
func (t *Tenth) Do(ctx context.Context, do func() error) error {
	if t == nil {
		return do()
	}
	var free time.Time
	select {
	case free = <-t.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { t.free <- free }()
	if err := For(ctx, time.Until(free)); err != nil {
		return err
	}
	began := time.Now()
	defer func() {
		now := time.Now()
		free = now.Add(restFactor * now.Sub(began))
	}()
	return do()
}
