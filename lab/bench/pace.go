package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// tick is the period of an open loop. The jobs of a thousandth of a second arrive together at its beginning. A wake-up for
// each job would be smoother. At 10,000 jobs per second it would use most of a core where a wake-up is expensive (measured:
// 80 us in a virtual machine), and the measured system would lack that core. Even with a tick of 0.25 ms, pushes began later
// than with 1 ms.
//
// The error is the delay of the goroutine that pushes a job, because of its wake-up and of other users of the processors.
// The delay counts as latency of the job and is also reported by itself, as late_p99_ms. Go's own timers would be too
// coarse, because an idle process wakes up to 1 ms late.
const tick = time.Millisecond

// openLoop pushes for the time d. Jobs arrive at fixed times, whether earlier pushes were answered or not. Each has a
// goroutine of its own and is timed from when it was due. openLoop returns how late each push began.
func (s *Stream) openLoop(ctx context.Context, load Load, d time.Duration) (_ []time.Duration, err error) {
	late := make([]time.Duration, countArrived(load.PerSecond, int(d/tick)))
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
			for until := min(countArrived(load.PerSecond, ticks+1), len(late)); next < until; next++ {
				i := next
				group.Go(func() error {
					late[i] = time.Since(due)
					return s.pushJob(ctx, load, due)
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

// countArrived returns how many jobs have arrived after the given number of ticks.
func countArrived(perSecond, ticks int) int {
	return int(int64(perSecond) * int64(ticks) * int64(tick) / int64(time.Second))
}
