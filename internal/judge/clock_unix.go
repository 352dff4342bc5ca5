//go:build linux || darwin || freebsd || netbsd || openbsd

package judge

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_MONOTONIC, the clock that all processes of a host share and
// that no change of the wall clock moves.
func Now() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Errorf("read CLOCK_MONOTONIC: %w", err))
	}
	return time.Duration(now.Nano())
}
