//go:build !unix

package bench

import (
	"errors"
	"time"
)

// processCPU is not known here.
func processCPU() (time.Duration, error) {
	return 0, errors.New("CPU time of this process is not known on this system: measure without the idle node")
}
