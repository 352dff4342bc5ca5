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
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node/internal/runner"
)

// operations reports operations on Redis that fail. An operation is stuck if Redis refuses it for a reason that does not
// pass by itself: the user may not run a command, a key has another type, or a script fails. A person can mend that.
// Until then the operation is repeated, its jobs stay in flight, and jobs behind them wait (I2, I3). The log and
// the status of every node show stuck operations. Other failures are only logged.
type operations struct {
	stuck   stuckOps
	lines   failureLog // of this instance, including failures of handlers
	outages *outages
	io      context.Context // nothing is reported after its end
	log     *slog.Logger
	changed func() // called when the refusals in the lease have changed
}

// reportFailure reports a failed operation. stuck means that Redis will answer the same until a person mends something.
func (o *operations) reportFailure(op string, s lowkiq.Shard, err error) (stuck bool) {
	stuck = runner.IsRefusal(err)
	lasts := minRefusalTime
	if op == "read" { // a record of a later release, which is not read again
		lasts = 0
	}
	if !stuck || !o.stuck.addRefusal(s, op, err, lasts) {
		o.logWarning(op, s, err)
		return stuck
	}
	o.log.Error("redis refuses an operation; its jobs and the jobs behind them wait until that is mended", "op", op, "shard", s, "err", err)
	o.changed()
	return true
}

// reportSuccess records that an operation was done.
func (o *operations) reportSuccess(op string, s lowkiq.Shard) {
	if o.stuck.endRefusal(s, op) {
		o.log.Info("redis no longer refuses an operation", "op", op, "shard", s)
		o.changed()
	}
}

// setUnreadable records why this node cannot handle a queue, or with a nil err that it can. It returns whether err is not
// nil. Running calls finish, as in a pause.
func (o *operations) setUnreadable(name string, err error) bool {
	const op = "read the jobs of a queue"
	whole := lowkiq.Shard{Queue: name, Index: -1} // stands for all shards of the queue
	switch {
	case err == nil && o.stuck.endRefusal(whole, op):
		o.log.Info("the queue can be read again", "queue", name)
	case err != nil && o.stuck.addRefusal(whole, op, err, 0):
		o.log.Error("this node cannot read the jobs of a queue, and handles none of them until that is mended", "queue", name, "err", err)
	default:
		return err != nil
	}
	o.changed()
	return err != nil
}

// forgetShard forgets the refusals of a shard that was given back.
func (o *operations) forgetShard(s lowkiq.Shard) {
	if o.stuck.forgetShard(s) {
		o.changed()
	}
}

// logWarning logs an error of Redis. It logs the same error at growing intervals, and an outage once for the whole process.
func (o *operations) logWarning(op string, shard any, err error) {
	if o.io.Err() != nil || errors.Is(err, context.Canceled) || o.outages.reportFailure(op, err) {
		return
	}
	if left, ok := o.lines.mayLog(op + ": " + err.Error()); ok {
		o.log.Warn("redis operation failed, repeating", "op", op, "shard", shard, "err", err, "left_out", left)
	}
}

// stuckOps are the operations that Redis refuses at the moment.
type stuckOps struct {
	some atomic.Bool // there are refusals; read without mu

	mu sync.Mutex
	of map[stuckOp]stuckReply // guarded by mu
}

// stuckReply is Redis's refusal of an operation.
type stuckReply struct {
	text        string
	since, seen time.Time // times of the first and the last refusal
	told        bool      // the refusal was reported, because it has lasted
}

// minRefusalTime is how long Redis must refuse an operation before it is reported as stuck. After a failover the first
// answers may be refusals that pass by themselves.
const minRefusalTime = time.Second

type stuckOp struct {
	shard lowkiq.Shard
	op    string
}

// addRefusal records a refusal. It returns whether to report the refusal now, because it has lasted for the given time and
// was not reported before. The time counts anew if the refusal before was more than ten times that long ago.
func (o *stuckOps) addRefusal(s lowkiq.Shard, op string, err error, lasts time.Duration) (news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.some.Store(true)
	if o.of == nil {
		o.of = map[stuckOp]stuckReply{}
	}
	of, known := o.of[stuckOp{s, op}]
	now := time.Now()
	if !known || !of.told && now.Sub(of.seen) > 10*lasts {
		of.since = now
	}
	of.text, of.seen = err.Error(), now
	news = !of.told && now.Sub(of.since) >= lasts
	of.told = of.told || news
	o.of[stuckOp{s, op}] = of
	return news
}

// endRefusal records that Redis has done an operation. It returns whether a refusal was reported before.
func (o *stuckOps) endRefusal(s lowkiq.Shard, op string) (news bool) {
	return o.removeMatching(func(r stuckOp, _ stuckReply) bool { return r == stuckOp{s, op} })
}

// forgetShard removes the reported refusals of a shard. Other refusals stay, because a shard that is claimed anew after a
// refusal may be refused again. It returns whether it has removed any.
func (o *stuckOps) forgetShard(s lowkiq.Shard) (some bool) {
	return o.removeMatching(func(r stuckOp, of stuckReply) bool { return r.shard == s && of.told })
}

// removeMatching removes refusals. It returns whether any of them was reported.
func (o *stuckOps) removeMatching(which func(stuckOp, stuckReply) bool) (told bool) {
	if !o.some.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.of, func(op stuckOp, of stuckReply) bool {
		told = told || which(op, of) && of.told
		return which(op, of)
	})
	o.some.Store(len(o.of) > 0)
	return told
}

// A lease has at most maxRefusals refusals, of at most maxRefusalBytes bytes each, because all nodes read it.
const (
	maxRefusals     = 3
	maxRefusalBytes = 300
)

// refusalTexts returns the texts of reported refusals for the lease.
func (o *stuckOps) refusalTexts() (told []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var texts []string
	for _, of := range o.of {
		if of.told {
			texts = append(texts, of.text)
		}
	}
	slices.Sort(texts)
	for _, text := range texts {
		if len(told) == maxRefusals {
			return append(told, fmt.Sprintf("%d more", len(texts)-maxRefusals))
		}
		told = append(told, truncateForLease(text))
	}
	return told
}

// truncateForLease returns the first maxRefusalBytes bytes of a text, without a part of a character at the end.
func truncateForLease(text string) string {
	return strings.ToValidUTF8(text[:min(maxRefusalBytes, len(text))], "")
}
