//go:build unix

package handler

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// end is our end of a pipe or connection, to be looked at. One goroutine at a time uses it; its
// closures are made once, because a look would else allocate more than all else of a small batch.
type end struct {
	conn syscall.RawConn
	bad  error // there is no conn

	poll  func(fd uintptr)
	fds   []unix.PollFd // of poll
	count func(fd uintptr)
	n     int   // of count
	err   error // of either
}

func newEnd(f syscall.Conn) *end {
	e := &end{fds: make([]unix.PollFd, 1)}
	e.conn, e.bad = f.SyscallConn()
	e.poll = func(fd uintptr) {
		e.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		for _, e.err = unix.Poll(e.fds, 0); e.err == unix.EINTR; {
			_, e.err = unix.Poll(e.fds, 0)
		}
	}
	e.count = func(fd uintptr) { e.n, e.err = pending(fd) }
	return e
}

// control has look called with the file descriptor, unless it is closed.
func (e *end) control(look func(fd uintptr)) error {
	if e.bad != nil {
		return e.bad
	}
	e.err = nil
	if err := e.conn.Control(look); err != nil {
		return err
	}
	return e.err
}

// news reports whether there is something to read, and whether the other end is gone.
func (e *end) news() (readable, ended bool, err error) {
	err = e.control(e.poll)
	if err != nil {
		return false, false, err
	}
	return e.fds[0].Revents&unix.POLLIN != 0, e.fds[0].Revents&unix.POLLHUP != 0, nil
}

// unread is how many bytes of a pipe, whose write end this is, were not read yet.
func (e *end) unread() (int, error) {
	if err := e.control(e.count); err != nil {
		return 0, err
	}
	return e.n, nil
}
