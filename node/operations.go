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
	"sync/atomic"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/runner"
)

// operations tells people which operations Redis does not do. One that it refuses for a reason that
// does not pass by itself is stuck: its user may not do it, a key has another type, a script fails.
// A person can mend that, and nothing is given up before: the operation is repeated, its jobs stay
// in flight, what follows them waits (I2, I3), and the log and every node's status say so. All
// others are merely logged.
type operations struct {
	stuck   stuckOps
	lines   failureLog // of this instance: handlers' failures, too
	outages *outages
	io      context.Context // after its end nothing is told
	log     *slog.Logger
	changed func() // what the lease tells has
}

// failed tells of an operation that was not done. stuck says that Redis will answer the same until
// a person mends something.
func (o *operations) failed(op string, s lowkiq.Shard, err error) (stuck bool) {
	stuck = runner.Refused(err)
	if !stuck || !o.stuck.note(s, op, err) {
		o.warn(op, s, err)
		return stuck
	}
	o.log.Error("redis refuses an operation: its jobs and what follows them wait until that is mended", "op", op, "shard", s, "err", err)
	o.changed()
	return true
}

// done notes that an operation was done.
func (o *operations) done(op string, s lowkiq.Shard) {
	if o.stuck.end(s, op) {
		o.log.Info("redis does an operation again that it refused", "op", op, "shard", s)
		o.changed()
	}
}

// unreadable notes why a queue is not handled here, or that it is again; nil is no reason. It
// reports whether there is one. What handlers have is finished, as in a pause.
func (o *operations) unreadable(name string, err error) bool {
	const op = "read the jobs of a queue"
	whole := lowkiq.Shard{Queue: name, Index: -1} // none of its own: all of them
	switch {
	case err == nil && o.stuck.end(whole, op):
		o.log.Info("the queue can be read again", "queue", name)
	case err != nil && o.stuck.note(whole, op, err):
		o.log.Error("this node cannot read the jobs of a queue: it handles none of them until that is mended", "queue", name, "err", err)
	default:
		return err != nil
	}
	o.changed()
	return err != nil
}

// released forgets what was stuck of a shard.
func (o *operations) released(s lowkiq.Shard) {
	if o.stuck.forget(s) {
		o.changed()
	}
}

// warn logs an error of Redis, the same one at most once a second, and that Redis is out of
// reach as all of the process do.
func (o *operations) warn(op string, shard any, err error) {
	if o.io.Err() != nil || errors.Is(err, context.Canceled) || o.outages.note(op, err) {
		return
	}
	if left, ok := o.lines.may(op + ": " + err.Error()); ok {
		o.log.Warn("redis operation not done, repeating", "op", op, "shard", shard, "err", err, "left_out", left)
	}
}

// stuckOps are the operations that Redis refuses at the moment.
type stuckOps struct {
	some atomic.Bool // there are any; for those who must not wait for mu

	mu sync.Mutex
	of map[stuckOp]string // what Redis says; guarded by mu
}

type stuckOp struct {
	shard lowkiq.Shard
	op    string
}

// note says whether the refusal is news.
func (o *stuckOps) note(s lowkiq.Shard, op string, err error) (news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.some.Store(true)
	if o.of == nil {
		o.of = map[stuckOp]string{}
	}
	_, known := o.of[stuckOp{s, op}]
	o.of[stuckOp{s, op}] = err.Error()
	return !known
}

// end notes that Redis has done an operation. It says whether that is news.
func (o *stuckOps) end(s lowkiq.Shard, op string) (news bool) {
	return o.drop(func(r stuckOp, _ string) bool { return r == stuckOp{s, op} })
}

// forget drops what was noted of a shard. It says whether there was anything.
func (o *stuckOps) forget(s lowkiq.Shard) (some bool) {
	return o.drop(func(r stuckOp, _ string) bool { return r.shard == s })
}

func (o *stuckOps) drop(which func(stuckOp, string) bool) (some bool) {
	if !o.some.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.of)
	maps.DeleteFunc(o.of, which)
	o.some.Store(len(o.of) > 0)
	return len(o.of) < before
}

// Most refusals that a lease tells, and most bytes of each: all nodes read it.
const (
	toldRefusals = 3
	toldBytes    = 300
)

// list is what the lease tells.
func (o *stuckOps) list() (told []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, text := range slices.Sorted(maps.Values(o.of)) {
		if len(told) == toldRefusals {
			return append(told, fmt.Sprintf("%d more", len(o.of)-toldRefusals))
		}
		told = append(told, strings.ToValidUTF8(text[:min(toldBytes, len(text))], ""))
	}
	return told
}

// refusalsOf is what an instance's lease tells of refusals, for people.
func refusalsOf(info identity.Lease) (warnings []string) {
	for _, text := range info.Refused {
		warnings = append(warnings, fmt.Sprintf("jobs of node %s wait for a person to mend something: %s", info.Node, text))
	}
	return warnings
}
