package redistest

import "syscall"

// attributes let the kernel kill a server whose test process was killed before it
// could clean up.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
