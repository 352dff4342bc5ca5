//go:build linux

package handler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lowkiq/lowkiq/internal/process/procs"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// roles are the main functions of the processes that tests start.
func roles() map[string]func() {
	return map[string]func(){"echo": echo, "node": nodeToKill, "unguarded": unguarded, "show": show}
}

// unguarded is a main function that does not call Guard.
func unguarded() {
	guardCalled.Store(false)
	_, err := NewExec(ExecConfig{Argv: []string{"sh"}})
	fmt.Print(err)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Errorf("waited a minute for %s", what)
			return
		}
	}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

func pidsIn(t testing.TB, file string) []int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// family is a child with a grandchild, a process in a session of its own, and a process whose parent is
// gone. It writes their pids to the file "pids", as a single line.
const family = `sleep 600 & a=$!; setsid sleep 600 & b=$!; (setsid sh -c 'echo $$ >c.tmp; mv c.tmp c; exec sleep 600' &)
while [ ! -f c ]; do sleep 0.01; done; echo $$ $a $b $(cat c) >pids.tmp; mv pids.tmp pids; wait`

// nodeToKill works on a batch that never ends.
func nodeToKill() {
	e, err := NewExec(ExecConfig{Argv: []string{"sh", "-c", "read -r line; " + family}, Processes: 1, Env: []string{"HANDLER_TEST_ROLE="}})
	if err != nil {
		panic(err)
	}
	go func() { _ = e.Run(context.Background()) }()
	if grant, err := time.ParseDuration(os.Getenv("HANDLER_TEST_GRANT")); err == nil {
		go func() {
			for range time.Tick(20 * time.Millisecond) {
				e.Grant(grant)
			}
		}()
	}
	panic(e.Handle(context.Background(), batch()))
}

// TestNodeKilled checks that no exec child outlives its node, and no process that a child has started (I1). The machine
// decides how soon they are gone.
func TestNodeKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node := exec.Command(os.Args[0])
	node.Dir, node.Env = dir, append(os.Environ(), "HANDLER_TEST_ROLE=node")
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(dir, "pids")
	eventually(t, "the children to start", func() bool { _, err := os.Stat(pids); return err == nil })
	all := append(pidsIn(t, pids), guardsOf(node.Process.Pid)...)
	if len(all) != 5 {
		t.Errorf("got %d processes, want child, three grandchildren and the guard", len(all))
	}
	for _, pid := range all {
		if !alive(pid) {
			t.Errorf("process %d does not run before the kill: the test would show nothing", pid)
		}
	}
	start, err := procs.StartTime(node.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	guarded := func() bool {
		found, err := procs.IsGuarded(procs.ProcessName(node.Process.Pid, start))
		if err != nil {
			t.Error(err)
		}
		return found
	}
	if !guarded() {
		t.Error("its guard does not name it")
	}
	_ = node.Process.Kill()
	_ = node.Wait()
	eventually(t, "the node's processes to end", func() bool {
		if !guarded() && slices.ContainsFunc(all, alive) {
			t.Error("something of the node lives, and no guard of it")
		}
		for _, pid := range all {
			if alive(pid) {
				return false
			}
		}
		return true
	})
}

// TestNodeFrozen stops a node for longer than its lease. It cannot kill anything. Its guards kill the children when its
// grant is over (I1). They do not while it grants, or if it never has.
func TestNodeFrozen(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	t.Run("granting", func(t *testing.T) {
		t.Parallel()
		for grant := time.Second; !nodeFrozen(t, grant); grant *= 4 { // a machine that stands still for longer than a grant ends it
			if grant > time.Minute {
				t.Fatal("the child died although the node works")
			}
		}
	})
	t.Run("never granted", func(t *testing.T) {
		t.Parallel()
		nodeFrozen(t, 0)
	})
}

// nodeFrozen starts a node, stops it and looks at its children. It returns false if they have ended before the stop.
func nodeFrozen(t *testing.T, grant time.Duration) bool {
	dir := t.TempDir()
	node := exec.Command(os.Args[0])
	node.Dir, node.Env = dir, append(os.Environ(), "HANDLER_TEST_ROLE=node", "HANDLER_TEST_GRANT=")
	if grant > 0 {
		node.Env = append(node.Env, "HANDLER_TEST_GRANT="+grant.String())
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(dir, "pids")
	eventually(t, "the children to start", func() bool { _, err := os.Stat(pids); return err == nil })
	all := pidsIn(t, pids)
	anyAlive := func() bool { return slices.ContainsFunc(all, alive) }
	defer func() {
		_ = node.Process.Kill()
		_ = node.Wait()
		eventually(t, "the node's processes to end", func() bool { return !anyAlive() })
	}()
	// This is longer than a grant. The stop ends them, and not the time.
	for began := time.Now(); time.Since(began) < grant+300*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		if !alive(all[0]) {
			return false
		}
	}
	_ = node.Process.Signal(syscall.SIGSTOP)
	if grant > 0 {
		eventually(t, "the children to end with the grant", func() bool { return !anyAlive() })
		return true
	}
	for stopped := time.Now(); time.Since(stopped) < 2500*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		if !alive(all[0]) {
			t.Fatalf("the child died %s after the stop, want it to live: nothing was granted", time.Since(stopped))
		}
	}
	return true
}

// guardsOf returns the children of a process.
func guardsOf(pid int) []int { return processTree()[pid] }

