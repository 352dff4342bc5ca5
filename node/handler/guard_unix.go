//go:build unix

package handler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lowkiq/lowkiq/internal/procs"
)

// How a node starts a guard: its own binary, with procs.GuardName as argv[0] followed by
// the node's name there, the child's path and argv, the marker in the environment, and two pipes. By the node's
// name others see that a killed node has left something behind.
const (
	guardEnv = "LOWKIQ_GUARD"
	lifeFD   = 3 // ends when the node dies or wants the child killed; carries grants of 8 bytes
	statusFD = 4 // "started PID", then "exit TEXT"; or "error TEXT"
)

// guardCalled is a fact about the process: main has called Guard. Without it NewExec
// would start main a second time instead of a guard.
var guardCalled atomic.Bool

// Guard must be the first thing in main, and in TestMain, of a program that uses
// [Exec]. It returns at once, unless the process was started by an Exec to guard a
// child: then it does that, and never returns.
func Guard() {
	if len(os.Args) > 3 && os.Args[0] == procs.GuardName && os.Getenv(guardEnv) != "" {
		// Not os.Exit: the race detector would make it wait for a second.
		syscall.Exit(guard(os.Args[2], os.Args[3:]))
	}
	guardCalled.Store(true)
}

// guard starts the child, waits for its end or the node's, kills what is left and
// reports the child's status.
func guard(path string, argv []string) int {
	runtime.LockOSThread() // the child's death signal is bound to the thread that forks it
	unix.CloseOnExec(lifeFD)
	unix.CloseOnExec(statusFD)
	signal.Notify(make(chan os.Signal, 1)) // outlive every signal that can be caught; exec resets them for the child
	adoptOrphans()
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: childEnv(), Files: []uintptr{0, 1, 2}, Sys: childAttr()})
	if err != nil {
		report("error %v", &os.PathError{Op: "start", Path: path, Err: err})
		return 1
	}
	// Only the child's ends may keep these pipes open: the node sees their end.
	_ = unix.Close(0)
	_ = unix.Close(1)
	report("started %d", pid)
	go func() {
		awaitEnd(lifeFD)
		killGroup(pid)
		killDescendants()
	}()
	status := reap(pid)
	killGroup(pid)
	sweep()
	report("exit %s", describe(status))
	return 0
}

func report(format string, args ...any) {
	// Nobody is left to be told if this fails.
	_, _ = unix.Write(statusFD, fmt.Appendf(nil, format+"\n", args...))
}

// childEnv is the environment without the marker, so that a child which is a lowkiq
// program itself starts as one.
func childEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, guardEnv+"=") {
			env = append(env, kv)
		}
	}
	return env
}

// awaitEnd blocks until the pipe has no writer, or until the time that the node has
// granted last is over. A node that is frozen closes nothing, but grants nothing.
func awaitEnd(fd int) {
	var until time.Time // zero = nothing was granted yet: for ever
	for {
		timeout := -1
		if !until.IsZero() {
			left := time.Until(until)
			if left <= 0 {
				return
			}
			timeout = int(left/time.Millisecond) + 1
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout)
		if ready == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		var left [8]byte
		switch n, err := unix.Read(fd, left[:]); {
		case errors.Is(err, unix.EINTR):
		case n != len(left):
			return
		default:
			until = time.Now().Add(time.Duration(binary.LittleEndian.Uint64(left[:])))
		}
	}
}

// reap waits for pid, and for orphans that were adopted meanwhile.
func reap(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if got == pid || err != nil && !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}

// killGroup kills the group that pid leads. The child leads a session, so it cannot
// leave its group. 0 stands for a child that was never started; to kill(2) it, and 1,
// would mean the caller's own group, and everything.
func killGroup(pid int) {
	if pid > 1 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
