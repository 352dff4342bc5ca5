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
	"github.com/lowkiq/lowkiq/internal/process/procs"
	"github.com/lowkiq/lowkiq/wire"
)

// errGone means that the child ended before it was given the batch.
var errGone = errors.New("process ended before it got the batch")

// errUntouched means that the child closed its stdin and had read nothing of the batch.
var errUntouched = errors.New("nothing of the batch was read")

// Limits on the end of a child. A healthy machine needs far less. They bound Handle on a sick machine.
const (
	killAfter     = time.Second            // from the end of an idle child's stdin to its kill
	guardPatience = 2 * time.Second        // from asking the guard to kill, to killing the guard
	exitPatience  = 3 * time.Second        // from the end of stdin or stdout to the exit
	drainPatience = 100 * time.Millisecond // for pipes that an escaped process keeps open
)

// silentAfter is how long a child may have its first batch before people are told that its answer may
// be stuck in a buffer.
const silentAfter = 10 * time.Second

// child is a process with its guard. Its slot owns it, and a Handle has it while it is lent. At the
// same time both may use only exited and kill, and the atomic ended.
type child struct {
	name     string
	in       *os.File // its stdin
	out      *os.File // its stdout
	inEnd    *end
	outEnd   *end
	answers  *bufio.Reader
	line     []byte
	answered bool        // whether it has given a good answer
	stopped  bool        // whether it was killed because the context of its batch ended
	ended    atomic.Bool // whether the end of Run killed it
	silence  time.Duration
	silent   func()    // called once if it has written nothing for silence after its first batch
	back     chan bool // gives it back; true if it can be lent again

	pid    int
	why    error         // why the node has killed it; nil if it ended by itself; a Handle sets it
	kill   func()        // asks the guard to kill all; exited is closed soon after
	exited chan struct{} // closed when all processes are reaped and stderr is read
	status string        // how it ended; set before exited is closed, as is lapsed
	lapsed bool          // whether its guard killed it because the node's lease was not renewed in time
	tail   tail          // the end of its stderr
}

// handleBatch gives the child the line that write appends, and returns its verdict. When it returns,
// either the child waits for the next batch, or no process of it is left.
func (c *child) handleBatch(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) error {
	unhook := context.AfterFunc(ctx, c.kill)
	broken, verdict := c.roundTrip(ctx, b, write)
	cancelled := !unhook()
	if broken != nil && !cancelled {
		broken = c.explainBroken(broken)
		if errors.Is(broken, errGone) {
			c.kill()
		} else {
			c.killFor(broken)
		}
	}
	if broken != nil || cancelled {
		<-c.exited
	}
	c.answered = c.answered || broken == nil
	if c.stopped = cancelled; cancelled {
		c.why = context.Cause(ctx)
	}
	// Output after the answer would count as the answer to the next batch.
	good := broken == nil && !cancelled && c.answers.Buffered() == 0
	if !good {
		c.killFor(errors.New("wrote more than one answer to its batch"))
		<-c.exited
	}
	c.back <- good
	switch {
	case broken != nil && cancelled:
		return fmt.Errorf("%s: killed: %w", c.name, context.Cause(ctx))
	case broken != nil && c.lapsed:
		return c.ownError(lowkiq.ErrLeaseLost)
	case broken != nil && c.ended.Load():
		return c.ownError(lowkiq.ErrShutdown)
	case errors.Is(broken, errGone):
		return fmt.Errorf("%s: %w: %s%s", c.name, errGone, c.status, c.tail.quote())
	case broken != nil:
		return fmt.Errorf("%s: %w%s", c.name, broken, c.tail.quote())
	}
	return verdict
}

// killFor kills the child and remembers why, unless the child has ended.
func (c *child) killFor(why error) {
	select {
	case <-c.exited:
	default:
		c.why = why
	}
	c.kill()
}

// killedStatus is the status of a child that its guard, or somebody else, has killed.
const killedStatus = "killed by SIGKILL"

// ending returns the attributes of the log line about the child's end.
func (c *child) ending() []any {
	all := []any{"pid", c.pid, "status", c.status}
	why := c.why
	if c.lapsed {
		why = lowkiq.ErrLeaseLost
	}
	if why != nil && c.status == killedStatus {
		all = append(all, "by", "node", "why", why)
	}
	return all
}

// ownError returns the answer to a batch whose child the node has killed before the batch's context
// has ended. The batch is tried later, which does not count as a retry.
func (c *child) ownError(why error) error {
	err := fmt.Errorf("%s: killed: %w", c.name, why)
	return fmt.Errorf("%w: %w", err, lowkiq.Postpone{Reason: err.Error()})
}

