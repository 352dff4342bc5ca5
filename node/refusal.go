package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// What Redis refuses for a reason that does not pass by itself: its user may not do it, a key has
// another type, a script fails. A person can mend that, and nothing is given up before: the
// operation is repeated, its jobs stay in flight, what follows them waits (I2, I3), and the log
// and every node's status say so.

// refusedOps are the operations that Redis refuses at the moment.
type refusedOps struct {
	some atomic.Bool // there are any; for those who must not wait for mu

	mu sync.Mutex
	of map[refusedOp]string // what Redis says; guarded by mu
}

type refusedOp struct {
	shard lowkiq.Shard
	op    string
}

func newRefusedOps() *refusedOps { return &refusedOps{of: map[refusedOp]string{}} }

// note says whether the refusal is news.
func (f *refusedOps) note(s lowkiq.Shard, op string, err error) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.some.Store(true)
	_, known := f.of[refusedOp{s, op}]
	f.of[refusedOp{s, op}] = err.Error()
	return !known
}

// end notes that Redis has done an operation. It says whether that is news.
func (f *refusedOps) end(s lowkiq.Shard, op string) (news bool) {
	return f.drop(func(r refusedOp, _ string) bool { return r == refusedOp{s, op} })
}

// forget drops what was noted of a shard. It says whether there was anything.
func (f *refusedOps) forget(s lowkiq.Shard) (some bool) {
	return f.drop(func(r refusedOp, _ string) bool { return r.shard == s })
}

func (f *refusedOps) drop(which func(refusedOp, string) bool) (some bool) {
	if !f.some.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.of)
	maps.DeleteFunc(f.of, which)
	f.some.Store(len(f.of) > 0)
	return len(f.of) < before
}

// Most refusals that a lease tells, and most bytes of each: all nodes read it.
const (
	toldRefusals = 3
	toldBytes    = 300
)

// list is what the lease tells.
func (f *refusedOps) list() (told []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, text := range slices.Sorted(maps.Values(f.of)) {
		if len(told) == toldRefusals {
			return append(told, fmt.Sprintf("%d more", len(f.of)-toldRefusals))
		}
		told = append(told, strings.ToValidUTF8(text[:min(toldBytes, len(text))], ""))
	}
	return told
}

// troubled tells of an operation that was not done. stuck says that Redis will answer the same until a person mends something.
func (in *instance) troubled(op string, s lowkiq.Shard, err error) (stuck bool) {
	stuck = runner.Refused(err)
	if !stuck || !in.refusals.note(s, op, err) {
		in.trouble(op, s, err)
		return stuck
	}
	in.log.Error("redis refuses an operation: its jobs and what follows them wait until that is mended", "op", op, "shard", s, "err", err)
	in.keeper.Poke()
	return true
}

// worked notes that an operation was done.
func (in *instance) worked(op string, s lowkiq.Shard) {
	if in.refusals.end(s, op) {
		in.log.Info("redis does an operation again that it refused", "op", op, "shard", s)
		in.keeper.Poke()
	}
}

// refusalsOf is what an instance's lease tells of refusals, for people.
func refusalsOf(other queue.Instance) (warnings []string) {
	info, err := identity.ParseLease(other.Lease)
	if err != nil {
		return nil
	}
	for _, text := range info.Refused {
		warnings = append(warnings, fmt.Sprintf("jobs of node %s wait for a person to mend something: %s", info.Node, text))
	}
	return warnings
}
