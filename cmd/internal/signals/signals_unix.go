//go:build unix

package signals

import (
	"os"
	"syscall"
)

// drainSignals end a node, which drains. People and supervisors send them, and the kernel sends SIGXCPU to a process that
// has used its share of the CPU.
var drainSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGXCPU}

// stackSignals returns the signals that print stacks. SIGQUIT prints them before the end.
func stackSignals() []os.Signal { return []os.Signal{syscall.SIGTTIN, syscall.SIGQUIT} }
