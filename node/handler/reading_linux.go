package handler

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unread is how many bytes of a pipe, given by its write end, nobody has read yet.
func unread(w *os.File) (n int, err error) {
	conn, err := w.SyscallConn()
	if err != nil {
		return 0, err
	}
	if failed := conn.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); failed != nil {
		return 0, failed
	}
	return n, err
}

// Pauses of awaitRead: a child that waits for its batch reads it while we yield; one that
// is busy is looked at every few milliseconds.
const (
	readYields     = 50
	readPause      = 50 * time.Microsecond
	readPauseLimit = 5 * time.Millisecond
)

// awaitRead waits until all that was written to w is read, until there is something to read
// at r, or until one of them has no other end any more.
func awaitRead(w, r *os.File) error {
	pause := readPause
	for look := 0; ; look++ {
		n, err := unread(w)
		if err != nil || n == 0 {
			return err
		}
		if look < readYields {
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			continue
		}
		if news, err := awaitNews(w, r, pause); err != nil || news {
			return err
		}
		pause = min(2*pause, readPauseLimit)
	}
}

// awaitNews waits for d at most until r can be read, or one of w and r has no other end.
func awaitNews(w, r *os.File, d time.Duration) (news bool, err error) {
	inConn, err := w.SyscallConn()
	if err != nil {
		return false, err
	}
	outConn, err := r.SyscallConn()
	if err != nil {
		return false, err
	}
	var waited error
	err = inConn.Control(func(in uintptr) {
		err := outConn.Control(func(out uintptr) {
			fds := []unix.PollFd{{Fd: int32(in)}, {Fd: int32(out), Events: unix.POLLIN}}
			timeout := unix.NsecToTimespec(d.Nanoseconds())
			var n int
			n, waited = unix.Ppoll(fds, &timeout, nil)
			news = n > 0
		})
		if err != nil {
			waited = err
		}
	})
	if waited == syscall.EINTR {
		waited = nil
	}
	if err == nil {
		err = waited
	}
	if err != nil {
		return false, fmt.Errorf("wait for the process to read its batch: %w", err)
	}
	return news, nil
}
