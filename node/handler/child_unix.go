//go:build unix

package handler

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/procs"
	"github.com/lowkiq/lowkiq/wire"
)

// errGone means that the child ended before it was given the batch.
var errGone = errors.New("process ended before it got the batch")

// errUntouched means that the child closed its stdin and had read nothing of the batch.
var errUntouched = errors.New("nothing of the batch was read")

// How long the end of a child may take. Each is far from what a healthy machine
// needs; they bound Handle on a sick one.
const (
	killAfter     = time.Second            // from the end of an idle child's stdin to its kill
	guardPatience = 2 * time.Second        // from asking the guard to kill, to killing the guard
	exitPatience  = 500 * time.Millisecond // from the end of stdout to the exit
	drainPatience = 100 * time.Millisecond // for pipes that an escaped process keeps open
)

// child is one process with its guard. Its slot owns it, a Handle has it while it is
// lent; only exited and kill are for both.
type child struct {
	name     string
	in       *os.File // its stdin
	out      *os.File // its stdout
	inEnd    *end
	outEnd   *end
	answers  *bufio.Reader
	line     []byte
	answered bool        // it has given a good answer
	stopped  bool        // it was killed, because the context of its batch ended
	ended    atomic.Bool // Run's end killed it
	back     chan bool   // the borrower gives it back: true = still good

	kill   func()        // asks the guard to kill all; exited is closed soon after
	exited chan struct{} // closed when all processes are reaped and stderr is read
	status string        // how it ended; set before exited is closed, as is lapsed
	lapsed bool          // its guard killed it, as the node's lease was not renewed in time
	tail   tail          // the end of its stderr
}

// exchange gives the batch to the child, as the line that write appends, and returns its verdict. When it returns,
// either the child waits for the next batch or nothing of it is left.
func (c *child) exchange(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) error {
	unhook := context.AfterFunc(ctx, c.kill)
	broken, verdict := c.roundTrip(ctx, b, write)
	cancelled := !unhook()
	if broken != nil && !cancelled {
		broken = c.explain(broken)
		c.kill()
	}
	if broken != nil || cancelled {
		<-c.exited
	}
	c.answered = c.answered || broken == nil
	c.stopped = cancelled
	// Output after the answer would be taken for the answer to the next batch.
	good := broken == nil && !cancelled && c.answers.Buffered() == 0
	if !good {
		c.kill()
		<-c.exited
	}
	c.back <- good
	switch {
	case broken != nil && cancelled:
		return fmt.Errorf("%s: killed: %w", c.name, context.Cause(ctx))
	case broken != nil && c.lapsed:
		return c.ours(lowkiq.ErrLeaseLost)
	case broken != nil && c.ended.Load():
		return c.ours(lowkiq.ErrShutdown)
	case errors.Is(broken, errGone):
		return fmt.Errorf("%s: %w: %s%s", c.name, errGone, c.status, c.tail.quote())
	case broken != nil:
		return fmt.Errorf("%s: %w%s", c.name, broken, c.tail.quote())
	}
	return verdict
}

// ours is the answer to a batch whose child was killed for no fault of its own, before the batch's
// context says why: no retry is spent.
func (c *child) ours(why error) error {
	err := fmt.Errorf("%s: killed: %w", c.name, why)
	return fmt.Errorf("%w: %w", err, lowkiq.Postpone{Reason: err.Error()})
}

// roundTrip returns what broke the exchange, or else the child's verdict.
func (c *child) roundTrip(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) (broken, verdict error) {
	if err := c.quiet("while it had no batch"); err != nil {
		return err, nil
	}
	c.line = append(write(c.line[:0]), '\n')
	broken, writeErr := c.deliver(c.line)
	if broken != nil {
		return broken, nil
	}
	if cap(c.line) > 1<<20 {
		c.line = nil // one huge batch must not stay for ever
	}
	// It may have answered, or said why not, without reading everything.
	if writeErr != nil {
		_ = c.out.SetReadDeadline(time.Now().Add(exitPatience))
	}
	answer, refused, err := c.listen(ctx, b)
	if errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(writeErr, syscall.EPIPE) {
		return errors.New("closed its stdin without reading its batch"), nil
	}
	if errors.Is(err, io.EOF) && errors.Is(writeErr, errUntouched) {
		return errGone, nil // a process that ends closes its stdin first
	}
	if err != nil {
		return errors.Join(err, writeErr), nil
	}
	if left, err := c.inEnd.unread(); err != nil || writeErr != nil || left > 0 {
		return errors.Join(fmt.Errorf("answered %s without reading its batch", excerpt(answer, 200)), err), nil
	}
	if refused != nil {
		return nil, refused
	}
	verdict = wire.ParseAnswer(answer, b)
	var nonsense *wire.Error
	if errors.As(verdict, &nonsense) {
		return fmt.Errorf("wrote %s to stdout instead of an answer (%w); stdout carries answers only, write logs to stderr", excerpt(answer, 200), verdict), nil
	}
	return nil, verdict
}

