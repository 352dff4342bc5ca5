//go:build unix

package handler

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

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
// after a lost lease, says nothing of the command.
func (e *Exec) judge(c *child, startErr error, lived time.Duration) {
	switch {
	case startErr != nil:
		why := startErr
		if inner := errors.Unwrap(startErr); inner != nil {
			why = inner // without the end of its stderr, which is in the log, and not for everybody
		}
		e.health.failed(fmt.Sprintf("does not start: %v", why))
	case !c.answered && !c.stopped && lived < e.settled:
		e.health.failed("ends before it answers: " + c.status)
	}
}

// Ready says why batches would find nobody: the last three processes could not be started, or
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