// roundTrip returns the error that broke the exchange, or the child's verdict.
func (c *child) roundTrip(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) (broken, verdict error) {
	if err := c.checkUnread("while it had no batch"); err != nil {
		return err, nil
	}
	c.line = append(write(c.line[:0]), '\n')
	broken, writeErr := c.writeBatch(c.line)
	if broken != nil {
		return broken, nil
	}
	if cap(c.line) > 1<<20 {
		c.line = nil // the memory of a huge batch must not stay for ever
	}
	// The child may have answered, or said why not, without reading everything.
	if writeErr != nil {
		_ = c.out.SetReadDeadline(time.Now().Add(exitPatience))
	}
	answer, refused, err := c.readAnswer(ctx, b)
	if errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(writeErr, syscall.EPIPE) {
		return errors.New("closed its stdin without reading its batch"), nil
	}
	if errors.Is(err, io.EOF) && errors.Is(writeErr, errUntouched) {
		return errGone, nil // a process that ends closes its stdin before its stdout
	}
	if err != nil {
		return errors.Join(err, writeErr), nil
	}
	if left, err := c.inEnd.countUnread(); err != nil || writeErr != nil || left > 0 {
		return errors.Join(fmt.Errorf("answered %s without reading its batch", excerptOf(answer, 200)), err), nil
	}
	if refused != nil {
		return nil, refused
	}
	verdict = wire.ParseAnswer(answer, b)
	var nonsense *wire.Error
	if errors.As(verdict, &nonsense) {
		return fmt.Errorf("wrote %s to stdout instead of an answer (%w); stdout carries answers only, write logs to stderr", excerptOf(answer, 200), verdict), nil
	}
	return nil, verdict
}

// readAnswer stores the child's notes and returns its answer. refused is the reason why a note was
// refused. The batch has failed then, whatever the answer says. A child that writes notes without end
// is killed when the batch's context ends.
func (c *child) readAnswer(ctx context.Context, b *lowkiq.Batch) (answer []byte, refused, err error) {
	quiet := func() bool { return true }
	if !c.answered {
		quiet = time.AfterFunc(c.silence, c.silent).Stop
	}
	for {
		line, err := readLine(c.answers, answerLimit(b))
		quiet()
		if err != nil || !bytes.Contains(line[:min(len(line), 64)], []byte(`"note`)) {
			return line, refused, err
		}
		notes, ok, err := wire.ParseNotes(line)
		switch left, unread := c.inEnd.countUnread(); {
		case !ok:
			return line, refused, nil
		case err != nil:
			return nil, nil, fmt.Errorf("wrote the note %s (%w)", excerptOf(line, 200), err)
		case unread != nil || left > 0:
			return nil, nil, errors.Join(fmt.Errorf("noted %s without reading its batch", excerptOf(line, 200)), unread)
		}
		if refused = cmp.Or(refused, c.checkNotes(b, notes)); refused != nil {
			continue
		}
		for _, note := range notes {
			if ctx.Err() != nil {
				break // the batch has ended, and later notes are no part of it
			}
			err := b.Note(ctx, note.ID, note.Note)
			switch {
			case err == nil || refused != nil || errors.Is(err, lowkiq.ErrEnded):
			case note.State != nil || errors.Is(err, lowkiq.ErrNote):
				refused = fmt.Errorf("%s: its note: %w", c.name, err)
			} // otherwise Redis was out of reach, and a later note may say the same
		}
	}
}

// checkNotes returns an error if a line of notes must be refused as a whole.
func (c *child) checkNotes(b *lowkiq.Batch, notes []wire.Note) error {
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

// batchEnd is the number of bytes of a batch that are held back until the child has read the rest.
// They are the last brace and the newline. No program can take a text without them for a batch.
const batchEnd = 2

// writeBatch writes a batch so that no answer can come before the child has read it. Otherwise a late
// answer, for example a second answer to the batch before, would acknowledge jobs that the child has
// not seen (I2).
//
// So it writes all but the end of the batch, and waits until the child has read that. If the child has
// written nothing in the meantime, it writes the end. All that the child writes from then on, it
// writes with the batch in hand.
func (c *child) writeBatch(line []byte) (broken, writeErr error) {
	begin, end := line[:len(line)-batchEnd], line[len(line)-batchEnd:]
	if n, err := c.in.Write(begin); err != nil {
		return nil, c.closedError(n, err)
	}
	if err := awaitRead(c.inEnd, c.outEnd); err != nil {
		return err, nil
	}
	if err := c.checkUnread("before it had read its batch"); err != nil {
		return err, nil
	}
	if _, err := c.in.Write(end); err != nil {
		return nil, c.closedError(len(begin), err)
	}
	return nil, nil
}

// closedError adds errUntouched to the error of a write if no written byte was read.
func (c *child) closedError(written int, err error) error {
	if left, failed := c.inEnd.countUnread(); failed == nil && left == written {
		return errors.Join(errUntouched, err)
	}
	return err
}

// checkUnread returns an error if the child has written bytes since its last answer, or has ended. when
// is a part of the error.
func (c *child) checkUnread(when string) error {
	readable, ended, err := c.outEnd.peek()
	if err != nil {
		return err
	}
	if readable {
		_ = c.out.SetReadDeadline(time.Now().Add(drainPatience))
		text, _ := c.answers.Peek(1)
		text, _ = c.answers.Peek(max(len(text), c.answers.Buffered()))
		return fmt.Errorf("wrote %s to stdout %s; stdout carries answers only, one to each batch, write logs to stderr", excerptOf(bytes.TrimSpace(text), 200), when)
	}
	if ended {
		return errGone
	}
	return nil
}

// explainBroken replaces the end of a pipe by the child's exit status.
func (c *child) explainBroken(broken error) error {
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

// dismissAfter closes the stdin of an idle child and waits for its exit, for at most patience.
func (c *child) dismissAfter(patience time.Duration) {
	c.in.Close()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
	}
}

// closePipes kills the child, waits for its end and closes its pipes.
func (c *child) closePipes() {
	c.kill()
	<-c.exited
	c.in.Close()
	c.out.Close()
}

// watchEnd waits for the guard's end, which comes after the child's.
func (c *child) watchEnd(guard *exec.Cmd, pid int, status *bufio.Reader, stderr *os.File, stderrRead <-chan struct{}) {
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
	// Processes that have escaped may keep the pipes open. They can escape only on other systems than
	// Linux, or after the guard was killed.
	soon := time.Now().Add(drainPatience)
	_ = stderr.SetReadDeadline(soon)
	_ = c.out.SetReadDeadline(soon)
	_ = c.in.SetWriteDeadline(soon)
	<-stderrRead
	c.kill() // closes the pipe to the guard
}

// endGroup kills the child's group and waits until it is gone. Init reaps the group and not the node.
// Where init is slow, dead processes still count, and the wait is cut short.
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

// pipes connect the node with a child and its guard.
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

// close closes all open ends. Closing a nil file is an error that does not matter.
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

// startChild starts a guard, which starts the child.
func (e *Exec) startChild() (*child, error) {
	p, err := newPipes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.cfg.Argv[0], err)
	}
	guard, err := e.startGuard(p)
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("%s: start its guard process: %w", e.cfg.Argv[0], err)
	}
	p.closeTheirs()
	return e.awaitGreeting(guard, p)
}

