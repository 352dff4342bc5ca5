package handler

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ownExecutable returns a path to the running binary. It works even after the file was replaced or
// deleted.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }

// adoptOrphans makes descendants with a dead parent children of this process.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// reapOrphans kills and reaps every process below this process. It gives up after 5 s, because it may
// have no permission to kill some of them (setuid programs).
func reapOrphans() {
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		got, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		if got > 0 || err != nil {
			continue
		}
		killDescendants()
		time.Sleep(time.Millisecond) // a killed process needs a moment, and SIGCHLD of a grandchild goes elsewhere
	}
}

// killDescendants kills all processes below this process.
func killDescendants() {
	children := processTree()
	for queue := children[os.Getpid()]; len(queue) > 0; queue = queue[1:] {
		_ = syscall.Kill(queue[0], syscall.SIGKILL)
		queue = append(queue, children[queue[0]]...)
	}
}

// processTree returns the children of each process, from /proc.
func processTree() map[int][]int {
	tree := map[int][]int{}
	dir, err := os.Open("/proc")
	if err != nil {
		return tree
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			parent := parentOf(stat)
			tree[parent] = append(tree[parent], pid)
		}
	}
	return tree
}

// parentOf reads the fourth field of proc_pid_stat(5). The second field is a name in parentheses,
// which may contain any byte.
func parentOf(stat []byte) int {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return -1
	}
	pid, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return -1
	}
	return pid
}

// pendingBytes returns how many bytes of a pipe were not read yet.
func pendingBytes(fd uintptr) (int, error) { return unix.IoctlGetInt(int(fd), unix.TIOCINQ) }

// Pauses of awaitRead. A child that waits for its batch reads it while the node yields. A busy child
// is checked every few milliseconds.
const (
	readYields     = 50
	readPause      = 50 * time.Microsecond
	readPauseLimit = 5 * time.Millisecond
)

// awaitRead waits until all bytes that were written to w are read, until r has bytes to read, or
// until one of the two pipes has no other end any more.
func awaitRead(w, r *end) error {
	pause := readPause
	for look := 0; ; look++ {
		n, err := w.countUnread()
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

// awaitNews waits for at most d until r has bytes to read, or a pipe has no other end.
func awaitNews(w, r *end, d time.Duration) (news bool, err error) {
	var waited error
	err = w.withFD(func(in uintptr) {
		err := r.withFD(func(out uintptr) {
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