// listen takes what the child notes of its jobs, and returns its answer. refused is why a note was not
// taken: then the batch has failed, whatever the answer. A child that notes for ever ends with its
// batch's context.
func (c *child) listen(ctx context.Context, b *lowkiq.Batch) (answer []byte, refused, err error) {
	for {
		line, err := readLine(c.answers, answerLimit(b))
		if err != nil || !bytes.Contains(line[:min(len(line), 64)], []byte(`"note`)) {
			return line, refused, err
		}
		notes, ok, err := wire.ParseNotes(line)
		switch left, unread := c.inEnd.unread(); {
		case !ok:
			return line, refused, nil
		case err != nil:
			return nil, nil, fmt.Errorf("wrote the note %s (%w)", excerpt(line, 200), err)
		case unread != nil || left > 0:
			return nil, nil, errors.Join(fmt.Errorf("noted %s without reading its batch", excerpt(line, 200)), unread)
		}
		if refused = cmp.Or(refused, c.objection(b, notes)); refused != nil {
			continue
		}
		for _, note := range notes {
			if ctx.Err() != nil {
				break // the batch's time is over: what the child wrote then is no part of it
			}
			err := b.Note(ctx, note.ID, note.Note)
			switch {
			case err == nil || refused != nil || errors.Is(err, lowkiq.ErrEnded):
			case note.State != nil || errors.Is(err, lowkiq.ErrNote):
				refused = fmt.Errorf("%s: its note: %w", c.name, err)
			} // else Redis was out of reach, and the next one may say as much
		}
	}
}

// objection says why nothing of a line of notes is taken.
func (c *child) objection(b *lowkiq.Batch, notes []wire.Note) error {
	seen := map[string]bool{}
	for i := range notes {
		id := notes[i].ID
		err := notes[i].Check()
		switch {
		case err != nil:
		case seen[id]:
			err = fmt.Errorf("%w: it is there twice", lowkiq.ErrNote)
		case !slices.ContainsFunc(b.Jobs, func(j lowkiq.Job) bool { return j.ID == id }):
			err = fmt.Errorf("%w: it is not in the batch", lowkiq.ErrNote)
		}
		if err != nil {
			return fmt.Errorf("%s: its note of job %q: %w", c.name, id, err)
		}
		seen[id] = true
	}
	return nil
}

// batchEnd is how many bytes of a batch are held back until the rest is read: its last brace
// and the newline, without which no program can take it for a batch.
const batchEnd = 2

// deliver writes a batch so that no answer can come before the child has read it. An answer
// that comes late, a second one to the batch before say, would else acknowledge what the child
// has not seen (I2). So the end of the batch follows once the rest is read and the child has
// written nothing meanwhile: what it writes from then on it writes with the batch in hand.
func (c *child) deliver(line []byte) (broken, writeErr error) {
	begin, end := line[:len(line)-batchEnd], line[len(line)-batchEnd:]
	if n, err := c.in.Write(begin); err != nil {
		return nil, c.closed(n, err)
	}
	if err := awaitRead(c.inEnd, c.outEnd); err != nil {
		return err, nil
	}
	if err := c.quiet("before it had read its batch"); err != nil {
		return err, nil
	}
	if _, err := c.in.Write(end); err != nil {
		return nil, c.closed(len(begin), err)
	}
	return nil, nil
}

// closed adds errUntouched to the error of a write if none of the written bytes was read.
func (c *child) closed(written int, err error) error {
	if left, failed := c.inEnd.unread(); failed == nil && left == written {
		return errors.Join(errUntouched, err)
	}
	return err
}

