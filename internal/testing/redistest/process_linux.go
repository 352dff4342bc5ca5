package redistest

import "syscall"

// processAttributes lets the kernel kill a server whose test process was killed before it could clean up.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
