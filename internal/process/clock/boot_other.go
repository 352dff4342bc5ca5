//go:build !linux

package clock

import "time"

var processStart = time.Now()

// SinceBoot is a clock that never jumps. Outside Linux it stands still while the machine is suspended.
func SinceBoot() time.Duration { return time.Since(processStart) }