// quiet checks that the child has written nothing since its last answer, and has not
// ended. When is for the error.
func (c *child) quiet(when string) error {
	readable, ended, err := c.outEnd.news()
	if err != nil {
		return err
	}
	if readable {
		_ = c.out.SetReadDeadline(time.Now().Add(drainPatience))
		text, _ := c.answers.Peek(1)
		text, _ = c.answers.Peek(max(len(text), c.answers.Buffered()))
		return fmt.Errorf("wrote %s to stdout %s; stdout carries answers only, one to each batch, write logs to stderr", excerpt(bytes.TrimSpace(text), 200), when)
	}
	if ended {
		return errGone
	}
	return nil
}

// explain adds the exit status to the end of stdout.
func (c *child) explain(broken error) error {
	if !errors.Is(broken, io.EOF) && !errors.Is(broken, io.ErrUnexpectedEOF) && !errors.Is(broken, syscall.EPIPE) {
		return broken
	}
	timer := time.NewTimer(exitPatience)
	defer timer.Stop()
	select {
	case <-c.exited:
		return fmt.Errorf("ended before it answered: %s", c.status)
	case <-timer.C:
		return errors.New("closed its stdout before it answered")
	}
}

// dismiss ends an idle child: by the end of its stdin, or else by killing it.
func (c *child) dismiss(patience time.Duration) {
	c.in.Close()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
	}
}

// close leaves nothing of the child.
func (c *child) close() {
	c.kill()
	<-c.exited
	c.in.Close()
	c.out.Close()
}

// watch waits for the guard's end, which comes after the child's.
func (c *child) watch(guard *exec.Cmd, pid int, status *bufio.Reader, stderr *os.File, stderrRead <-chan struct{}) {
	text, _ := status.ReadString('\n')
	_, _ = io.Copy(io.Discard, status) // until the guard is gone
	err := guard.Wait()
	word, end, _ := strings.Cut(strings.TrimSpace(text), " ")
	if word == "exit" || word == "lapsed" {
		c.status, c.lapsed = end, word == "lapsed"
	} else {
		c.status = fmt.Sprintf("its guard process died (%v)", err)
		endGroup(pid)
	}
	// Processes that got away, possible only elsewhere than on Linux or without the
	// guard, may keep the pipes open.
	soon := time.Now().Add(drainPatience)
	_ = stderr.SetReadDeadline(soon)
	_ = c.out.SetReadDeadline(soon)
	_ = c.in.SetWriteDeadline(soon)
	<-stderrRead
	c.kill() // closes the pipe to the guard
}

// endGroup kills the child's group and waits until it is gone. It is not ours to
// reap: where init is slow to, the dead still count, and the wait is cut short.
func endGroup(pid int) {
	killGroup(pid)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); pid > 1 && time.Since(began) < drainPatience && syscall.Kill(-pid, 0) == nil; {
		<-tick.C
	}
}

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

// withoutOurs is an environment without the node's own variables: LOWKIQ_REDIS, tokens and URLs
// hold secrets, and a handler has no need of any.
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
		name: e.cfg.Argv[0], in: p.in.w, out: p.out.r, inEnd: newEnd(p.in.w), outEnd: newEnd(p.out.r), answers: bufio.NewReader(p.out.r),
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
		p.status.r.Close() // before exited says that nothing is left of the child
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
			text := string(bytes.TrimRight(line, "\r\n"))
			e.cfg.Log.Info("handler stderr", "command", e.cfg.Argv[0], "line", text)
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

// readLine returns one line of at most that many bytes, without its newline, valid until
// the next read.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(long)+len(part) > most+1 {
			return nil, fmt.Errorf("wrote an answer longer than %d bytes, beginning with %s", most, excerpt(append(long, part...), 100))
		}
		switch {
		case err == nil && long == nil:
			return part[:len(part)-1], nil
		case err == nil:
			long = append(long, part...)
			return long[:len(long)-1], nil
		case err == bufio.ErrBufferFull:
			long = append(long, part...)
		default:
			return nil, err
		}
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const tailBytes = 2 << 10

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[extra:])]
	}
}

// quote returns "; stderr: …", or nothing.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := bytes.TrimSpace(t.buf); len(text) > 0 {
		return "; stderr: " + string(bytes.ToValidUTF8(text, []byte("\ufffd")))
	}
	return ""
}
