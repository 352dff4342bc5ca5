//go:build unix && !linux

package handler

import (
	"os"
	"syscall"
)

func self() (string, error) { return os.Executable() }

// Elsewhere than on Linux nothing adopts orphans: a process that leaves the child's
// group gets away.
func adoptOrphans()    {}
func sweep()           {}
func killDescendants() {}

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// Elsewhere than on Linux the writer of a pipe cannot see what is read of it.
func pending(uintptr) (int, error) { return 0, nil }

func awaitRead(_, _ *end) error { return nil }
