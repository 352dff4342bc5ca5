//go:build unix

package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Exec is a handler that gives each batch to one of its child processes. [Exec.Run]
// owns the children and must be running; until it is, Handle waits.
//
// A child that exits, answers nonsense or writes to stdout without being asked fails
// the batch it has, with its status and the end of its stderr, and is started again
// after a pause that grows to 10 s while no child answers. While a child cannot even
// be started, batches are postponed: that is no fault of theirs.
type Exec struct {
	cfg     ExecConfig
	path    string
	lend    chan *child // a free child, from its slot to one Handle
	refuse  chan error  // what a Handle gets while a slot cannot start its child
	stopped chan struct{}
	running atomic.Bool
	stderr  io.Writer // of all children, locked
	grants  grants
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
	e := &Exec{cfg: cfg, path: path, lend: make(chan *child), refuse: make(chan error), stopped: make(chan struct{})}
	if cfg.Stderr != nil {
		e.stderr = &lockedWriter{w: cfg.Stderr}
	} else {
		e.stderr = &lineLogger{log: cfg.Log, command: cfg.Argv[0]}
	}
	return e, nil
}

// Run keeps the children running until ctx is done. Then it kills those that have a
// batch, closes the stdin of the others, kills what has not exited after KillAfter,
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
	return nil
}

// slot keeps one child running.
func (e *Exec) slot(ctx context.Context) {
	for inARow := 0; ctx.Err() == nil; inARow++ {
		c, err := e.start()
		if err == nil {
			e.serve(ctx, c)
			if c.answered {
				inARow = 0
			}
		}
		if ctx.Err() != nil {
			return
		}
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
	for {
		select {
		case e.lend <- c:
		case <-c.exited:
			return
		case <-ctx.Done():
			c.dismiss(e.cfg.KillAfter)
			return
		}
		select {
		case ok := <-c.back:
			if !ok {
				return
			}
		case <-ctx.Done():
			c.kill()
			<-c.back
			return
		}
	}
}

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

// Handle lends a child for one batch, waiting for a free one. If ctx is cancelled
// while the child works, the child is killed with all it started, and the error
// wraps the cause of ctx.
func (e *Exec) Handle(ctx context.Context, b *lowkiq.Batch) error {
	for attempt := 1; ; attempt++ {
		c, err := e.borrow(ctx)
		if err != nil {
			return err
		}
		// A child that ended before it got the batch did not fail it, but one that
		// always does must not keep the batch waiting for ever.
		err = c.exchange(ctx, b)
		if attempt == 3 || !errors.Is(err, errGone) {
			return err
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
