//go:build unix

package handler

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// end is the node's end of a pipe. One goroutine at a time uses it. Its closures are made once.
// Otherwise each check would allocate more than everything else for a small batch.
type end struct {
	conn syscall.RawConn
	bad  error // the error if there is no conn

	poll  func(fd uintptr)
	fds   []unix.PollFd // used by poll
	count func(fd uintptr)
	n     int   // result of count
	err   error // error of poll or count
}

func newPipeEnd(f syscall.Conn) *end {
	e := &end{fds: make([]unix.PollFd, 1)}
	e.conn, e.bad = f.SyscallConn()
	e.poll = func(fd uintptr) {
		e.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		for _, e.err = unix.Poll(e.fds, 0); e.err == unix.EINTR; {
			_, e.err = unix.Poll(e.fds, 0)
		}
	}
	e.count = func(fd uintptr) { e.n, e.err = pendingBytes(fd) }
	return e
}

// withFD calls look with the file descriptor, unless it is closed.
func (e *end) withFD(look func(fd uintptr)) error {
	if e.bad != nil {
		return e.bad
	}
	e.err = nil
	if err := e.conn.Control(look); err != nil {
		return err
	}
	return e.err
}

// peek reports whether there are bytes to read, and whether the other end is gone.
func (e *end) peek() (readable, ended bool, err error) {
	err = e.withFD(e.poll)
	if err != nil {
		return false, false, err
	}
	return e.fds[0].Revents&unix.POLLIN != 0, e.fds[0].Revents&unix.POLLHUP != 0, nil
}

// countUnread returns how many bytes were written to this pipe and not read yet.
func (e *end) countUnread() (int, error) {
	if err := e.withFD(e.count); err != nil {
		return 0, err
	}
	return e.n, nil
}
