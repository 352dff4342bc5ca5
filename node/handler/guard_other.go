//go:build unix && !linux

package handler

import (
	"os"
	"syscall"
)

func ownExecutable() (string, error) { return os.Executable() }

// On other Unixes than Linux nothing adopts orphans. A process that leaves the child's group escapes.
func adoptOrphans()    {}
func reapOrphans()     {}
func killDescendants() {}

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// On other Unixes than Linux the writer of a pipe cannot see how much of it was read.
func pendingBytes(uintptr) (int, error) { return 0, nil }

func awaitRead(_, _ *end) error { return nil }
