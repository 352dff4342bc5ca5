//go:build unix

package main

import (
	"os"
	"syscall"
)

// drainSignals end a node, which drains: people and supervisors send them by habit, and the kernel SIGXCPU
// to who has had its share of the CPU.
var drainSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGXCPU}

// stackSignals print stacks, SIGQUIT before the end.
func stackSignals() []os.Signal { return []os.Signal{syscall.SIGTTIN, syscall.SIGQUIT} }
