//go:build unix

package handler

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/internal/procs"
)

// startPatience bounds the start of a guard and its child.
const startPatience = 10 * time.Second

// pipe is a pipe with both ends closed on exec, as os.Pipe makes them.
type pipe struct{ r, w *os.File }

// pipes are those between the node and one child with its guard.
type pipes struct{ in, out, err, life, status pipe }

func newPipes() (*pipes, error) {
	p := &pipes{}
	for _, one := range p.all() {
		var err error
		if one.r, one.w, err = os.Pipe(); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

func (p *pipes) all() []*pipe { return []*pipe{&p.in, &p.out, &p.err, &p.life, &p.status} }

// close closes what is open; closing a nil file is an error that does not matter.
func (p *pipes) close() {
	for _, one := range p.all() {
		one.r.Close()
		one.w.Close()
	}
}

// closeTheirs closes the ends that the guard has inherited.
func (p *pipes) closeTheirs() {
	for _, f := range []*os.File{p.in.r, p.out.w, p.err.w, p.life.r, p.status.w} {
		f.Close()
	}
}

// start starts a guard, which starts the child.
func (e *Exec) start() (*child, error) {
	p, err := newPipes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.cfg.Argv[0], err)
	}
	guard, err := e.guard(p)
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("%s: start its guard process: %w", e.cfg.Argv[0], err)
	}
	p.closeTheirs()
	return e.greet(guard, p)
}

// guard is the command that turns this binary into a guard.
func (e *Exec) guard(p *pipes) (*exec.Cmd, error) {
	binary, err := self()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary)
	cmd.Args = append([]string{procs.GuardName, procs.Self(), e.path}, e.cfg.Argv...)
	cmd.Dir = e.cfg.Dir
	cmd.Env = append(append(withoutOurs(os.Environ()), e.cfg.Env...), guardEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in.r, p.out.w, p.err.w
	cmd.ExtraFiles = []*os.File{p.life.r, p.status.w}    // lifeFD, statusFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's ^C is for the node
	return cmd, nil
}

// withoutOurs is an environment without the node's own variables: LOWKIQ_REDIS, tokens and URLs hold secrets,
// and a handler has no need of any.
func withoutOurs(env []string) (rest []string) {
	for _, kv := range env {
		if !strings.HasPrefix(kv, "LOWKIQ_") {
			rest = append(rest, kv)
		}
	}
	return rest
}

// greet waits until the guard says that the child runs.
func (e *Exec) greet(guard *exec.Cmd, p *pipes) (*child, error) {
	c := &child{
		name: e.cfg.Argv[0], in: p.in.w, out: p.out.r, answers: bufio.NewReader(p.out.r), max: e.cfg.MaxAnswer,
		back: make(chan bool, 1), exited: make(chan struct{}),
	}
	c.kill = sync.OnceFunc(func() {
		e.grants.remove(p.life.w)
		p.life.w.Close()
		time.AfterFunc(guardPatience, func() { _ = guard.Process.Kill() })
	})
	stderrRead := make(chan struct{})
	go func() {
		defer close(stderrRead)
		e.readStderr(p.err.r, &c.tail)
	}()
	_ = p.status.r.SetReadDeadline(time.Now().Add(startPatience))
	status := bufio.NewReader(p.status.r)
	pid, err := started(status)
	if err != nil {
		c.kill()
	} else {
		e.grants.add(p.life.w)
	}
	_ = p.status.r.SetReadDeadline(time.Time{})
	go func() {
		c.watch(guard, pid, status, p.err.r, stderrRead)
		p.status.r.Close() // before anybody may say that nothing is left of the child
		close(c.exited)
	}()
	if err != nil {
		c.close()
		return nil, fmt.Errorf("%s: %w%s", c.name, err, c.tail.quote())
	}
	return c, nil
}

// started reads the guard's first line.
func started(status *bufio.Reader) (pid int, err error) {
	text, err := status.ReadString('\n')
	text = strings.TrimSpace(text)
	if number, ok := strings.CutPrefix(text, "started "); ok {
		return strconv.Atoi(number)
	}
	if reason, ok := strings.CutPrefix(text, "error "); ok {
		return 0, errors.New(reason)
	}
	if errors.Is(err, io.EOF) {
		return 0, errors.New("its guard process died before it started the child")
	}
	return 0, fmt.Errorf("its guard process does not answer (%q, %w)", text, err)
}

// readStderr passes on whole lines, but never holds back more than a buffer.
func (e *Exec) readStderr(r *os.File, t *tail) {
	defer r.Close()
	for lines := bufio.NewReaderSize(r, 16<<10); ; {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			t.add(line)
			_, _ = e.stderr.Write(line) // a full disk of the log must not stop the child
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}
