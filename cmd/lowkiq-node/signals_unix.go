//go:build unix

package main

import (
	"os"
	"syscall"
)

func stackSignals() []os.Signal { return []os.Signal{syscall.SIGTTIN} }