// Without a guard the same family outlives its parent.
func TestWithoutAGuardTheFamilyLives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", family)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(dir, "pids")
	eventually(t, "the children to start", func() bool { _, err := os.Stat(pids); return err == nil })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	living := 0
	for _, pid := range pidsIn(t, pids)[1:] {
		if alive(pid) {
			living++
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if living != 3 {
		t.Errorf("got %d living grandchildren, want 3", living)
	}
}

// A guard that is killed takes its child along, and the batch fails.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`sleep 600 & echo $$ $! $PPID >pids.tmp; mv pids.tmp pids; wait`), Dir: dir})
	failed := make(chan error, 1)
	go func() { failed <- e.Handle(t.Context(), batch()) }()
	eventually(t, "the child to start", func() bool { _, err := os.Stat(filepath.Join(dir, "pids")); return err == nil })
	pids := pidsIn(t, filepath.Join(dir, "pids"))
	_ = syscall.Kill(pids[2], syscall.SIGKILL)
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "its guard process died") {
		t.Errorf("got %v, want the guard's death named", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives after its guard and the failure of its batch", pid)
		}
	}
}

// The child gets plain, blocking pipes. It gets no other file of the guard or the node, and no marker.
// It leads a session.
func TestChildInheritsOnlyItsPipes(t *testing.T) {
	t.Parallel()
	var stderr lines
	e := running(t, ExecConfig{Log: stderr.logger(), Argv: echoChild(), Env: []string{"HANDLER_TEST_ROLE=show"}})
	if err := e.Handle(t.Context(), batch()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child's stderr", func() bool { return strings.HasSuffix(stderr.String(), "\n") })
	want := fmt.Sprintf("files %v blocking true marker false leader true\n", inheritable(t))
	if got := stderr.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The node's variables hold secrets. A child has only the variables that its configuration gives it.
func TestChildGetsNoSecret(t *testing.T) {
	t.Setenv("LOWKIQ_REDIS", "redis://:PASSWORD@127.0.0.1/0")
	t.Setenv("LOWKIQ_NODE_TOKEN", "PASSWORD-0123456789")
	t.Setenv("HANDLER_TEST_OWN", "own")
	var stderr lines
	e := running(t, ExecConfig{Log: stderr.logger(), Argv: []string{"sh", "-c", `env >&2; echo that was all >&2; while read -r line; do echo '{"ok":true}'; done`},
		Env: []string{"LOWKIQ_URL=http://127.0.0.1:1"}})
	if err := e.Handle(t.Context(), batch()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child's environment", func() bool { return strings.Contains(stderr.String(), "that was all\n") })
	got := stderr.String()
	if strings.Contains(got, "PASSWORD") || strings.Contains(got, "LOWKIQ_REDIS") {
		t.Errorf("got %s, want no variable of the node's", got)
	}
	if !strings.Contains(got, "HANDLER_TEST_OWN=own") || !strings.Contains(got, "LOWKIQ_URL=http://127.0.0.1:1") {
		t.Errorf("got %s, want the host's variables and the configured ones", got)
	}
}

// show writes what it has inherited to stderr, and then works like echo.
func show() {
	var files []int
	for fd := range 1024 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			files = append(files, fd) // what the Go runtime opens itself is closed on exec
		}
	}
	blocking := true
	for fd := range 3 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		blocking = blocking && err == nil && flags&unix.O_NONBLOCK == 0
	}
	_, marker := os.LookupEnv(guardEnv)
	session, _ := unix.Getsid(0)
	fmt.Fprintf(os.Stderr, "files %v blocking %t marker %t leader %t\n", files, blocking, marker, session == os.Getpid())
	echo()
}

// inheritable lists 0, 1 and 2, and the files that the parent of this test leaks to all processes.
func inheritable(t *testing.T) []int {
	t.Helper()
	files := []int{0, 1, 2}
	for fd := 3; fd < 1024; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			files = append(files, fd)
		}
	}
	return files
}

// Start, failure and end leave neither a process nor a descriptor behind.
func TestExecLeavesNothing(t *testing.T) {
	tier.Usual(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeftovers$", "-test.v")
	cmd.Env = append(os.Environ(), "HANDLER_TEST_LEFTOVERS=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "counted") {
		t.Errorf("got %v:\n%s", err, out)
	}
}

// TestLeftovers runs in a process of its own, in which nothing else opens files.
func TestLeftovers(t *testing.T) {
	if os.Getenv("HANDLER_TEST_LEFTOVERS") == "" {
		return // TestExecLeavesNothing runs it
	}
	round := func() {
		for _, argv := range [][]string{loop(`echo '{"ok":true}'`), loop(`exit 1`), loop(`echo x`), sh(`exit 1`)} {
			e, err := NewExec(ExecConfig{Argv: argv, Processes: 2})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			_ = e.Handle(ctx, batch())
			cancel()
			<-done
		}
	}
	round() // whatever the runtime opens once
	before := descriptors(t)
	for range 5 {
		round()
	}
	if after := descriptors(t); after > before {
		t.Errorf("got %d open files, want at most the %d of before", after, before)
	}
	if left := guardsOf(os.Getpid()); len(left) > 0 {
		t.Errorf("got children %v, want none", left)
	}
	t.Log("counted")
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// lines keeps the stderr of children, line by line.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// logger returns a log whose lines are kept.
func (l *lines) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

func (l *lines) Write(entry []byte) (int, error) {
	var said struct{ Line string }
	if err := json.Unmarshal(entry, &said); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(said.Line + "\n")
	return len(entry), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
