package demo

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
)

// worker is a running worker process.
type worker struct {
	cmd    *exec.Cmd
	parent io.Closer     // its standard input
	ended  chan struct{} // closed when it has been reaped and its progress read
	err    error         // how it ended; read after ended
	errors *tail
}

// startWorker runs argv, adding the payloads it handles to handled.
func startWorker(argv []string, handled *atomic.Int64) (*worker, error) {
	w := &worker{cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{}), errors: &tail{}}
	w.cmd.Stderr = w.errors
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w.parent = stdin
	go func() {
		defer close(w.ended)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				handled.Add(n)
			}
		}
		w.err = w.cmd.Wait()
	}()
	return w, nil
}

// kill ends the worker with SIGKILL and notes the death.
func (w *worker) kill(notes *history.Writer) error {
	killed := history.Now()
	if err := w.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the worker: %w", err)
	}
	<-w.ended
	return notes.Death(strconv.Itoa(w.cmd.Process.Pid), killed, history.Now())
}

// stop asks the worker to end, and makes it.
func (w *worker) stop() error {
	w.parent.Close()
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	select {
	case <-w.ended:
	case <-timer.C:
		w.cmd.Process.Kill() //nolint:errcheck // it has ended, or will
		<-w.ended
	}
	if w.err != nil {
		return fmt.Errorf("worker: %w: %s", w.err, w.errors)
	}
	return nil
}

// destroy makes sure that nothing is left.
func (w *worker) destroy() {
	w.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-w.ended
	w.parent.Close()
}

// tail keeps the end of what was written to it, for one goroutine at a time.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2000):]
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.text)) }

// files is a directory that does not outlive the demo.
func files() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "lowkiq-demo-")
	if err != nil {
		return "", nil, fmt.Errorf("demo: %w", err)
	}
	return dir, func() { os.RemoveAll(dir) }, nil
}
