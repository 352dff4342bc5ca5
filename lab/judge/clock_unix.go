//go:build linux || darwin || freebsd || netbsd || openbsd

package judge

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time of CLOCK_MONOTONIC. All processes of a host share it, and no change of the wall clock moves it.
func Now() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Errorf("read CLOCK_MONOTONIC: %w", err))
	}
	return time.Duration(now.Nano())
}
