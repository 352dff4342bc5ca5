//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// process is a worker process of a test.
type process struct {
	t       *testing.T
	name    string
	cmd     *exec.Cmd
	log     string // the file with its stderr
	stdin   io.WriteCloser
	started time.Duration // just before the start
	ended   chan struct{} // closed when it has been reaped
	mortal  atomic.Bool   // the test expects its end

	mu   sync.Mutex
	out  []byte   // an unfinished line of stdout; guarded by mu
	said []string // lines of stdout; guarded by mu
}

// launch starts argv with its stderr in a file. The process dies with the test.
func launch(t *testing.T, name string, env []string, argv ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	log, err := os.CreateTemp(t.TempDir(), "log-*")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.log = log.Name()
	p.cmd.Env = nodebin.Env(env...)
	p.cmd.Dir = filepath.Dir(log.Name())
	p.cmd.Stdout, p.cmd.Stderr = p, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.started = judge.Now()
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(p.destroy)
	return p
}

// run stays on one thread: it is the parent that Pdeathsig speaks of.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // the state says how it ended
		close(p.ended)
	}
}

// Write takes the process's stdout.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = append(p.out, text...)
	for {
		line, rest, whole := bytes.Cut(p.out, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		p.said, p.out = append(p.said, string(line)), rest
	}
}

// lines are what the process said that begins with a word.
func (p *process) lines(word string) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.said {
		if strings.HasPrefix(line, word) {
			lines = append(lines, line)
		}
	}
	return lines
}

// first is when the process handled its first job; 0 = not yet.
func (p *process) first() time.Duration {
	lines := p.lines("first ")
	if len(lines) == 0 {
		return 0
	}
	at, err := strconv.ParseInt(strings.TrimPrefix(lines[0], "first "), 10, 64)
	if err != nil {
		p.t.Errorf("%s said %q", p.name, lines[0])
	}
	return time.Duration(at)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal may come too late.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// exits waits for the end and returns the status. A process that takes longer is killed.
func (p *process) exits(within time.Duration) string {
	p.t.Helper()
	p.mortal.Store(true)
	select {
	case <-p.ended:
		return p.cmd.ProcessState.String()
	case <-time.After(within):
		p.signal(syscall.SIGABRT) // the stacks go to the log
		<-p.ended
		return fmt.Sprintf("not within %s", within)
	}
}

// terminate ends the process with SIGTERM, which must be a success within a limit.
func (p *process) terminate(within time.Duration) (took time.Duration) {
	p.t.Helper()
	p.mortal.Store(true)
	asked := time.Now()
	p.signal(syscall.SIGTERM)
	if got := p.exits(within); got != "exit status 0" {
		p.t.Errorf("%s after SIGTERM: got %s, want exit status 0 within %s", p.name, got, within)
	}
	return time.Since(asked)
}

// destroy ends what is left and looks through the log.
func (p *process) destroy() {
	p.mortal.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.ended
	data, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Error(err)
	}
	text := string(data)
	if strings.Contains(text, "WARNING: DATA RACE") {
		p.t.Errorf("%s has a data race", p.name)
	}
	if p.t.Failed() {
		p.t.Logf("log of %s (pid %d, %s):\n%s", p.name, p.pid(), p.cmd.ProcessState, text[max(0, len(text)-8000):])
	}
}

// tagged lists the living processes that have a tag in their environment: those of a
// test, and all that these started.
func tagged(tag string) (pids []int) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		panic(err) // the pattern is bad
	}
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err == nil && bytes.Contains(environ, []byte(tagEnv+"="+tag+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}
