//go:build !unix

package bench

import (
	"errors"
	"time"
)

// processCPU returns an error, because this system does not report the CPU time of a process.
func processCPU() (time.Duration, error) {
	return 0, errors.New("this system does not report the CPU time of a process; measure without the idle node")
}
