//go:build !linux

package node

import "time"

var processStart = time.Now()

// sinceBoot is a clock that never jumps. Outside Linux it stands still while the
// machine is suspended.
func sinceBoot() time.Duration { return time.Since(processStart) }
