//go:build unix

package handler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/wire"
)

// Exec is a handler that gives each batch to one of its child processes. [Exec.Run] owns the children
// and must be running. Until it is, Handle waits.
//
// A batch fails if its child exits, writes nonsense, or writes to stdout without being asked. The error
// has the child's status and the end of its stderr. The child is started again after a pause, which
// grows to 10 s while no child answers. If a child cannot even be started, or each child ends before
// it is given the batch, batches are postponed, because that is no fault of theirs.
type Exec struct {
	cfg     ExecConfig
	path    string
	lend    chan *child // passes a free child from its slot to a Handle
	refuse  chan error  // passes an error to each Handle while a slot cannot start its child
	stopped chan struct{}
	running atomic.Bool
	alive   atomic.Int32 // running children
	lent    atomic.Int32 // children with a batch
	grants  grants
	down    outage
	health  health
	settled time.Duration // settledAfter, except in tests
	silence time.Duration // silentAfter, except in tests
	silent  sync.Once     // guards the log line about a child that does not answer
}

// NewExec validates cfg and finds the command. Run starts the children. NewExec returns an error if
// main did not call [Guard].
func NewExec(cfg ExecConfig) (*Exec, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("exec handler: %w", err)
	}
	if !guardCalled.Load() {
		return nil, errors.New("exec handler: call handler.Guard() as the first thing in main (in tests: in TestMain)")
	}
	cfg, path, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("exec handler: %w", err)
	}
	return &Exec{
		cfg: cfg, path: path, lend: make(chan *child), refuse: make(chan error), stopped: make(chan struct{}), settled: settledAfter, silence: silentAfter,
	}, nil
}

// Run keeps the children running until ctx is done. Then it kills the children with a batch and closes
// the stdin of the others. It kills children that have not exited a second later. It returns nil when
// all are reaped. It may be called once.
func (e *Exec) Run(ctx context.Context) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("exec handler: Run was called twice")
	}
	defer close(e.stopped)
	var slots sync.WaitGroup
	for range e.cfg.Processes {
		slots.Go(func() { e.runSlot(ctx) })
	}
	slots.Wait()
	logbuf.Flush(e.cfg.Log, time.Second)
	return nil
}

// runSlot keeps a child running.
func (e *Exec) runSlot(ctx context.Context) {
	for inARow := 0; ctx.Err() == nil; inARow++ {
		began := time.Now()
		c, err := e.startChild()
		if err == nil {
			e.serveBatches(ctx, c)
			if c.answered || c.stopped || c.lapsed {
				inARow = 0
			}
		}
		if ctx.Err() != nil {
			return
		}
		e.recordLife(c, err, time.Since(began))
		pause := backoffAfter(inARow, rand.Float64())
		if err != nil {
			e.cfg.Log.Error("handler process does not start", "command", e.cfg.Argv[0], "retry_in", pause, "err", err)
		} else {
			e.cfg.Log.Warn("handler process ended", append(c.ending(), "command", e.cfg.Argv[0], "restart_in", pause)...)
		}
		e.awaitRestart(ctx, pause, err)
	}
}

// serveBatches lends the child to one Handle after the other until it ends. When it returns, no process
// of the child is left.
func (e *Exec) serveBatches(ctx context.Context, c *child) {
	defer c.closePipes()
	e.alive.Add(1)
	defer e.alive.Add(-1)
	settled := time.AfterFunc(e.settled, e.health.reset)
	defer settled.Stop()
	for {
		select {
		case e.lend <- c:
		case <-c.exited:
			return
		case <-ctx.Done():
			c.dismissAfter(killAfter)
			return
		}
		e.lent.Add(1)
		good := e.awaitReturn(ctx, c)
		e.lent.Add(-1)
		if c.answered {
			e.health.reset()
		}
		if !good {
			return
		}
	}
}

// awaitReturn waits until a lent child comes back. It reports whether the child can be lent again.
func (e *Exec) awaitReturn(ctx context.Context, c *child) (good bool) {
	select {
	case good = <-c.back:
		return good
	case <-ctx.Done():
		c.ended.Store(true)
		c.kill()
		<-c.back
		return false
	}
}

// Children returns how many child processes run, and how many of them have a batch.
func (e *Exec) Children() (running, busy int) { return int(e.alive.Load()), int(e.lent.Load()) }

