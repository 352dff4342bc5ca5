package sleep

import (
	"context"
	"sync/atomic"
	"time"
)

// Tenth rations calls to a resource that must be left to others most of the time. It lets one caller
// at a time through. After each call it lets nobody through for nine times the duration of the call.
// A nil Tenth lets all callers through.
type Tenth struct {
	free chan time.Time // holds the earliest time when the next caller may go
	owed atomic.Int64   // rests after the calls of Owe, in ns
}

// restFactor makes a call and the rest after it ten times as long as the call.
const restFactor = 9

// NewTenth returns a Tenth that lets a caller through now.
func NewTenth() *Tenth {
	t := &Tenth{free: make(chan time.Time, 1)}
	t.free <- time.Time{}
	return t
}

// Do waits for its turn and calls do. If ctx ends first, it returns the cause of that.
func (t *Tenth) Do(ctx context.Context, do func() error) error {
	_, err := t.By(ctx, time.Time{}, do)
	return err
}

// By is like Do, but waits only until the given time. If its turn does not come by then, it returns at
// that time and reports that do was not called. The zero time is no limit.
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
		t.free <- free // other callers may wait for longer
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

// Owe calls do at once. The next caller of Do or By rests for it, too.
func (t *Tenth) Owe(do func() error) error {
	if t == nil {
		return do()
	}
	began := time.Now()
	defer func() { t.owed.Add(int64(restFactor * time.Since(began))) }()
	return do()
}
