package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// tick is how often jobs arrive in an open loop: those of a thousandth of a second together, at
// its beginning. A wake-up for each job would be smoother, and at 10,000 a second take most of a
// core where waking up is expensive (measured: 80 us in a virtual machine), which the system that
// is measured would lack; already with ticks of 0.25 ms pushes began later than with these.
//
// The error: the goroutine that pushes a job starts late, by the wake-up and by what else wants
// the processors. That counts as latency of the job and is reported by itself, as
// late_p99_ms. Go's own timers would be too coarse: an idle process wakes up to 1 ms late.
const tick = time.Millisecond

// openLoop pushes for d. Jobs arrive at fixed times, whatever the answers do: each has a goroutine
// of its own, and is timed from when it was due. It returns how late each push began.
func (s *Stream) openLoop(ctx context.Context, load Load, d time.Duration) (_ []time.Duration, err error) {
	late := make([]time.Duration, arrived(load.PerSecond, int(d/tick)))
	group, ctx := errgroup.WithContext(ctx)
	defer func() {
		if failed := group.Wait(); failed != nil {
			err = failed
		}
	}()
	begun := time.Now()
	timer, err := newTicker(tick)
	if err != nil {
		return nil, err
	}
	defer timer.stop()
	for ticks, next := 0, 0; ; {
		now := time.Now()
		for ; !begun.Add(time.Duration(ticks) * tick).After(now); ticks++ {
			due := begun.Add(time.Duration(ticks) * tick)
			for until := min(arrived(load.PerSecond, ticks+1), len(late)); next < until; next++ {
				i := next
				group.Go(func() error {
					late[i] = time.Since(due)
					return s.send(ctx, load, due)
				})
			}
		}
		if next == len(late) {
			return late, nil
		}
		if err := timer.wait(); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// arrived is how many jobs have arrived after so many ticks.
func arrived(perSecond, ticks int) int {
	return int(int64(perSecond) * int64(ticks) * int64(tick) / int64(time.Second))
}
