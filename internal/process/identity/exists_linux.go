package identity

import "golang.org/x/sys/unix"

// exists asks the kernel, which knows processes that /proc may hide. It returns false only if the
// kernel denies that there is such a process.
func exists(pid int) bool { return unix.Kill(pid, 0) != unix.ESRCH }
