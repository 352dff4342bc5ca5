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
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/wire"
)

// Exec is a handler that gives each batch to one of its child processes. [Exec.Run]
// owns the children and must be running; until it is, Handle waits.
//
// A child that exits, answers nonsense or writes to stdout without being asked fails
// the batch it has, with its status and the end of its stderr, and is started again
// after a pause that grows to 10 s while no child answers. While a child cannot even
// be started, or each ends before it is given the batch, batches are postponed: that is
// no fault of theirs.
type Exec struct {
	cfg     ExecConfig
	path    string
	lend    chan *child // a free child, from its slot to one Handle
	refuse  chan error  // what a Handle gets while a slot cannot start its child
	stopped chan struct{}
	running atomic.Bool
	alive   atomic.Int32 // children that run
	lent    atomic.Int32 // of these, those that have a batch
	grants  grants
	down    outage
	health  health
	settled time.Duration // settledAfter, but for tests
}

// NewExec validates cfg and finds the command; Run starts the children. It is an
// error if main did not call [Guard].
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
		cfg: cfg, path: path, lend: make(chan *child), refuse: make(chan error), stopped: make(chan struct{}), settled: settledAfter,
	}, nil
}

// Run keeps the children running until ctx is done. Then it kills those that have a
// batch, closes the stdin of the others, kills what has not exited a second later,
// and returns nil when all are reaped. It may be called once.
func (e *Exec) Run(ctx context.Context) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("exec handler: Run was called twice")
	}
	defer close(e.stopped)
	var slots sync.WaitGroup
	for range e.cfg.Processes {
		slots.Go(func() { e.slot(ctx) })
	}
	slots.Wait()
	logbuf.Flush(e.cfg.Log, time.Second)
	return nil
}

// slot keeps one child running.
func (e *Exec) slot(ctx context.Context) {
	for inARow := 0; ctx.Err() == nil; inARow++ {
		began := time.Now()
		c, err := e.start()
		if err == nil {
			e.serve(ctx, c)
			if c.answered || c.stopped || c.lapsed {
				inARow = 0
			}
		}
		if ctx.Err() != nil {
			return
		}
		e.judge(c, err, time.Since(began))
		pause := backoff(inARow, rand.Float64())
		if err != nil {
			e.cfg.Log.Error("handler process does not start", "command", e.cfg.Argv[0], "retry_in", pause, "err", err)
		} else {
			e.cfg.Log.Warn("handler process ended", "command", e.cfg.Argv[0], "restart_in", pause, "status", c.status)
		}
		e.pause(ctx, pause, err)
	}
}

// serve lends the child to one Handle after the other until it ends. Nothing of the
// child is left when it returns.
func (e *Exec) serve(ctx context.Context, c *child) {
	defer c.close()
	e.alive.Add(1)
	defer e.alive.Add(-1)
	settled := time.AfterFunc(e.settled, e.health.good)
	defer settled.Stop()
	for {
		select {
		case e.lend <- c:
		case <-c.exited:
			return
		case <-ctx.Done():
			c.dismiss(killAfter)
			return
		}
		e.lent.Add(1)
		good := e.returned(ctx, c)
		e.lent.Add(-1)
		if c.answered {
			e.health.good()
		}
		if !good {
			return
		}
	}
}

