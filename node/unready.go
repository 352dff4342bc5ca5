package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// The node asks handlers whether they can work. The lease names the queues of unready handlers, so that the leader gives
// their shards to nodes with a ready handler, and people can see the reason. A handler counts as unready until it was ready
// for a while, and for longer after each relapse. Otherwise a handler that fails as soon as it gets jobs would get them
// again and again.

const (
	readyInterval = time.Second // maximum time between two calls of Ready
	readyTTLs     = 2           // how long, in ttls, a handler must be ready before it counts as ready
	maxReadyTTLs  = 64          // the same after many relapses
	relapseTTLs   = 10          // a handler that is unready again within so many ttls has a relapse
	panicFormat   = "its Ready method panics: %v"
	hangFormat    = "its Ready method has not returned for %s"
)

var errNoAnswer = errors.New("its Ready method ends its goroutine")

// unreadiness is the state of a handler that was not ready at least once.
type unreadiness struct {
	why            string        // why it counts as unready; "" if it counts as ready
	readySince     time.Duration // time since which it is ready again, by sinceBoot; 0 if it is not ready
	mustBeReadyFor time.Duration // how long it must be ready before it counts as ready
	ended          time.Duration // time when the unreadiness last ended, by sinceBoot; 0 if it never ended
}

// addAnswer adds an answer of Ready. It returns whether this changes how the handler counts.
func (u *unreadiness) addAnswer(now, ttl time.Duration, err error) (news bool) {
	switch {
	case err == nil && u.why == "":
		return false
	case err == nil && u.readySince == 0:
		u.readySince = now
		return false
	case err == nil && now-u.readySince < u.mustBeReadyFor:
		return false
	case err == nil:
		u.why, u.ended = "", now
		return true
	case u.why != "":
		u.readySince = 0
		return false
	}
	if u.ended != 0 && now-u.ended < relapseTTLs*ttl {
		u.mustBeReadyFor = min(2*u.mustBeReadyFor, maxReadyTTLs*ttl)
	} else {
		u.mustBeReadyFor = readyTTLs * ttl
	}
	// Later reasons are ignored, because a lease must not change all the time.
	u.why, u.readySince = truncateForLease(cmp.Or(err.Error(), "it does not say why")), 0
	return true
}

// readiness has the unreadiness of the node's handlers. It outlives instances.
type readiness struct {
	handled map[string]*handled
	ttl     time.Duration // of the lease

	mu      sync.Mutex
	byQueue map[string]*unreadiness // guarded by mu
}

// unreadyReasons returns the queues with an unready handler for the lease. Only the first maxRefusals of them have their
// reasons, because all nodes read the lease.
func (r *readiness) unreadyReasons() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var told map[string]string
	for _, name := range slices.Sorted(maps.Keys(r.byQueue)) {
		why := r.byQueue[name].why
		switch {
		case why == "":
			continue
		case told == nil:
			told = map[string]string{}
		case len(told) >= maxRefusals:
			why = "see its log"
		}
		told[name] = why
	}
	return told
}

// describeUnready names a handler that is not ready, and the number of others. It returns "" if all are ready.
func (r *readiness) describeUnready() string {
	told := r.unreadyReasons()
	if len(told) == 0 {
		return ""
	}
	name := slices.Sorted(maps.Keys(told))[0]
	r.mu.Lock()
	u := *r.byQueue[name]
	r.mu.Unlock()
	text := fmt.Sprintf("the handler of queue %q is not ready: %s", name, told[name])
	if u.readySince != 0 {
		text = fmt.Sprintf("the handler of queue %q is ready again, which counts after %s: %s", name, u.mustBeReadyFor, told[name])
	}
	if more := len(told) - 1; more > 0 {
		text += fmt.Sprintf("; so are those of %d other queues", more)
	}
	return text
}

// watchHandlers asks the handlers whether they can work until ctx ends. It calls changed when the reasons in the
// lease have changed.
func (r *readiness) watchHandlers(ctx context.Context, log *slog.Logger, changed func()) {
	ticker := time.NewTicker(r.askInterval())
	defer ticker.Stop()
	for r.askHandlers(log, changed) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// askInterval returns the time between two calls of Ready, which is also the time to wait for an answer.
func (r *readiness) askInterval() time.Duration { return min(readyInterval, r.ttl/6) }

// askHandlers asks each handler once. It returns false if no handler has a method Ready.
func (r *readiness) askHandlers(log *slog.Logger, changed func()) (some bool) {
	for name, on := range r.handled {
		if on.ready == nil {
			continue
		}
		some = true
		err, known := on.checkReady(r.askInterval(), r.ttl)
		if !known {
			continue
		}
		switch u, news := r.addAnswer(name, sinceBoot(), err); {
		case !news:
			continue
		case u.why != "":
			on.metrics.Ready().Set(0)
			log.Warn("handler not ready; in a cluster the queue's shards go to nodes with a ready handler", "queue", name, "err", u.why)
		default:
			on.metrics.Ready().Set(1)
			log.Info("handler ready again", "queue", name, "after", u.mustBeReadyFor)
		}
		changed()
	}
	return some
}

// addAnswer adds an answer of a queue's handler. It returns the unreadiness, and whether the answer changes how
// the handler counts.
func (r *readiness) addAnswer(name string, now time.Duration, err error) (u unreadiness, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byQueue == nil {
		r.byQueue = map[string]*unreadiness{}
	}
	if r.byQueue[name] == nil {
		r.byQueue[name] = &unreadiness{}
	}
	news = r.byQueue[name].addAnswer(now, r.ttl, err)
	return *r.byQueue[name], news
}

// readyCall is a call of Ready that has not returned.
type readyCall struct {
	answer chan error
	since  time.Duration // time when it began, by sinceBoot
}

// checkReady returns the answer of Ready. It waits for the given moment at most after it has called Ready. While an
// earlier call is open it does not wait, so that neither an instance nor other handlers wait for a Ready that hangs. known is false while
// there is no answer. A Ready that has not returned after the given patience counts as an error.
func (on *handled) checkReady(moment, patience time.Duration) (err error, known bool) {
	if on.readyCall == nil {
		on.readyCall = &readyCall{make(chan error, 1), sinceBoot()}
		go on.callReady(on.readyCall.answer)
	} else {
		moment = 0
	}
	select {
	case err := <-on.readyCall.answer:
		on.readyCall = nil
		return err, true
	case <-time.After(moment): // a later answer is taken at the next check
	}
	if sinceBoot()-on.readyCall.since < patience {
		return nil, false
	}
	return fmt.Errorf(hangFormat, patience), true
}

// callReady calls Ready, and sends its answer.
func (on *handled) callReady(answer chan<- error) {
	err := errNoAnswer
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf(panicFormat, value)
		}
		answer <- err
	}()
	err = on.ready()
}
