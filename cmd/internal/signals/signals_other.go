//go:build !unix

package signals

import (
	"os"
	"syscall"
)

var drainSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

func stackSignals() []os.Signal { return nil }