// returned waits until a child that was lent comes back. It says whether it can be lent again.
func (e *Exec) returned(ctx context.Context, c *child) (good bool) {
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

// Children says how many child processes run, and how many of them have a batch.
func (e *Exec) Children() (running, busy int) { return int(e.alive.Load()), int(e.lent.Load()) }

// pause waits before the next start. If the last one was an error, batches are
// postponed meanwhile.
func (e *Exec) pause(ctx context.Context, d time.Duration, startErr error) {
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

// Processes is how many children there are at most.
func (e *Exec) Processes() int { return e.cfg.Processes }

// Reserve waits for a free child and sets it aside for one Handle, whose context is to be made by
// with. leave gives back a child that no Handle has taken. While no child can be started the error
// is a [lowkiq.Postpone], the answer to the batch.
func (e *Exec) Reserve(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error) {
	c, err := e.borrow(ctx)
	if err != nil {
		return nil, nil, err
	}
	place := &reserved{child: c}
	with = func(ctx context.Context) context.Context { return context.WithValue(ctx, reservedBy{e}, place) }
	leave = func() {
		if c := place.take(); c != nil {
			c.back <- true
		}
	}
	return with, leave, nil
}

// reservedBy is the key of a context's reserved child.
type reservedBy struct{ *Exec }

// reserved is a child that is set aside; one caller takes it.
type reserved struct {
	mu    sync.Mutex
	child *child // nil: taken; guarded by mu
}

func (r *reserved) take() *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.child
	r.child = nil
	return c
}

// take returns the child that is reserved for a call, or else waits for a free one.
func (e *Exec) take(ctx context.Context) (*child, error) {
	if place, ok := ctx.Value(reservedBy{e}).(*reserved); ok {
		if c := place.take(); c != nil {
			return c, nil
		}
	}
	return e.borrow(ctx)
}

// Handle gives a batch to the child that is reserved for it, or else to the first that is free.
// If ctx is cancelled while the child works, the child is killed with all it started, and the
// error wraps the cause of ctx.
func (e *Exec) Handle(ctx context.Context, b *lowkiq.Batch) error {
	return e.give(ctx, b, func(line []byte) []byte { return wire.AppendBatch(line, b) })
}

// Event gives an event to the first child that is free, and returns what that answers: it is a [lowkiq.Hook]. The line
// that the child reads has the one key event.
func (e *Exec) Event(ctx context.Context, event *lowkiq.Event) error {
	none := &lowkiq.Batch{Shard: event.Shard} // there are no jobs to say anything of
	return e.give(ctx, none, func(line []byte) []byte { return wire.AppendEvent(line, event) })
}

func (e *Exec) give(ctx context.Context, b *lowkiq.Batch, write func([]byte) []byte) error {
	for attempt := 1; ; attempt++ {
		c, err := e.take(ctx)
		if err != nil {
			return err
		}
		err = c.exchange(ctx, b, write)
		if !errors.Is(err, errGone) {
			e.down.over()
			return err
		}
		// Children that end before they get the batch did not fail it, but must not keep
		// its slot of the node for ever either.
		if attempt == 3 {
			return e.down.postpone(e.cfg.Log, e.cfg.Argv[0], err, time.Now())
		}
	}
}

func (e *Exec) borrow(ctx context.Context) (*child, error) {
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
	badStarts    = 3                // in a row, and the command does not work
	settledAfter = 10 * time.Second // of a child's life: it has started, even if it was given nothing
)

// health knows whether children start and answer.
type health struct {
	mu  sync.Mutex
	bad int    // children in a row that came to nothing, of all slots; guarded by mu
	why string // the last one's end; guarded by mu
}

// good notes a child that has answered, or lives for long.
func (h *health) good() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = 0
}

func (h *health) failed(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad++
	h.why = why
}

// judge notes how a child came to nothing. One that was killed because its batch was to stop, as
// after a lost lease, or by its guard at the lease's end, says nothing of the command.
func (e *Exec) judge(c *child, startErr error, lived time.Duration) {
	switch {
	case startErr != nil:
		why := startErr
		if inner := errors.Unwrap(startErr); inner != nil {
			why = inner // without the end of its stderr, which is in the log: what Ready says is shown to every visitor
		}
		e.health.failed(fmt.Sprintf("does not start: %v", why))
	case !c.answered && !c.stopped && !c.lapsed && lived < e.settled:
		e.health.failed("ends before it answers: " + c.status)
	}
}

// Ready says why batches would find no process: the last three processes could not be started, or
// ended within 10 s of their start without an answer. One that answers, or lives for 10 s, ends
// that. Processes are started again and again meanwhile, whether there are batches or not.
func (e *Exec) Ready() error {
	e.health.mu.Lock()
	defer e.health.mu.Unlock()
	if e.health.bad < badStarts {
		return nil
	}
	return fmt.Errorf("%s %s", e.cfg.Argv[0], e.health.why)
}
