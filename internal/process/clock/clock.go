// Package clock answers one question: what time is it, if the wall clock of this host may be wrong?
package clock

import (
	"sync/atomic"
	"time"
)

// Remote estimates the clock of another host, such as Redis, from the last reading of it. The zero Remote has no reading.
// Its methods may be called by several goroutines.
type Remote struct {
	offset atomic.Pointer[time.Duration] // from SinceBoot to the other clock's Unix time
}

// Set sets the current time of the other clock. A zero time changes nothing.
func (r *Remote) Set(now time.Time) {
	if !now.IsZero() {
		offset := time.Duration(now.UnixNano()) - SinceBoot()
		r.offset.Store(&offset)
	}
}

// At returns the other clock's time at a time of SinceBoot. It returns a zero time before the first reading.
func (r *Remote) At(t time.Duration) time.Time {
	if offset := r.offset.Load(); offset != nil {
		return time.Unix(0, int64(*offset+t))
	}
	return time.Time{}
}

// Now returns the other clock's time now. It returns a zero time before the first reading.
func (r *Remote) Now() time.Time { return r.At(SinceBoot()) }
