package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is a clock that never jumps. It goes on while the machine is suspended, because a
// lease runs out in Redis in the meantime (I1).
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error())
	}
	return time.Duration(ts.Nano())
}
