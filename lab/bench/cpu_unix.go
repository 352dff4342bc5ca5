//go:build unix

package bench

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// processCPU returns the CPU time that this process has used.
func processCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("CPU time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
