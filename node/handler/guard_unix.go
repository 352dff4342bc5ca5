//go:build unix

package handler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lowkiq/lowkiq/internal/process/procs"
)

// A node starts a guard as its own binary, with the marker in the environment and two pipes. The
// arguments are procs.GuardName, the node's name in package procs, and the child's path and argv. By
// the node's name others see that a killed node has left processes behind.
const (
	guardEnv = "LOWKIQ_GUARD"
	lifeFD   = 3 // carries grants of 8 bytes; ends when the node dies, or wants the child killed
	statusFD = 4 // carries lines for the node: "error TEXT", or "started PID" and then "exit TEXT" or "lapsed TEXT"
)

// guardCalled says that main has called Guard. Without that call, NewExec would start main a second
// time instead of a guard.
var guardCalled atomic.Bool

// Guard must be the first call in main, and in TestMain, of a program that uses [Exec]. Usually it
// returns at once. In a process that an Exec has started to guard a child, it guards the child and
// never returns.
func Guard() {
	if len(os.Args) > 3 && os.Args[0] == procs.GuardName && os.Getenv(guardEnv) != "" {
		// os.Exit would wait for a second under the race detector.
		syscall.Exit(runGuard(os.Args[2], os.Args[3:]))
	}
	guardCalled.Store(true)
}

// startAdvice returns what a script lacks that the system cannot start, "" for other reasons.
func startAdvice(path string, err error) string {
	first := firstLine(path)
	switch interpreter, script := strings.CutPrefix(first, "#!"); {
	case errors.Is(err, syscall.ENOEXEC) && !script:
		return "; a script must begin with its interpreter, as in #!/usr/bin/env python3"
	case errors.Is(err, syscall.ENOENT) && script:
		return fmt.Sprintf("; its first line must name an interpreter that exists, and names %q", interpreter)
	}
	return ""
}

// firstLine returns the first line of a file, at most 128 bytes of it.
func firstLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	head := make([]byte, 128)
	n, _ := io.ReadFull(file, head) // a short file ends earlier
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	return line
}

// runGuard starts the child and waits for the end of the child or of the node. Then it kills all
// processes that are left, and reports the child's status.
func runGuard(path string, argv []string) int {
	runtime.LockOSThread() // the child's death signal is bound to the thread that forks it
	unix.CloseOnExec(lifeFD)
	unix.CloseOnExec(statusFD)
	signal.Notify(make(chan os.Signal, 1)) // the guard outlives every signal that can be caught; exec resets them for the child
	adoptOrphans()
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: childEnv(), Files: []uintptr{0, 1, 2}, Sys: childAttr()})
	if err != nil {
		reportToNode("error %v%s", &os.PathError{Op: "start", Path: path, Err: err}, startAdvice(path, err))
		return 1
	}
	// Only the child may keep these pipes open, because the node waits for their end.
	_ = unix.Close(0)
	_ = unix.Close(1)
	reportToNode("started %d", pid)
	var lapsed atomic.Bool
	go func() {
		lapsed.Store(awaitEnd(lifeFD)) // before the kill, so that the report of the kill sees it
		killGroup(pid)
		killDescendants()
	}()
	status := reapUntil(pid)
	killGroup(pid)
	reapOrphans()
	word := "exit"
	if lapsed.Load() {
		word = "lapsed"
	}
	reportToNode("%s %s", word, describeStatus(status))
	return 0
}

// reportToNode writes a line for the node. A failure cannot be reported to anybody.
func reportToNode(format string, args ...any) {
	_, _ = unix.Write(statusFD, fmt.Appendf(nil, format+"\n", args...))
}

// childEnv returns the environment without the marker. A child that is a lowkiq program itself must
// not start as a guard.
func childEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, guardEnv+"=") {
			env = append(env, kv)
		}
	}
	return env
}

// awaitEnd blocks until the pipe has no writer, or until the time of the last grant is over. It
// reports whether the time was over. A frozen node closes nothing, but it grants nothing either.
func awaitEnd(fd int) (lapsed bool) {
	var until time.Time // zero before the first grant, which stands for no limit
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

// reapUntil waits for pid. It also reaps orphans that were adopted in the meantime.
func reapUntil(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if got == pid || err != nil && !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}

// killGroup kills the group that pid leads. The child leads a session, so it cannot leave its group. A
// pid of 0 stands for a child that was never started. For kill(2), 0 would be the caller's own group,
// and -1 all processes.
func killGroup(pid int) {
	if pid > 1 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

func describeStatus(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// grants tells the guards how long their children may work.
type grants struct {
	mu    sync.Mutex // guards the fields below; held while writing, which is bounded
	lives map[*os.File]bool
	until time.Time // zero before the first call of Grant
}

// Grant says that the children may work for the time that is left of the node's lease, from now. Call
// it with every renewal. A guard that gets no further grant in that time kills its child, even if the
// node is frozen and cannot kill anything (I1). Before the first call, only the node's death ends the
// children.
func (e *Exec) Grant(left time.Duration) {
	g := &e.grants
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = time.Now().Add(left)
	for life := range g.lives {
		writeGrant(life, left)
	}
}

// add sends grants to a new child's guard, beginning with the present grant. If the time of that grant
// is over, no batch will come before the next grant.
func (g *grants) add(life *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := time.Until(g.until); left > 0 {
		writeGrant(life, left)
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

// writeGrant writes a grant without waiting for long, because the lease must not wait. The pipe is
// empty unless its guard hangs. An error means that the child is being killed.
func writeGrant(life *os.File, left time.Duration) {
	_ = life.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = life.Write(binary.LittleEndian.AppendUint64(nil, uint64(max(left, 0))))
}
