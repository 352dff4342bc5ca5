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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lowkiq/lowkiq/internal/procs"
)

// How a node starts a guard: its own binary, with procs.GuardName as argv[0] followed by the node's
// name there, the child's path and argv, the marker in the environment, and two pipes. By the
// node's name others see that a killed node has left something behind.
const (
	guardEnv = "LOWKIQ_GUARD"
	lifeFD   = 3 // ends when the node dies or wants the child killed; carries grants of 8 bytes
	statusFD = 4 // "started PID", then "exit TEXT", or "lapsed TEXT" if the guard killed the child as no grant came; or "error TEXT"
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
	var lapsed atomic.Bool
	go func() {
		lapsed.Store(awaitEnd(lifeFD)) // before the kill: the end that it brings is told as this
		killGroup(pid)
		killDescendants()
	}()
	status := reap(pid)
	killGroup(pid)
	sweep()
	word := "exit"
	if lapsed.Load() {
		word = "lapsed"
	}
	report("%s %s", word, describe(status))
	return 0
}

func report(format string, args ...any) {
	// No process is left to be told if this fails.
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
// granted last is over, which it reports. A node that is frozen closes nothing, but grants nothing.
func awaitEnd(fd int) (lapsed bool) {
	var until time.Time // zero = nothing was granted yet: for ever
	for {
		timeout := -1
		if !until.IsZero() {
			left := time.Until(until)
			if left <= 0 {
				return true
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
			return false
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

// grants tells the guards for how long their children may work.
type grants struct {
	mu    sync.Mutex // guards both; held while writing, which is bounded
	lives map[*os.File]bool
	until time.Time // zero = Grant was never called
}

// Grant says that the children may work for the time left of the node's lease, from
// now; call it with every renewal. A guard that gets no further grant in that
// time kills its child, even if the node is frozen and can kill nothing itself (I1).
// Until the first call only the node's death ends the children.
func (e *Exec) Grant(left time.Duration) {
	g := &e.grants
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = time.Now().Add(left)
	for life := range g.lives {
		grant(life, left)
	}
}

// add sends grants to a new child's guard, the present one first. If that is
// over, so that no batch will come, the next one will be its first.
func (g *grants) add(life *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := time.Until(g.until); left > 0 {
		grant(life, left)
	}
	if g.lives == nil {
		g.lives = map[*os.File]bool{}
	}
	g.lives[life] = true
}

func (g *grants) remove(life *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.lives, life)
}

// grant writes to a pipe that is empty unless its guard hangs; the lease must not.
// An error means that the child is being killed.
func grant(life *os.File, left time.Duration) {
	_ = life.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = life.Write(binary.LittleEndian.AppendUint64(nil, uint64(max(left, 0))))
}
