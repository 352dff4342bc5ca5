package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
)

// Which handlers of this node cannot work. The lease tells, so that the leader gives their shards
// to nodes that can, and everybody can see why. A mark goes only after the handler was ready again
// for a while, and for longer each time it comes back soon: one that fails as soon as it is given
// jobs must not be given them again and again.

const (
	readyEvery     = time.Second // handlers are asked; not more rarely than the lease is renewed
	readyTTLs      = 2           // ttls for which a handler must be ready before its mark goes
	readyMostTTLs  = 64          // of one that relapsed again and again
	relapseTTLs    = 10          // after the end of a mark: another one is a relapse
	panickingReady = "its Ready method panics: %v"
	hangingReady   = "its Ready method has not returned for %s"
)

var errNoAnswer = errors.New("its Ready method ends its goroutine")

// mark is what is known of a handler that was once not ready.
type mark struct {
	why   string        // "": there is no mark
	well  time.Duration // sinceBoot when it was ready again; 0: it is not
	hold  time.Duration // for how long it must be ready
	ended time.Duration // sinceBoot when the last mark went; 0: there was none
}

// observe takes what a handler says. It reports whether the mark came or went.
func (m *mark) observe(now, ttl time.Duration, err error) (news bool) {
	switch {
	case err == nil && m.why == "":
		return false
	case err == nil && m.well == 0:
		m.well = now
		return false
	case err == nil && now-m.well < m.hold:
		return false
	case err == nil:
		m.why, m.ended = "", now
		return true
	case m.why != "":
		m.well = 0
		return false
	}
	if m.ended != 0 && now-m.ended < relapseTTLs*ttl {
		m.hold = min(2*m.hold, readyMostTTLs*ttl)
	} else {
		m.hold = readyTTLs * ttl
	}
	m.why, m.well = cut(err.Error()), 0 // it stays: a lease must not change all the time
	return true
}

// cut is a text as the lease has it.
func cut(text string) string {
	if text == "" {
		return "it does not say why"
	}
	return strings.ToValidUTF8(text[:min(toldBytes, len(text))], "")
}

// readiness is what is known of the node's handlers. It outlives instances.
type readiness struct {
	handled map[string]*handled
	ttl     time.Duration // of the lease

	mu    sync.Mutex
	marks map[string]*mark // by queue; guarded by mu
}

// told is what the lease tells: all queues, and the reasons of the first ones, as all nodes read
// it.
func (r *readiness) told() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var told map[string]string
	for _, name := range slices.Sorted(maps.Keys(r.marks)) {
		why := r.marks[name].why
		switch {
		case why == "":
			continue
		case told == nil:
			told = map[string]string{}
		case len(told) >= toldRefusals:
			why = "see its log"
		}
		told[name] = why
	}
	return told
}

// text says which handler is not ready, and how many more; "" if all are.
func (r *readiness) text() string {
	told := r.told()
	if len(told) == 0 {
		return ""
	}
	name := slices.Sorted(maps.Keys(told))[0]
	r.mu.Lock()
	well, hold := r.marks[name].well, r.marks[name].hold
	r.mu.Unlock()
	text := fmt.Sprintf("the handler of queue %q is not ready: %s", name, told[name])
	if well != 0 {
		text = fmt.Sprintf("the handler of queue %q is ready again, which counts after %s: %s", name, hold, told[name])
	}
	if more := len(told) - 1; more > 0 {
		text += fmt.Sprintf("; so are those of %d other queues", more)
	}
	return text
}

// watch asks the handlers whether they can work until ctx ends. changed is called when what the
// lease tells has.
func (r *readiness) watch(ctx context.Context, log *slog.Logger, changed func()) {
	ticker := time.NewTicker(r.moment())
	defer ticker.Stop()
	for r.ask(log, changed) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// moment is how often handlers are asked, and how long an answer is waited for.
func (r *readiness) moment() time.Duration { return min(readyEvery, r.ttl/6) }

// ask asks once. It reports whether there is a handler that can be asked.
func (r *readiness) ask(log *slog.Logger, changed func()) (some bool) {
	for name, on := range r.handled {
		if on.ready == nil {
			continue
		}
		some = true
		err, known := on.asked(r.moment(), r.ttl)
		if !known {
			continue
		}
		switch m, news := r.observe(name, sinceBoot(), err); {
		case !news:
			continue
		case m.why != "":
			on.metrics.Ready().Set(0)
			log.Warn("handler not ready: in a cluster the queue's shards go to nodes whose handler is", "queue", name, "err", m.why)
		default:
			on.metrics.Ready().Set(1)
			log.Info("handler ready again", "queue", name, "after", m.hold)
		}
		changed()
	}
	return some
}

// observe takes what a queue's handler says. It reports whether its mark came or went.
func (r *readiness) observe(name string, now time.Duration, err error) (m mark, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.marks == nil {
		r.marks = map[string]*mark{}
	}
	if r.marks[name] == nil {
		r.marks[name] = &mark{}
	}
	news = r.marks[name].observe(now, r.ttl, err)
	return *r.marks[name], news
}

// question is a call of a handler's Ready that has not returned.
type question struct {
	answer chan error
	since  time.Duration // sinceBoot when it was asked
}

// asked is what the handler says, or why it does not. It waits for a moment only, and once, and
// nothing is known while the answer is due: neither an instance nor other handlers wait for a Ready
// that hangs. When it has not returned for the patience, that is an answer, too.
func (on *handled) asked(moment, patience time.Duration) (err error, known bool) {
	if on.asking == nil {
		on.asking = &question{make(chan error, 1), sinceBoot()}
		go on.ask(on.asking.answer)
	} else {
		moment = 0
	}
	select {
	case err := <-on.asking.answer:
		on.asking = nil
		return err, true
	case <-time.After(moment): // an answer that comes with it is taken at the next look
	}
	if sinceBoot()-on.asking.since < patience {
		return nil, false
	}
	return fmt.Errorf(hangingReady, patience), true
}

// ask calls Ready.
func (on *handled) ask(answer chan<- error) {
	err := errNoAnswer
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf(panickingReady, value)
		}
		answer <- err
	}()
	err = on.ready()
}

// unreadyOf is what an instance's lease tells of handlers that cannot work, for people.
func unreadyOf(info identity.Lease) (warnings []string) {
	for i, name := range slices.Sorted(maps.Keys(info.Unready)) {
		if i == toldRefusals {
			return append(warnings, fmt.Sprintf("the handlers of %d more queues on node %s are not ready", len(info.Unready)-i, info.Node))
		}
		warnings = append(warnings, fmt.Sprintf("the handler of queue %s on node %s is not ready: %s", name, info.Node, info.Unready[name]))
	}
	return warnings
}