// startGuard returns the command that runs this binary as a guard.
func (e *Exec) startGuard(p *pipes) (*exec.Cmd, error) {
	binary, err := ownExecutable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary)
	cmd.Args = append([]string{procs.GuardName, procs.SelfName(), e.path}, e.cfg.Argv...)
	cmd.Dir = e.cfg.Dir
	cmd.Env = append(append(withoutOwnVariables(os.Environ()), e.cfg.Env...), guardEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in.r, p.out.w, p.err.w
	cmd.ExtraFiles = []*os.File{p.life.r, p.status.w}    // lifeFD, statusFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's ^C is for the node
	return cmd, nil
}

// withoutOwnVariables returns an environment without the node's own variables. LOWKIQ_REDIS, tokens and
// URLs hold secrets, and a handler needs none of them.
func withoutOwnVariables(env []string) (rest []string) {
	for _, kv := range env {
		if !strings.HasPrefix(kv, "LOWKIQ_") {
			rest = append(rest, kv)
		}
	}
	return rest
}

// logSilence logs once the usual reason for a missing answer.
func (e *Exec) logSilence() {
	e.silent.Do(func() {
		e.cfg.Log.Warn("handler process has written nothing", "command", e.cfg.Argv[0], "after", e.silence,
			"detail", "it has read its first batch; if it has answered, it has not flushed stdout (Python: print(..., flush=True))")
	})
}

// awaitGreeting waits until the guard reports that the child runs.
func (e *Exec) awaitGreeting(guard *exec.Cmd, p *pipes) (*child, error) {
	c := &child{
		name: e.cfg.Argv[0], in: p.in.w, out: p.out.r, inEnd: newPipeEnd(p.in.w), outEnd: newPipeEnd(p.out.r), answers: bufio.NewReader(p.out.r),
		back: make(chan bool, 1), exited: make(chan struct{}), silence: e.silence, silent: e.logSilence,
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
	pid, err := readPID(status)
	if c.pid = pid; err != nil {
		c.kill()
	} else {
		e.grants.add(p.life.w)
	}
	_ = p.status.r.SetReadDeadline(time.Time{})
	go func() {
		c.watchEnd(guard, pid, status, p.err.r, stderrRead)
		p.status.r.Close() // before exited, because then nothing of the child may be left
		close(c.exited)
	}()
	if err != nil {
		c.closePipes()
		return nil, fmt.Errorf("%s: %w%s", c.name, err, c.tail.quote())
	}
	return c, nil
}

// readPID reads the guard's first line.
func readPID(status *bufio.Reader) (pid int, err error) {
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

// readStderr logs the child's stderr line by line. A line longer than its buffer is split.
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

// readLine returns a line of at most the given number of bytes, without its newline. The line is valid
// until the next read.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(long)+len(part) > most+1 {
			return nil, fmt.Errorf("wrote an answer longer than %d bytes, beginning with %s", most, excerptOf(append(long, part...), 100))
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

// tail keeps the last tailBytes of the bytes that are added.
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

// quote returns "; stderr: …", or "" if there is no text.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := bytes.TrimSpace(t.buf); len(text) > 0 {
		return "; stderr: " + string(bytes.ToValidUTF8(text, []byte("\ufffd")))
	}
	return ""
}