// awaitRestart waits before the next start. If the last start failed, it postpones batches in the
// meantime.
func (e *Exec) awaitRestart(ctx context.Context, d time.Duration, startErr error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var refuse chan error
	if startErr != nil {
		refuse = e.refuse
	}
	for {
		select {
		case refuse <- lowkiq.Postpone{After: max(d, time.Second), Reason: startErrText(startErr)}:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func startErrText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Processes returns the largest number of children.
func (e *Exec) Processes() int { return e.cfg.Processes }

// Reserve waits for a free child and sets it aside for a Handle. The caller must make the context of
// that Handle with with. leave gives a child back that no Handle has taken. While no child can be
// started, the error is a [lowkiq.Postpone], which is the answer to the batch.
func (e *Exec) Reserve(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error) {
	c, err := e.borrowChild(ctx)
	if err != nil {
		return nil, nil, err
	}
	place := &reserved{child: c}
	with = func(ctx context.Context) context.Context { return context.WithValue(ctx, reservedBy{e}, place) }
	leave = func() {
		if c := place.takeChild(); c != nil {
			c.back <- true
		}
	}
	return with, leave, nil
}

// reservedBy is the key of a context's reserved child.
type reservedBy struct{ *Exec }

// reserved is a child that is set aside until a caller takes it.
type reserved struct {
	mu    sync.Mutex
	child *child // nil once taken; guarded by mu
}

// takeChild returns the child, or nil if another caller has taken it.
func (r *reserved) takeChild() *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.child
	r.child = nil
	return c
}

// awaitChild returns the child that is reserved for a call, or waits for a free child.
func (e *Exec) awaitChild(ctx context.Context) (*child, error) {
	if place, ok := ctx.Value(reservedBy{e}).(*reserved); ok {
		if c := place.takeChild(); c != nil {
			return c, nil
		}
	}
	return e.borrowChild(ctx)
}

// Handle gives a batch to the child that is reserved for it, or to the first free child. If ctx is
// cancelled while the child works, the child is killed with all processes that it has started. The
// error then wraps the cause of ctx.
func (e *Exec) Handle(ctx context.Context, b *lowkiq.Batch) error {
	return e.handOver(ctx, b, func(line []byte) []byte { return wire.AppendBatch(line, b) })
}

// Event implements [lowkiq.Hook]. It gives an event to the first free child and returns the child's
// answer. The line that the child reads is an object with the single key event.
func (e *Exec) Event(ctx context.Context, event *lowkiq.Event) error {
	none := &lowkiq.Batch{Shard: event.Shard} // an answer to an event names no jobs
	return e.handOver(ctx, none, func(line []byte) []byte { return wire.AppendEvent(line, event) })
}

// handOver gives a child the line that write appends, and returns the answer.
func (e *Exec) handOver(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) error {
	for attempt := 1; ; attempt++ {
		c, err := e.awaitChild(ctx)
		if err != nil {
			return err
		}
		err = c.handleBatch(ctx, b, write)
		if !errors.Is(err, errGone) {
			e.down.end()
			return err
		}
		// Children that end before they get the batch did not fail it. But the batch must not keep its
		// slot of the node for ever.
		if attempt == 3 {
			return e.down.postpone(e.cfg.Log, e.cfg.Argv[0], err, time.Now())
		}
	}
}

// borrowChild waits for a free child.
func (e *Exec) borrowChild(ctx context.Context) (*child, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: not started: %w", e.cfg.Argv[0], context.Cause(ctx))
	}
	select {
	case c := <-e.lend:
		return c, nil
	case err := <-e.refuse:
		return nil, err
	case <-e.stopped:
		return nil, fmt.Errorf("%s: %w", e.cfg.Argv[0], lowkiq.ErrShutdown)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: no free process: %w", e.cfg.Argv[0], context.Cause(ctx))
	}
}

const (
	badStarts    = 3                // failures in a row before the command counts as broken
	settledAfter = 10 * time.Second // a child that lives for so long has started well, even without a batch
)

// health records whether children start and answer.
type health struct {
	mu  sync.Mutex
	bad int    // children in a row that have failed, of all slots; guarded by mu
	why string // the last failure; guarded by mu
}

// reset records a child that has answered, or has lived for long.
func (h *health) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = 0
}

// addFailure records a child that could not be started, or ended without an answer.
func (h *health) addFailure(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad++
	h.why = why
}

// recordLife records the failure of a child. A child that was killed with its batch, as after a lost
// lease, or by its guard at the lease's end, says nothing about the command.
func (e *Exec) recordLife(c *child, startErr error, lived time.Duration) {
	switch {
	case startErr != nil:
		why := startErr
		if inner := errors.Unwrap(startErr); inner != nil {
			why = inner // without the end of stderr, because every visitor sees the text of Ready; the log has it
		}
		e.health.addFailure(fmt.Sprintf("does not start: %v", why))
	case !c.answered && !c.stopped && !c.lapsed && lived < e.settled:
		e.health.addFailure("ends before it answers: " + c.status)
	}
}

// Ready returns why batches would find no process, else nil. It returns an error after three failures
// in a row. A process fails if it cannot be started, or ends within 10 s of its start without an
// answer. A process that answers, or lives for 10 s, ends that. Processes are started again and again
// in the meantime, even without batches.
func (e *Exec) Ready() error {
	e.health.mu.Lock()
	defer e.health.mu.Unlock()
	if e.health.bad < badStarts {
		return nil
	}
	return fmt.Errorf("%s %s", e.cfg.Argv[0], e.health.why)
}
