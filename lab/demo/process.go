package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// state is what the demo has done to a worker.
type state string

const (
	working state = ""
	killed  state = "killed"
	leaving state = "leaving"
	drained state = "drained"
)

// worker is a worker process. Its state belongs to the goroutine of Run.
type worker struct {
	name   string
	state  state
	cmd    *exec.Cmd
	parent io.Closer     // its standard input
	ended  chan struct{} // closed when the process is reaped and its progress is read
	err    error         // the result of the process; read it after ended
	errors *tail
}

// startWorker runs argv. It adds the payloads that the worker handles to handled, and its API to apis.
func startWorker(name string, argv []string, handled *atomic.Int64, apis *apis) (*worker, error) {
	w := &worker{name: name, cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{}), errors: &tail{}}
	w.cmd.Stderr = w.errors
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	w.parent = stdin
	go func() {
		defer close(w.ended)
		defer apis.remove(name)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if address, ok := strings.CutPrefix(lines.Text(), apiLine); ok {
				apis.add(name, address)
			} else if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				handled.Add(n)
			}
		}
		w.err = w.cmd.Wait()
	}()
	return w, nil
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// hasEnded reports whether the process has ended.
func (w *worker) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// kill ends the worker with SIGKILL and notes the death.
func (w *worker) kill(notes *judge.Writer) error {
	w.state = killed
	at := judge.Now()
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", w.name, err)
	}
	<-w.ended
	return notes.Death(strconv.Itoa(w.pid()), at, judge.Now())
}

// requestEnd asks the worker to end, with SIGTERM.
func (w *worker) requestEnd() error {
	w.state = leaving
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end %s: %w", w.name, err)
	}
	return nil
}

// destroy kills the process and waits for its end.
func (w *worker) destroy() {
	w.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-w.ended
	w.parent.Close()
}

// tail keeps the end of the text that was written to it. A single goroutine may write. Read it after the writer has ended.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2000):]
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.text)) }
